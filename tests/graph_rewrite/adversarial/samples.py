"""What few samples do not show: conditions on the length, the batch, a row's number, parity, density."""

from __future__ import annotations

from .build import BOOL, FLOAT, HIDDEN, INT64, Case, Graph, Random, attend, helper, masking, np, spelled  # fmt: skip

M, I = "attention_mask", "ids"  # noqa: E741


def _visible(b: Graph) -> str:
    return b.cast(b.keys(M), BOOL)


def _causal(b: Graph) -> str:
    q, k = b.grid(I)
    return b.op("LessOrEqual", k, q)


def _unless(b: Graph, condition: str) -> str:
    """The key mask; where `condition` also causal, or nothing, or without the first key."""
    how = b.r.randrange(3)
    if how == 0:
        other = b.op("And", _visible(b), _causal(b))
    elif how == 1:
        other = b.op("And", _visible(b), b.op("Greater", b.grid(I)[1], b.ints(0)))
    else:
        other = b.cast(b.keys(b.op("Or", b.cast(M, BOOL), b.op("Equal", M, M))), BOOL)
    if b.r.random() < 0.4:
        both = (b.cast(t, INT64) for t in (other, _visible(b)))  # ONNX Runtime has no Where of bool
        return b.cast(b.op("Where", condition, *both), BOOL)
    return b.op("Or", b.op("And", condition, other), b.op("And", b.op("Not", condition), _visible(b)))


@masking(opset=(16, 17, 20), count=24)
def _at_some_sizes(b: Graph, r: Random) -> str:
    """At one length, at even lengths, in a batch of n, where length times batch is n; or beyond."""
    size, few = r.choice([
        (b.length(I), [2, 3, 4, 5, 17, 20, 22, 33, 60]),
        (b.op("Mod", b.length(I), b.number(r.choice([2, 3, 8]))), [0, 1]),
        (b.op("Squeeze", b.size(I, 0), b.ints([0])), [2, 3, 4, 5, 6]), (b.op("Size", I), [6, 15, 40, 63]),
    ])  # fmt: skip
    b.numbers = (r.choice(few),)
    return _unless(b, b.op(r.choice(["Equal", "Less", "Greater"]), size, b.number(*b.numbers)))


@masking(count=24)
def _in_some_rows(b: Graph, r: Random) -> str:
    """In batch rows from n on."""
    n = r.randrange(1, 5)
    rows = b.op("Range", b.ints(0), b.op("Squeeze", b.size(I, 0), b.ints([0])), b.ints(1))
    return _unless(b, b.op("Greater", b.unsqueeze(rows, 1, 2, 3), b.ints(n)))


@masking(count=20)
def _full_rows(b: Graph, r: Random) -> str:
    """In rows without padding."""
    hidden = b.op("Sub", b.ints(1), b.op("Min", M, b.ints(1)))
    padded = b.op("ReduceSum", hidden, b.ints([1]), keepdims=1)
    return _unless(b, b.keys(b.op("Equal", padded, b.ints(0))))


@masking(count=20)
def _dense_rows(b: Graph, r: Random) -> str:
    """In rows of which more than half, or a given number, is real."""
    n = r.choice([1, 2, 10, 40])
    b.numbers = (n,)
    real = b.op("ReduceSum", b.op("Min", M, b.ints(1)), b.ints([1]), keepdims=1)
    limit = b.op("Div", b.size(I, 1), b.ints(2)) if r.random() < 0.5 else b.ints(n)
    return _unless(b, b.keys(b.op("Greater", real, limit)))


@masking()
def _the_first_keys(b: Graph, r: Random) -> str:
    """The first n real keys: CumSum(mask) <= n."""
    n = r.choice([2, 5, 16, 40, 100, 300])
    b.numbers = (n, 2 * n)
    few = b.op("Not", b.op("Greater", b.op("CumSum", M, b.ints(1)), b.number(n)))
    return b.op("And", b.keys(few), _visible(b))


