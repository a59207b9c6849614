"""Models converted to float16: numbers that lead to indices, places and angles must not be rounded on the way."""

from __future__ import annotations

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT64, SIZE, Case, Graph, Random, attend, np, spelled

LONG = 3000


def _layer(b: Graph, x: str, **parts) -> str:
    return attend(b, x, spelled(b.r, **({"mask": "none"} | parts)))


def _case(b: Graph, result: str, numbers: tuple[int, ...] = (), longest: int = 200, count: int = 6) -> Case:
    """The result beside an attention, so that something is fused and converted."""
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(b.op("Add", _layer(b, x), result))
    return Case(b.model(), numbers=numbers, dtype="fp16", longest=longest, count=count)


def _ids_through_floats(r: Random) -> Case:
    """Token ids through float32 and back: 2049 is 2048 in float16."""
    b = Graph(r)
    rows = 6000
    ids = b.input("ids", ("B", "S"), np.int64)
    index = b.cast(b.op(*r.choice([("Floor",), ("Identity",), ("Abs",)]), b.cast(ids, FLOAT)), INT64)
    return _case(b, b.op("Gather", b.const(b.random.standard_normal((rows, HIDDEN))), index, axis=0), (2049, 5999))


def _lengths_through_floats(r: Random) -> Case:
    """Places and lengths as floats: the last token's number, S / 2, a mean's denominator."""
    b = Graph(r)
    ids = b.input("ids", ("B", "S"), np.int64)
    length = b.cast(b.length(ids), FLOAT)
    last = b.cast(b.op("Sub", length, b.const(1.0)), INT64)
    rows = b.op("Gather", b.const(b.random.standard_normal((LONG, HIDDEN))), last, axis=0)
    return _case(b, rows, (2049, 2051), longest=2100, count=3)


def _running_sum(r: Random) -> Case:
    """CumSum of a mask as floats, as position numbers."""
    b = Graph(r)
    mask = b.ids("attention_mask")
    b.input("ids", ("B", "S"), np.int64)
    places = b.op("CumSum", b.cast(b.op("Min", b.op("Abs", mask), b.ints(1)), FLOAT), b.ints(1))
    table = b.const(b.random.standard_normal((LONG, HIDDEN)))
    return _case(b, b.op("Gather", table, b.cast(places, INT64), axis=0), longest=2100, count=3)


def _angles(r: Random) -> Case:
    """Sinusoids of places times frequencies."""
    b = Graph(r)
    ids = b.input("ids", ("B", "S"), np.int64)
    places = b.unsqueeze(b.cast(b.places(ids), FLOAT), 1)
    frequencies = b.const(1.0 / 10000 ** (np.arange(HIDDEN) / HIDDEN))
    angles = (
        b.op("Mul", places, frequencies) if r.random() < 0.5 else b.op("MatMul", places, b.unsqueeze(frequencies, 0))
    )
    return _case(b, b.op(r.choice(["Sin", "Cos"]), angles), longest=r.choice([300, 2100]), count=3)


