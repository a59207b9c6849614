"""What few samples do not show: conditions on the length, the batch, a row's number, parity, density."""

from __future__ import annotations

from .build import (
    BOOL,
    FLOAT,
    HIDDEN,
    INT64,
    Case,
    Graph,
    Random,
    attend,
    attention_of,
    helper,
    np,
    spelled,
)  # fmt: skip

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


def _at_one_length(r: Random) -> Case:
    n = r.choice([2, 3, 4, 5, 17, 20, 22, 33, 60])
    op = r.choice(["Equal", "Less", "Greater"])
    return attention_of(r, lambda b: _unless(b, b.op(op, b.length(I), b.number(n))), numbers=(n,))


def _at_even_lengths(r: Random) -> Case:
    n, rest = r.choice([(2, 0), (2, 1), (3, 0), (4, 2), (8, 5)])
    return attention_of(
        r, lambda b: _unless(b, b.op("Equal", b.op("Mod", b.length(I), b.number(n)), b.ints(rest))), count=20
    )


def _of_a_batch(r: Random) -> Case:
    """At a batch of n, or more."""
    n = r.randrange(2, 7)
    op = r.choice(["Equal", "GreaterOrEqual" if r.random() < 0.5 else "Greater"])
    return attention_of(
        r, lambda b: _unless(b, b.op(op, b.size(I, 0), b.ints([n]))), opset=r.choice([16, 17, 20]), count=24
    )


def _in_some_rows(r: Random) -> Case:
    """In batch rows from n on."""
    n = r.randrange(1, 5)

    def make(b: Graph) -> str:
        rows = b.op("Range", b.ints(0), b.op("Squeeze", b.size(I, 0), b.ints([0])), b.ints(1))
        return _unless(b, b.op("Greater", b.unsqueeze(rows, 1, 2, 3), b.ints(n)))

    return attention_of(r, make, count=24)


def _full_rows(r: Random) -> Case:
    """In rows without padding."""

    def make(b: Graph) -> str:
        hidden = b.op("Sub", b.ints(1), b.op("Min", M, b.ints(1)))
        padded = b.op("ReduceSum", hidden, b.ints([1]), keepdims=1)
        return _unless(b, b.keys(b.op("Equal", padded, b.ints(0))))

    return attention_of(r, make, count=20)


def _dense_rows(r: Random) -> Case:
    """In rows of which more than half, or a given number, is real."""
    n = r.choice([1, 2, 10, 40])

    def make(b: Graph) -> str:
        real = b.op("ReduceSum", b.op("Min", M, b.ints(1)), b.ints([1]), keepdims=1)
        limit = b.op("Div", b.size(I, 1), b.ints(2)) if r.random() < 0.5 else b.ints(n)
        return _unless(b, b.keys(b.op("Greater", real, limit)))

    return attention_of(r, make, numbers=(n,), count=20)


def _the_first_keys(r: Random) -> Case:
    """The first n real keys: CumSum(mask) <= n."""
    n = r.choice([2, 5, 16, 40, 100, 300])

    def make(b: Graph) -> str:
        few = b.op("Not", b.op("Greater", b.op("CumSum", M, b.ints(1)), b.number(n)))
        return b.op("And", b.keys(few), _visible(b))

    return attention_of(r, make, numbers=(n, 2 * n))


def _a_flag(r: Random) -> Case:
    """A flag [B, 1] says which rows are causal."""

    def make(b: Graph) -> str:
        flag = b.input("flag", ("B", 1), np.int64)
        return _unless(b, b.cast(b.unsqueeze(flag, 1, 2) if r.random() < 0.5 else b.keys(flag), BOOL))

    return attention_of(r, make, count=20)


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


def _neighbours(r: Random) -> Case:
    """A key is visible only if its neighbour is, or if any is."""

    def make(b: Graph) -> str:
        shift = r.choice([1, 2])
        cut = b.op("Slice", M, b.ints([0]), b.ints([-shift]), b.ints([1]))
        before = b.op("Pad", cut, b.ints([0, shift, 0, 0]), b.ints(1))
        both = b.op(r.choice(["Min", "Max", "Mul"]), M, before)
        return b.keys(b.cast(both, BOOL))

    return attention_of(r, make)


def _reversed(r: Random) -> Case:
    """The mask read from its end, or from the first row."""

    def make(b: Graph) -> str:
        if r.random() < 0.5:
            turned = b.op("Slice", M, b.ints([-1]), b.ints([-(1 << 62)]), b.ints([1]), b.ints([-1]))
        elif r.random() < 0.5:
            turned = b.op("Slice", M, b.ints([-1]), b.ints([-(1 << 62)]), b.ints([0]), b.ints([-1]))
        else:
            turned = b.op("Slice", M, b.ints([0]), b.ints([1]), b.ints([0]))
        return b.keys(b.cast(turned, BOOL))

    return attention_of(r, make)


def _shared_by_rows(r: Random) -> Case:
    """What any row shows, or all rows do, every row shows."""

    def make(b: Graph) -> str:
        numbers = b.cast(M, FLOAT)
        if b.opset >= 18:
            shared = b.op(r.choice(["ReduceMax", "ReduceMin"]), numbers, b.ints([0]), keepdims=1)
        else:
            shared = b.op(r.choice(["ReduceMax", "ReduceMin"]), numbers, axes=[0], keepdims=1)
        return b.keys(b.cast(shared, BOOL))

    return attention_of(r, make)


def _first_row_alone(r: Random) -> Case:
    """Only the query that is first, or last, is masked."""

    def make(b: Graph) -> str:
        q, _ = b.grid(I)
        which = b.ints(0) if r.random() < 0.5 else b.op("Sub", b.length(I), b.ints(1))
        return b.op("Or", b.op("Not", b.op("Equal", q, which)), _visible(b))

    return attention_of(r, make)


def _product_of_length_and_batch(r: Random) -> Case:
    n = r.choice([6, 15, 40, 63])

    def make(b: Graph) -> str:
        total = b.op("Size", I)
        return _unless(b, b.op(r.choice(["Equal", "Greater"]), total, b.number(n)))

    return attention_of(r, make, numbers=(n,), count=24)


def _ones_of_some_length(r: Random) -> Case:
    """A made-up mask of ones with zeros from a length on."""
    n = r.choice([4, 18, 50])

    def make(b: Graph) -> str:
        shape = b.op("Shape", I)
        ones = b.op("ConstantOfShape", shape, value=helper.make_tensor("value", INT64, [1], [1]))
        real = b.op("Less", b.op("CumSum", ones, b.ints(1)), b.number(n))
        return b.keys(real)

    return attention_of(r, make, numbers=(n,))


RECIPES = (
    _at_one_length, _at_even_lengths, _of_a_batch, _in_some_rows, _full_rows, _dense_rows, _the_first_keys, _a_flag,
    _of_lengths_alone, _neighbours, _reversed, _shared_by_rows, _first_row_alone, _product_of_length_and_batch,
    _ones_of_some_length,
)  # fmt: skip
