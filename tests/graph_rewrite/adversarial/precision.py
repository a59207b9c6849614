"""Models converted to float16: numbers that lead to indices, places and angles must not be rounded on the way."""

from __future__ import annotations

from collections.abc import Callable

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT64, SIZE, Case, Graph, Random, Recipe, attend, named, np, spelled

LONG = 3000


def _layer(b: Graph, x: str, **parts) -> str:
    return attend(b, x, spelled(b.r, **({"mask": "none"} | parts)))


def in_half(longest: tuple[int, ...] = (200,), count: int = 6, opset: tuple[int, ...] = ()) -> Callable[..., Recipe]:
    """A recipe: what the function makes of ids, beside an attention, so that something is fused and converted."""

    def decorate(make: Callable[[Graph, Random, str], str]) -> Recipe:
        @named(make)
        def recipe(r: Random) -> Case:
            b = Graph(r, r.choice(opset) if opset else None)
            result = make(b, r, b.input("ids", ("B", "S"), np.int64))
            b.output(b.op("Add", _layer(b, b.input("x", ("B", "S", HIDDEN))), result))
            return Case(b.model(), numbers=b.numbers, dtype="fp16", longest=r.choice(longest), count=count)

        return recipe

    return decorate


@in_half()
def _ids_through_floats(b: Graph, r: Random, ids: str) -> str:
    """Token ids through float32 and back: 2049 is 2048 in float16."""
    b.numbers = (2049, 5999)
    rows = 6000
    index = b.cast(b.op(*r.choice([("Floor",), ("Identity",), ("Abs",)]), b.cast(ids, FLOAT)), INT64)
    return b.op("Gather", b.const(b.random.standard_normal((rows, HIDDEN))), index, axis=0)


@in_half(longest=(2100,), count=3)
def _lengths_through_floats(b: Graph, r: Random, ids: str) -> str:
    """Places and lengths as floats: the last token's number, S / 2, a mean's denominator."""
    b.numbers = (2049, 2051)
    length = b.cast(b.length(ids), FLOAT)
    last = b.cast(b.op("Sub", length, b.const(1.0)), INT64)
    rows = b.op("Gather", b.const(b.random.standard_normal((LONG, HIDDEN))), last, axis=0)
    return rows


@in_half(longest=(2100,), count=3)
def _running_sum(b: Graph, r: Random, ids: str) -> str:
    """CumSum of a mask as floats, as position numbers."""
    mask = b.ids("attention_mask")
    places = b.op("CumSum", b.cast(b.op("Min", b.op("Abs", mask), b.ints(1)), FLOAT), b.ints(1))
    table = b.const(b.random.standard_normal((LONG, HIDDEN)))
    return b.op("Gather", table, b.cast(places, INT64), axis=0)


@in_half(longest=(300, 2100), count=3)
def _angles(b: Graph, r: Random, ids: str) -> str:
    """Sinusoids of places times frequencies."""
    places = b.unsqueeze(b.cast(b.places(ids), FLOAT), 1)
    frequencies = b.const(1.0 / 10000 ** (np.arange(HIDDEN) / HIDDEN))
    angles = (
        b.op("Mul", places, frequencies) if r.random() < 0.5 else b.op("MatMul", places, b.unsqueeze(frequencies, 0))
    )
    return b.op(r.choice(["Sin", "Cos"]), angles)


@in_half(longest=(200, 2100), count=3)
def _rotated(b: Graph, r: Random, ids: str) -> str:
    """Rotary positions of a head, beside a fused attention."""
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
    return merged


@in_half()
def _squared_norm(b: Graph, r: Random, ids: str) -> str:
    """Sums of squares beyond 65504, and their root."""
    loud = b.op("Mul", b.input("y", ("B", "S", HIDDEN)), b.const(r.choice([1.0, 100.0])))
    norm = b.op("Sqrt", b.op("ReduceSum", b.op("Mul", loud, loud), b.ints([-1]), keepdims=1))
    return b.op("Div", loud, b.op("Max", norm, b.const(1e-12)))


@in_half(longest=(300, 4000), count=3)
def _mean_pooled(b: Graph, r: Random, ids: str) -> str:
    """The mean over real tokens: a count beyond 2048."""
    mask = b.ids("attention_mask")
    y = b.op("Mul", b.input("y", ("B", "S", HIDDEN)), b.const(1.0))
    real = b.unsqueeze(b.cast(b.cast(mask, BOOL), FLOAT), 2)
    total = b.op("ReduceSum", b.op("Mul", y, real), b.ints([1]), keepdims=1)
    count = b.op("Clip", b.op("ReduceSum", real, b.ints([1]), keepdims=1), b.const(1e-9))
    return b.op("Div", total, count)


@in_half(longest=(300,), count=3)
def _distances(b: Graph, r: Random, ids: str) -> str:
    """A bias of distance by head (ALiBi), of long sequences."""
    slopes = b.const(0.5 ** np.arange(1, HEADS + 1).reshape(1, HEADS, 1, 1))
    bias = b.op("Mul", b.op("Neg", b.cast(b.distance(ids), FLOAT)), slopes)
    y = b.input("y", ("B", "S", HIDDEN))
    return _layer(b, y, mask="subtract", parts={"mask": bias})


@in_half(longest=(2100,), count=3)
def _last_token(b: Graph, r: Random, ids: str) -> str:
    """The vector of the last real token: its number as the sum of the mask, in floats."""
    mask = b.ids("attention_mask")
    y = b.input("y", ("B", "S", HIDDEN))
    total = b.op("ReduceSum", b.cast(b.cast(mask, BOOL), FLOAT), b.ints([1]), keepdims=0)
    last = b.cast(b.op("Max", b.op("Sub", total, b.const(1.0)), b.const(0.0)), INT64)
    batch = b.op("Range", b.ints(0), b.op("Squeeze", b.size(mask, 0), b.ints([0])), b.ints(1))
    index = b.op("Concat", b.unsqueeze(batch, 1), b.unsqueeze(last, 1), axis=1)
    return b.unsqueeze(b.op("GatherND", y, index), 1)


@in_half()
def _least_numbers(b: Graph, r: Random, ids: str) -> str:
    """Masks, epsilons and bounds that float16 has not: -3.4e38, 1e-12, 1e-9, 70000."""
    mask = b.ids("attention_mask")
    y = b.input("y", ("B", "S", HIDDEN))
    hidden = b.const(r.choice([-3.4e38, -1e9, -70000.0]))
    added = b.op("Where", b.cast(b.unsqueeze(mask, 1, 2), BOOL), b.const(0.0), hidden)
    context = _layer(b, y, mask="subtract", parts={"mask": added})
    return b.layer_norm(b.op("Add", context, y), HIDDEN, epsilon=r.choice([1e-12, 1e-7]))