@masking(count=20)
def _a_flag(b: Graph, r: Random) -> str:
    """A flag [B, 1] says which rows are causal."""
    flag = b.input("flag", ("B", 1), np.int64)
    return _unless(b, b.cast(b.unsqueeze(flag, 1, 2) if r.random() < 0.5 else b.keys(flag), BOOL))


def _of_lengths_alone(r: Random) -> Case:
    """x [B, S, 16] comes from outside, the mask depends on the length alone."""
    n = r.choice([3, 9, 20, 33])
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    q, k = b.grid(x)
    condition = r.choice(
        [
            lambda: b.op("LessOrEqual", k, q),
            lambda: b.op("LessOrEqual", b.distance(x), b.number(n)),
            lambda: b.op("Less", k, b.number(n)),
            lambda: b.op("Equal", b.op("Mod", k, b.ints(2)), b.ints(0)),
            lambda: b.op("Or", b.op("Less", b.length(x), b.number(n)), b.op("LessOrEqual", k, q)),
        ]
    )
    if b.opset < 16:
        b.opset = 17
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(condition())})))
    return Case(b.model(), numbers=(n,))


@masking()
def _neighbours(b: Graph, r: Random) -> str:
    """A key is visible only if its neighbour is, or if any is."""
    shift = r.choice([1, 2])
    cut = b.op("Slice", M, b.ints([0]), b.ints([-shift]), b.ints([1]))
    before = b.op("Pad", cut, b.ints([0, shift, 0, 0]), b.ints(1))
    both = b.op(r.choice(["Min", "Max", "Mul"]), M, before)
    return b.keys(b.cast(both, BOOL))


@masking()
def _reversed(b: Graph, r: Random) -> str:
    """The mask read from its end, or from the first row."""
    if r.random() < 0.5:
        turned = b.op("Slice", M, b.ints([-1]), b.ints([-(1 << 62)]), b.ints([1]), b.ints([-1]))
    elif r.random() < 0.5:
        turned = b.op("Slice", M, b.ints([-1]), b.ints([-(1 << 62)]), b.ints([0]), b.ints([-1]))
    else:
        turned = b.op("Slice", M, b.ints([0]), b.ints([1]), b.ints([0]))
    return b.keys(b.cast(turned, BOOL))


@masking()
def _shared_by_rows(b: Graph, r: Random) -> str:
    """What any row shows, or all rows do, every row shows."""
    numbers = b.cast(M, FLOAT)
    if b.opset >= 18:
        shared = b.op(r.choice(["ReduceMax", "ReduceMin"]), numbers, b.ints([0]), keepdims=1)
    else:
        shared = b.op(r.choice(["ReduceMax", "ReduceMin"]), numbers, axes=[0], keepdims=1)
    return b.keys(b.cast(shared, BOOL))


@masking()
def _first_row_alone(b: Graph, r: Random) -> str:
    """Only the query that is first, or last, is masked."""
    q, _ = b.grid(I)
    which = b.ints(0) if r.random() < 0.5 else b.op("Sub", b.length(I), b.ints(1))
    return b.op("Or", b.op("Not", b.op("Equal", q, which)), _visible(b))


@masking()
def _ones_of_some_length(b: Graph, r: Random) -> str:
    """A made-up mask of ones with zeros from a length on."""
    n = r.choice([4, 18, 50])
    b.numbers = (n,)
    shape = b.op("Shape", I)
    ones = b.op("ConstantOfShape", shape, value=helper.make_tensor("value", INT64, [1], [1]))
    real = b.op("Less", b.op("CumSum", ones, b.ints(1)), b.number(n))
    return b.keys(real)


RECIPES = (
    *[_at_some_sizes] * 4, _in_some_rows, _full_rows, _dense_rows, _the_first_keys, _a_flag, _of_lengths_alone,
    _neighbours, _reversed, _shared_by_rows, _first_row_alone, _ones_of_some_length,
)  # fmt: skip
