"""Encoders that are put together otherwise: queries of other lengths, other layouts, two texts, pieces of sequences."""

from __future__ import annotations

import numpy as np

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT64, SIZE, Case, Graph, Random, attend, helper, recipe, spelled, words

M = "attention_mask"


def _visible(b: Graph, mask: str = M) -> str:
    return b.cast(b.unsqueeze(mask, 1, 2), BOOL)


def _heads(b: Graph, x: str) -> str:
    return b.op("Transpose", b.op("Reshape", x, b.ints([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3])


@recipe(count=8)
def _first_tokens_ask(b: Graph, r: Random) -> None:
    """Only the first token, or every second one, is a query; or the first ones are no keys."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    end, step = r.choice([(1, 1), (1 << 62, 2), (4, 1), (-1, 1)])
    cut = b.op("Slice", x, b.ints([0]), b.ints([end]), b.ints([1]), b.ints([step]))
    parts = {"q_x": cut} if r.random() < 0.6 else {"k_x": cut, "v_x": cut}
    kind = r.choice(["none", "where"]) if "q_x" in parts else "none"
    b.output(attend(b, x, spelled(r, mask=kind, parts=parts), mask))


@recipe(count=8)
def _crossed(b: Graph, r: Random) -> None:
    """Queries of one sequence, keys and values of another, whose length has the same name or another one."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", r.choice(["S", "T"]), HIDDEN))
    mask = b.ids(M)
    sides = r.choice([{"k_x": y, "v_x": y}, {"q_x": y}, {"v_x": y}, {"k_x": y}])
    b.output(attend(b, x, spelled(r, mask=r.choice(["none", "where"]), parts=sides), mask))


@recipe(count=10)
def _with_a_prefix(b: Graph, r: Random) -> None:
    """Tokens put before the sequence, visible to all; or forgotten in the mask."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    n = r.choice([1, 2])
    batch = b.size(x, 0)
    rows = b.op(
        "Expand", b.const(b.random.standard_normal((1, n, HIDDEN))), b.op("Concat", batch, b.ints([n, HIDDEN]), axis=0)
    )
    whole = b.op("Concat", rows, x, axis=1)
    value = helper.make_tensor("v", INT64, [1], [r.choice([1, 1, 0])])
    ones = b.op("ConstantOfShape", b.op("Concat", batch, b.ints([n]), axis=0), value=value)
    order = [ones, mask] if r.random() < 0.6 else [mask, ones]
    visible = _visible(b, b.op("Concat", *order, axis=1))
    b.output(attend(b, whole, spelled(r, parts={"mask": b.additive(visible)})))


@recipe(count=8)
def _batch_second(b: Graph, r: Random) -> None:
    """x [S, B, H], as nn.MultiheadAttention has it by default: attention over the first axis, or wrongly the second."""
    x = b.input("x", ("S", "B", HIDDEN))
    perm = r.choice([(1, 2, 0, 3), (1, 2, 0, 3), (0, 2, 1, 3)])
    q, k, v = (
        b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.ints([0, 0, HEADS, SIZE])), perm=list(perm))
        for _ in "qkv"
    )
    back = (2, 0, 1, 3) if perm == (1, 2, 0, 3) else (0, 2, 1, 3)
    b.output(
        attend(b, x, spelled(r, mask="none", parts={"q_heads": q, "k_heads": k, "v_heads": v, "merge_perm": back}))
    )


def _turned_first(r: Random) -> Case:
    """x is transposed before the projections, and the context afterwards: attention between rows of the batch."""
    b = Graph(r)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    turned = b.op("Transpose", x, perm=[1, 0, 2])
    parts = {}
    if r.random() < 0.5:
        flipped = b.op("Transpose", mask, perm=[1, 0])
        parts = {"mask": b.additive(_visible(b, flipped))}
    context = attend(b, turned, spelled(r, mask="subtract" if parts else "none", parts=parts))
    b.output(b.op("Transpose", context, perm=[1, 0, 2]))
    # No place may be hidden in every row: that is a row of the op without a key.
    random = np.random.default_rng(r.randrange(1 << 30))
    more = {}
    for batch, length in ((2, 7), (5, 3), (1, 4)):
        given = random.integers(0, 2, (batch, length))
        given[0] = 1
        more[f"{batch}x{length}"] = {"x": random.standard_normal((batch, length, HIDDEN)).astype(np.float32), M: given}
    return Case(b.model(), count=0, more=more)


@recipe(count=8)
def _in_pieces(b: Graph, r: Random) -> None:
    """Sequences of a fixed length cut in pieces that attend within themselves."""
    length, piece = 12, r.choice([2, 3, 4, 12])
    x, mask = b.input("x", ("B", length, HIDDEN)), b.ids(M, ("B", length))
    cut = b.op("Reshape", x, b.ints([-1, piece, HIDDEN]))
    visible = _visible(b, b.op("Reshape", mask, b.ints([-1, piece])))
    context = attend(b, cut, spelled(r, parts={"mask": b.additive(visible)}))
    b.output(b.op("Reshape", context, b.ints([-1, length, HIDDEN])))


@recipe(count=10)
def _two_encoders(b: Graph, r: Random) -> None:
    """Two texts, each with its ids and mask; the masks may be exchanged."""
    first, second = b.ids("ids"), b.ids("other_ids", ("B", r.choice(["S", "T"])))
    shape = b.inputs[-1].type.tensor_type.shape.dim[1].dim_param
    masks = [b.ids(M), b.ids("other_mask", ("B", shape))]
    if shape == "S" and r.random() < 0.5:
        masks.reverse()
    projections = [(b.weight(HIDDEN, HIDDEN), b.weight(HIDDEN)) for _ in "qkv"]
    made = []
    for ids, mask in zip((first, second), masks, strict=True):
        x = words(b, ids)
        parts = {n: b.linear(x, HIDDEN, HIDDEN, weight=w, bias=c) for n, (w, c) in zip("qkv", projections, strict=True)}
        made.append(attend(b, x, spelled(r, parts={"mask": b.additive(_visible(b, mask)), **parts})))
    b.output(*made)


@recipe(count=8)
def _packed(b: Graph, r: Random) -> None:
    """One product for Q, K and V, cut by Split, Slice or views in some order, by head or not."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    packed = b.linear(x, HIDDEN, 3 * HIDDEN)
    how = r.randrange(3)
    if how == 0:
        made = b.op("Split", packed, outputs=3, axis=-1, **({"num_outputs": 3} if b.opset >= 18 else {}))
        made = [_heads(b, t) for t in r.sample(made, 3)]
    elif how == 1:
        starts = [r.choice([0, HIDDEN, 2 * HIDDEN, SIZE]) for _ in range(3)]
        made = [_heads(b, b.op("Slice", packed, b.ints([s]), b.ints([s + HIDDEN]), b.ints([2]))) for s in starts]
    else:
        apart = r.choice([[0, 0, 3, HEADS, SIZE], [0, 0, HEADS, 3, SIZE], [0, 0, HEADS, SIZE, 3]])
        axis = apart.index(3)
        views = [
            b.op("Gather", b.op("Reshape", packed, b.ints(apart)), b.ints(i), axis=axis) for i in r.sample(range(3), 3)
        ]
        made = [b.op("Transpose", t, perm=[0, 2, 1, 3]) for t in views]
    parts = dict(zip(("q_heads", "k_heads", "v_heads"), made, strict=True))
    b.output(attend(b, x, spelled(r, mask="where", parts=parts), mask))


