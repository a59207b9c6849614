"""What is counted from the end: the last tokens, the last token of each text, with texts that are shorter than that."""

from __future__ import annotations

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT64, Case, Graph, Random, attend, np, recipe, spelled
from .weights import _layer

M, I = "attention_mask", "ids"  # noqa: E741
_END = (1 << 63) - 1


def _encoder(r: Random, opset: int | None = None) -> tuple[Graph, str]:
    """A layer over looked-up ids with a mask, and its last tensor, which is no output any more."""
    b, _ = _layer(r, opset)
    return b, b.outputs.pop().name


def _lengths(n: int) -> dict:
    return {"numbers": tuple(k for k in (n, n + 1, 2 * n) if k > 1), "longest": 24, "count": 12}


def _last(b: Graph, y: str, n: int) -> str:
    """y[:, -n:], in one of its spellings."""
    r = b.r
    axis = b.ints([r.choice([1, 1, -2])])
    if r.random() < 0.5:
        return b.op("Slice", y, b.ints([-n]), b.ints([r.choice([_END, (1 << 31) - 1])]), axis)
    start = b.op("Neg", b.ints([n]))
    if r.random() < 0.4:  # S - n, which is below 0 for a shorter text, and then counts from the end again
        start = b.op("Sub", b.size(y, 1), b.ints([n]))
    return b.op("Slice", y, start, b.size(y, 1) if r.random() < 0.5 else b.ints([_END]), axis)


def _mean(b: Graph, last: str, n: int) -> str:
    """Over the tokens: by ReduceMean, by the sizes of what is summed, or by the number that it should be."""
    how = b.r.randrange(4)
    if how == 0:
        return b.reduced("ReduceMean", last, [1], keepdims=0)
    total = b.op("ReduceSum", last, b.ints([1]), keepdims=0)
    if how == 1:
        return b.op("Div", total, b.const(float(n)))
    if how == 2:
        return b.op("Div", total, b.cast(b.size(last, 1), FLOAT))
    count = b.op("Max", b.cast(b.length(last), FLOAT), b.const(1e-9))
    return b.op("Mul", total, b.op("Reciprocal", count))


def _mean_of_the_last(r: Random) -> Case:
    b, y = _encoder(r)
    n = r.choice([2, 4, 4, 8])
    b.output(_mean(b, _last(b, y, n), n))
    return Case(b.model(), **_lengths(n))


def _heads_over_the_last(r: Random) -> Case:
    """Layers over the last n tokens: a projection, a residual, a LayerNorm, a GELU."""
    b, y = _encoder(r)
    n = r.choice([1, 2, 4])
    last = _last(b, y, n)
    how = r.randrange(5)
    if how == 0:
        z = b.layer_norm(b.op("Add", b.linear(last, HIDDEN, HIDDEN), last), HIDDEN)
    elif how == 1:  # a residual of other tokens, which broadcasts where one of them is left
        z = b.layer_norm(b.op("Add", b.linear(y, HIDDEN, HIDDEN), _last(b, y, r.choice([1, n]))), HIDDEN)
    elif how == 2:
        z = b.gelu(b.linear(last, HIDDEN, 32))
    elif how == 3:
        z = b.op("Softmax", b.linear(last, HIDDEN, 5), axis=r.choice([-1, 1]))
    else:
        z = b.linear(b.op("Reshape", last, b.ints([0, -1, HIDDEN])), HIDDEN, 3)
    b.output(z if r.random() < 0.5 else _mean(b, z, n))
    case = Case(b.model(), **_lengths(n))
    case.runs = False
    return case


def _joined_tokens(r: Random) -> Case:
    """The last n tokens in one row: [B, n * H], which no shorter text has; or reshaped by its own sizes."""
    b, y = _encoder(r)
    n = r.choice([1, 2, 4])
    last = _last(b, y, n)
    if r.random() < 0.5:
        b.output(b.op("Reshape", last, b.ints([0, n * HIDDEN])))
    else:
        width = b.op("Mul", b.size(last, 1), b.size(last, 2))
        b.output(b.op("Reshape", last, b.op("Concat", b.ints([-1]), width, axis=0)), shape=("B", "n"))
    case = Case(b.model(), **_lengths(n))
    case.runs = False
    return case