def _rotated(r: Random) -> Case:
    """Rotary positions of a head, beside a fused attention."""
    b = Graph(r)
    ids = b.input("ids", ("B", "S"), np.int64)
    y = b.input("y", ("B", "S", HIDDEN))
    heads = b.op(
        "Transpose", b.op("Reshape", b.linear(y, HIDDEN, HIDDEN), b.ints([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3]
    )
    places = b.unsqueeze(b.cast(b.places(ids), FLOAT), 1)
    angles = b.op("Mul", places, b.const(np.tile(1.0 / 10000 ** (np.arange(SIZE // 2) / SIZE), 2)))
    low = b.op("Slice", heads, b.ints([0]), b.ints([SIZE // 2]), b.ints([3]))
    high = b.op("Slice", heads, b.ints([SIZE // 2]), b.ints([SIZE]), b.ints([3]))
    turned = b.op("Concat", b.op("Neg", high), low, axis=3)
    rotary = b.op("Add", b.op("Mul", heads, b.op("Cos", angles)), b.op("Mul", turned, b.op("Sin", angles)))
    merged = b.op("Reshape", b.op("Transpose", rotary, perm=[0, 2, 1, 3]), b.ints([0, 0, HIDDEN]))
    return _case(b, merged, longest=r.choice([200, 2100]), count=3)


def _squared_norm(r: Random) -> Case:
    """Sums of squares beyond 65504, and their root."""
    b = Graph(r)
    b.input("ids", ("B", "S"), np.int64)
    loud = b.op("Mul", b.input("y", ("B", "S", HIDDEN)), b.const(r.choice([1.0, 100.0])))
    norm = b.op("Sqrt", b.op("ReduceSum", b.op("Mul", loud, loud), b.ints([-1]), keepdims=1))
    return _case(b, b.op("Div", loud, b.op("Max", norm, b.const(1e-12))))


def _mean_pooled(r: Random) -> Case:
    """The mean over real tokens: a count beyond 2048."""
    b = Graph(r)
    mask = b.ids("attention_mask")
    y = b.op("Mul", b.input("y", ("B", "S", HIDDEN)), b.const(1.0))
    real = b.unsqueeze(b.cast(b.cast(mask, BOOL), FLOAT), 2)
    total = b.op("ReduceSum", b.op("Mul", y, real), b.ints([1]), keepdims=1)
    count = b.op("Clip", b.op("ReduceSum", real, b.ints([1]), keepdims=1), b.const(1e-9))
    return _case(b, b.op("Div", total, count), longest=r.choice([300, 4000]), count=3)


def _distances(r: Random) -> Case:
    """A bias of distance by head (ALiBi), of long sequences."""
    b = Graph(r)
    ids = b.input("ids", ("B", "S"), np.int64)
    slopes = b.const(0.5 ** np.arange(1, HEADS + 1).reshape(1, HEADS, 1, 1))
    bias = b.op("Mul", b.op("Neg", b.cast(b.distance(ids), FLOAT)), slopes)
    y = b.input("y", ("B", "S", HIDDEN))
    return _case(b, _layer(b, y, mask="subtract", parts={"mask": bias}), longest=300, count=3)


def _last_token(r: Random) -> Case:
    """The vector of the last real token: its number as the sum of the mask, in floats."""
    b = Graph(r)
    mask = b.ids("attention_mask")
    y = b.input("y", ("B", "S", HIDDEN))
    total = b.op("ReduceSum", b.cast(b.cast(mask, BOOL), FLOAT), b.ints([1]), keepdims=0)
    last = b.cast(b.op("Max", b.op("Sub", total, b.const(1.0)), b.const(0.0)), INT64)
    batch = b.op("Range", b.ints(0), b.op("Squeeze", b.size(mask, 0), b.ints([0])), b.ints(1))
    index = b.op("Concat", b.unsqueeze(batch, 1), b.unsqueeze(last, 1), axis=1)
    return _case(b, b.unsqueeze(b.op("GatherND", y, index), 1), longest=2100, count=3)


def _least_numbers(r: Random) -> Case:
    """Masks, epsilons and bounds that float16 has not: -3.4e38, 1e-12, 1e-9, 70000."""
    b = Graph(r)
    mask = b.ids("attention_mask")
    y = b.input("y", ("B", "S", HIDDEN))
    hidden = b.const(r.choice([-3.4e38, -1e9, -70000.0]))
    added = b.op("Where", b.cast(b.unsqueeze(mask, 1, 2), BOOL), b.const(0.0), hidden)
    context = _layer(b, y, mask="subtract", parts={"mask": added})
    return _case(b, b.layer_norm(b.op("Add", context, y), HIDDEN, epsilon=r.choice([1e-12, 1e-7])))


RECIPES = (
    _ids_through_floats, _lengths_through_floats, _running_sum, _angles, _rotated, _squared_norm, _mean_pooled,
    _distances, _last_token, _least_numbers,
)  # fmt: skip