@recipe(count=8)
def _one_hot_words(b: Graph, r: Random) -> None:
    """Embeddings by OneHot and MatMul, by Gather on the other axis, or of a table that is transposed."""
    ids = b.ids()
    table = b.weight(97, HIDDEN)
    how = r.randrange(3)
    if how == 0:
        rows = b.op("MatMul", b.op("OneHot", ids, b.ints(97), b.const([0.0, 1.0]), axis=-1), table)
    elif how == 1:
        rows = b.op("Transpose", b.op("Gather", b.op("Transpose", table, perm=[1, 0]), ids, axis=1), perm=[1, 2, 0])
    else:
        rows = b.op("Gather", b.op("Gather", table, b.ints(r.sample(range(97), 97)), axis=0), ids, axis=0)
    places = b.op("Gather", b.weight(64, HIDDEN, name="positions"), b.unsqueeze(b.places(ids), 0), axis=0)
    b.output(b.layer_norm(b.op("Add", rows, places), HIDDEN))


@recipe(count=8)
def _pooled(b: Graph, r: Random) -> None:
    """A layer, and a pooling that uses the same mask another way."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    y = attend(b, x, spelled(r, parts={"mask": b.additive(_visible(b))}))
    numbers = b.unsqueeze(b.cast(mask, FLOAT), 2)
    total = b.op("ReduceSum", b.op("Mul", y, numbers), b.ints([1]), keepdims=0)
    count = b.op("ReduceSum", numbers, b.ints([1]), keepdims=0)
    b.output(b.op("Div", total, b.op("Max", count, b.const(1e-9))))


@recipe(count=8)
def _before_the_norm(b: Graph, r: Random) -> None:
    """Pre-LayerNorm, a norm of the context, or no residual at all."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    normal = b.layer_norm(x, HIDDEN)
    context = attend(b, r.choice([normal, x]), spelled(r, mask="where"), mask)
    out = b.linear(context, HIDDEN, HIDDEN)
    total = r.choice(
        [lambda: b.op("Add", out, x), lambda: b.op("Add", out, normal), lambda: out, lambda: b.op("Sub", x, out)]
    )()
    b.output(b.layer_norm(total, HIDDEN) if r.random() < 0.7 else total)


def _wide_numbers(r: Random) -> Case:
    """A layer in float64, or in float16, or with some of it in another type."""
    dtype = r.choice([np.float64, np.float16])
    b = Graph(r)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    if r.random() < 0.5:
        b.dtype = np.dtype(dtype)
        element = helper.np_dtype_to_tensor_dtype(b.dtype)
        y = attend(b, b.cast(x, element), spelled(r, mask=r.choice(["none", "where"])), mask)
        b.output(y)
    else:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        q = b.cast(b.cast(b.linear(x, HIDDEN, HIDDEN), element), FLOAT)
        b.output(attend(b, x, spelled(r, mask="none", parts={"q": q})))
    return Case(b.model(), count=6)