def _attention_over_the_last(r: Random) -> Case:
    """Only the last n tokens are queries, or keys with their part of the mask."""
    b = Graph(r)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    n = r.choice([1, 2, 4])
    last = _last(b, x, n)
    how = r.randrange(3)
    if how == 0:
        b.output(attend(b, x, spelled(r, mask=r.choice(["none", "where"]), parts={"q_x": last}), mask))
    else:
        visible = b.cast(b.unsqueeze(_last(b, mask, n) if how == 1 else mask, 1, 2), BOOL)
        b.output(attend(b, last, spelled(r, parts={"mask": b.additive(visible)})))
    case = Case(b.model(), **_lengths(n))
    case.runs = False
    return case


def _ids_from_the_end(r: Random) -> Case:
    """Only the last n ids are looked up, at places of their own or at their old ones."""
    b = Graph(r)
    ids = b.ids()
    n = r.choice([2, 4, 8])
    last = _last(b, ids, n)
    rows = b.op("Gather", b.weight(97, HIDDEN), last, axis=0)
    places = b.unsqueeze(b.places(last if r.random() < 0.6 else ids), 0)
    places = _last(b, places, n) if r.random() < 0.3 else places
    b.output(b.layer_norm(b.op("Add", rows, b.op("Gather", b.weight(80, HIDDEN), places, axis=0)), HIDDEN))
    case = Case(b.model(), **_lengths(n))
    case.runs = False
    return case


def _index_of_last(b: Graph) -> str:
    """int64 [B]: the number of tokens by the mask, less one; or S - 1."""
    r = b.r
    how = r.randrange(4)
    if how <= 1:
        count = b.op("ReduceSum", b.cast(M, INT64), b.ints([1]), keepdims=0)
        return b.op("Sub", count, b.ints(1))
    if how == 2:  # the last place that is not padding
        places = b.op("Mul", b.unsqueeze(b.places(I), 0), b.cast(b.cast(M, BOOL), INT64))
        return b.op("ArgMax", b.cast(places, FLOAT), axis=1, keepdims=0)
    return b.op("Expand", b.op("Sub", b.length(I), b.ints(1)), b.size(I, 0))


def _last_token(b: Graph, y: str) -> str:
    """[B, H], by GatherND, GatherElements, or Gather of what is flat."""
    r, index = b.r, _index_of_last(b)
    how = r.randrange(4)
    if how <= 1:
        return b.op("GatherND", y, b.unsqueeze(index, 1), batch_dims=1)
    if how == 2:
        wide = b.op("Expand", b.unsqueeze(index, 1, 2), b.op("Concat", b.size(I, 0), b.ints([1, HIDDEN]), axis=0))
        return b.op("Squeeze", b.op("GatherElements", y, wide, axis=1), b.ints([1]))
    rows = b.op("Range", b.ints(0), b.op("Squeeze", b.size(I, 0), b.ints([0])), b.ints(1))
    return b.op("GatherND", y, b.op("Concat", b.unsqueeze(rows, 1), b.unsqueeze(index, 1), axis=1))


def _head_of_the_last_token(r: Random) -> Case:
    """Last token, linear layer, Softmax: a decoder-style classifier."""
    b, y = _encoder(r)
    token = _last_token(b, y)
    how = r.randrange(5)
    if how <= 1:
        b.output(b.op("Softmax", b.linear(token, HIDDEN, 5, r.choice(["matmul_add", "gemm"])), axis=r.choice([-1, 1])))
    elif how == 2:
        b.output(b.op("Tanh", b.linear(token, HIDDEN, HIDDEN)))
    elif how == 3:
        b.output(b.layer_norm(b.op("Add", b.linear(token, HIDDEN, HIDDEN), token), HIDDEN))
    else:
        b.output(b.gelu(b.linear(token, HIDDEN, 32)))
    return Case(b.model(), count=12)


def _masked_tokens(r: Random) -> Case:
    """Tokens at given places of each text, then a vocabulary: masked language models."""
    b, y = _encoder(r)
    n = r.choice([1, 2, 3])
    index = b.input("index", ("B", n, 1) if r.random() < 0.7 else ("B", "P", 1), np.int64)
    tokens = b.op("GatherND", y, index, batch_dims=1)
    z = b.layer_norm(b.gelu(b.linear(tokens, HIDDEN, HIDDEN)), HIDDEN)
    if r.random() < 0.4:
        z = b.layer_norm(b.op("Add", b.linear(tokens, HIDDEN, HIDDEN), tokens), HIDDEN)
    b.output(b.op("Softmax", b.linear(z, HIDDEN, 97), axis=-1) if r.random() < 0.5 else z)
    random = np.random.default_rng(r.randrange(1 << 30))
    more = {}
    for batch, length in ((1, 1), (2, 7), (5, 3), (3, 20)):
        given = {name: random.integers(0, 2, (batch, length)) for name in (I, M)}
        given[M][:, 0] = 1
        more[f"{batch}x{length}"] = given | {"index": random.integers(-length, length, (batch, n, 1))}
    return Case(b.model(), count=0, more=more)


@recipe(count=10)
def _mask_by_gather_nd(b: Graph, r: Random) -> None:
    """The mask, or the ids, read by GatherND: their own elements, one place on, or another row's."""
    ids, mask = b.ids(), b.ids(M)
    x = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    places = b.op("Add", b.places(ids), b.ints(r.choice([0, 0, -1])))
    if r.random() < 0.6:
        column = b.op("Expand", b.unsqueeze(places, 0, 2), b.op("Concat", b.op("Shape", mask), b.ints([1]), axis=0))
        read = b.op("GatherND", mask, column, batch_dims=1)
    else:
        rows = b.op("Range", b.ints(0), b.op("Squeeze", b.size(mask, 0), b.ints([0])), b.ints(1))
        read = b.op("GatherND", mask, b.unsqueeze(b.op("Sub", rows, b.ints(r.choice([0, 1]))), 1))
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(b.keys(b.cast(read, BOOL)))})))


def _backwards(r: Random) -> Case:
    """Slices with a step of -1: from the end, from a place that a text may not have, to one that it may not have."""
    b = Graph(r)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    start = r.choice([b.ints([-1]), b.ints([3]), b.ints([_END]), b.op("Sub", b.size(x, 1), b.ints([1])), b.ints([-2])])
    end = b.ints([r.choice([-_END - 1, -_END - 1, -4, 0])])
    turned = lambda t: b.op("Slice", t, start, end, b.ints([1]), b.ints([r.choice([-1, -1, -2])]))  # noqa: E731
    how = r.randrange(4)
    if how == 0:
        b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), turned(x)), HIDDEN))
    elif how == 1:
        back = b.op("Slice", turned(x), b.ints([-1]), b.ints([-_END]), b.ints([1]), b.ints([-1]))
        b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), back), HIDDEN))
    elif how == 2:
        visible = b.cast(b.keys(turned(mask)), BOOL)
        b.output(attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))
    else:
        b.output(attend(b, turned(x), spelled(r, mask=r.choice(["none", "where"])), mask))
    case = Case(b.model(), numbers=(3, 4), count=10, longest=12)
    case.runs = False
    return case


@recipe(count=6)
def _heads_by_the_end(b: Graph, r: Random) -> None:
    """Heads, or columns of a packed projection, cut from the end."""
    x = b.input("x", ("B", "S", HIDDEN))
    packed = b.linear(x, HIDDEN, 3 * HIDDEN)
    cuts = [(0, HIDDEN), (HIDDEN, -HIDDEN), (-HIDDEN, _END)]
    if r.random() < 0.3:
        cuts[2] = (-2 * HIDDEN, -HIDDEN)
    parts = [b.op("Slice", packed, b.ints([s]), b.ints([e]), b.ints([r.choice([2, -1])])) for s, e in cuts]
    heads = [
        b.op("Transpose", b.op("Reshape", t, b.ints([0, 0, HEADS, -1])), perm=[0, 2, 1, 3]) for t in r.sample(parts, 3)
    ]
    spec = spelled(r, mask="none", parts=dict(zip(("q_heads", "k_heads", "v_heads"), heads, strict=True)))
    b.output(attend(b, x, spec))
