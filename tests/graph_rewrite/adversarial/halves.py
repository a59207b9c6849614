"""More models converted to float16: what leads to indices, counts, angles and norms by other ways than are usual."""

from __future__ import annotations

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT32, INT64, Graph, Random, helper, np
from .precision import LONG, _layer, in_half


def _rows(b: Graph, rows: int = LONG) -> str:
    return b.const(b.random.standard_normal((rows, HIDDEN)))


@in_half(longest=(2100,), count=3)
def _scaled_places(b: Graph, r: Random, ids: str) -> str:
    """Places times a factor, rounded to a table's row: interpolated positions."""
    factor = r.choice([0.5, 0.75, 1.0 / 3.0])
    places = b.op("Mul", b.cast(b.places(ids), FLOAT), b.const(factor))
    index = b.cast(b.op(r.choice(["Floor", "Round", "Ceil"]), b.op("Add", places, b.const(1e-3))), INT64)
    return b.unsqueeze(b.op("Gather", _rows(b), index, axis=0), 0)


@in_half(longest=(300,), count=3)
def _buckets_by_logarithm(b: Graph, r: Random, ids: str) -> str:
    """Distances in buckets that grow with their logarithm, as T5 has them: a bias for each."""
    y = b.input("y", ("B", "S", HIDDEN))
    far = b.op("Log", b.op("Add", b.cast(b.distance(ids), FLOAT), b.const(1.0)))
    bucket = b.cast(b.op("Mul", far, b.const(8.0 / np.log(128))), INT64)
    bias = b.op("Gather", b.const(b.random.standard_normal((64, HEADS))), bucket, axis=0)
    bias = b.op("Transpose", b.op("Squeeze", bias, b.ints([0, 1])), perm=[2, 0, 1])
    return _layer(b, y, mask="subtract", parts={"mask": b.unsqueeze(bias, 0)})


@in_half(longest=(200,), count=4)
def _end_of_text(b: Graph, r: Random, ids: str) -> str:
    """The vector of the largest id, by ArgMax of ids as floats (CLIP)."""
    y = b.input("y", ("B", "S", HIDDEN))
    numbers = b.cast(b.op("Add", b.op("Mod", ids, b.ints(50)), b.op("Mul", b.places(ids), b.ints(60))), FLOAT)
    last = b.op("ArgMax", numbers, axis=1, keepdims=0)
    batch = b.op("Range", b.ints(0), b.op("Squeeze", b.size(ids, 0), b.ints([0])), b.ints(1))
    index = b.op("Concat", b.unsqueeze(batch, 1), b.unsqueeze(last, 1), axis=1)
    return b.unsqueeze(b.op("GatherND", y, index), 1)


@in_half(longest=(2100,), count=3)
def _lengths_compared(b: Graph, r: Random, ids: str) -> str:
    """A condition on a length, as floats: 2049 is not 2048."""
    y = b.input("y", ("B", "S", HIDDEN))
    n = r.choice([2049, 2051])
    b.numbers = (n,)
    longer = b.op(r.choice(["Greater", "Equal"]), b.cast(b.length(ids), FLOAT), b.const(float(n - r.choice([0, 1]))))
    factor = b.op("Where", longer, b.const(2.0), b.const(1.0))
    return b.op("Mul", y, factor)


@in_half(longest=(100, 2100), count=3)
def _running_mean(b: Graph, r: Random, ids: str) -> str:
    """A running sum of y over the places so far."""
    y = b.input("y", ("B", "S", HIDDEN))
    count = b.unsqueeze(b.cast(b.op("Add", b.places(ids), b.ints(1)), FLOAT), 0, 2)
    return b.op("Div", b.op("CumSum", y, b.ints(1)), count)


@in_half(opset=(18,))
def _norms(b: Graph, r: Random, ids: str) -> str:
    """ReduceL2, ReduceSumSquare, ReduceLogSumExp and LpNormalization of loud and of quiet vectors."""
    y = b.op("Mul", b.input("y", ("B", "S", HIDDEN)), b.const(r.choice([1.0, 100.0, 1e-3])))
    how = r.randrange(4)
    if how == 0:
        return b.op("LpNormalization", y, axis=-1, p=2)
    op = ("ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")[how - 1]
    norm = b.op(op, y, b.ints([-1]), keepdims=1)
    norm = b.op("Sqrt", norm) if op == "ReduceSumSquare" else norm
    return b.op("Div", y, b.op("Add", b.op("Abs", norm), b.const(1e-6)))


@in_half(longest=(300, 2100), count=3)
def _powers(b: Graph, r: Random, ids: str) -> str:
    """Frequencies and slopes computed by Pow and Exp, places by division: sinusoids, ALiBi."""
    places = b.unsqueeze(b.cast(b.places(ids), FLOAT), 1)
    exponents = b.const(np.arange(HIDDEN, dtype=np.float32) / HIDDEN)
    if r.random() < 0.5:
        angles = b.op("Div", places, b.op("Pow", b.const(10000.0), exponents))
    else:
        angles = b.op("Mul", places, b.op("Exp", b.op("Mul", exponents, b.const(-np.log(10000.0)))))
    return b.unsqueeze(b.op(r.choice(["Sin", "Cos"]), angles), 0)


@in_half(longest=(300, 2100), count=3)
def _angles_by_product(b: Graph, r: Random, ids: str) -> str:
    """Angles by Einsum, or by MatMul of frequencies and places, both as exporters write rotary positions."""
    places = b.cast(b.places(ids), FLOAT)
    frequencies = b.const(1.0 / 10000 ** (np.arange(HIDDEN) / HIDDEN))
    if r.random() < 0.5:
        angles = b.op("Einsum", places, frequencies, equation="i,j->ij")
    else:
        angles = b.op("Transpose", b.op("MatMul", b.unsqueeze(frequencies, 1), b.unsqueeze(places, 0)), perm=[1, 0])
    both = b.op("Add", b.op("Cos", angles), b.op("Sin", angles))
    return b.unsqueeze(both, 0)


@in_half(longest=(2100,), count=3)
def _learned_places(b: Graph, r: Random, ids: str) -> str:
    """Positions RoBERTa's way in floats: CumSum of the mask times the mask, plus padding's number."""
    mask = b.cast(b.cast(b.ids("attention_mask"), BOOL), FLOAT)
    places = b.op("Add", b.op("Mul", b.op("CumSum", mask, b.ints(1)), mask), b.const(1.0))
    kind = r.choice([INT64, INT32])
    return b.op("Gather", _rows(b), b.cast(places, kind), axis=0)


@in_half()
def _packed_ids(b: Graph, r: Random, ids: str) -> str:
    """Two numbers in one: id * 64 + type, taken apart by Div and Floor in floats."""
    b.numbers = (2049, 5999)
    packed = b.op("Add", b.op("Mul", b.cast(ids, FLOAT), b.const(64.0)), b.const(3.0))
    index = b.cast(b.op("Floor", b.op("Div", packed, b.const(64.0))), INT64)
    return b.op("Gather", _rows(b, 6000), index, axis=0)


@in_half(opset=(17,))
def _hashed_ids(b: Graph, r: Random, ids: str) -> str:
    """Ids times a large number, modulo the table's rows, in floats (CANINE)."""
    prime = r.choice([31.0, 43.0, 59.0])
    numbers = b.op("Mul", b.op("Add", b.cast(b.op("Min", ids, b.ints(90)), FLOAT), b.const(1.0)), b.const(prime))
    index = b.cast(b.op("Mod", numbers, b.const(997.0), fmod=1), INT64)
    return b.op("Gather", _rows(b, 1000), index, axis=0)


@in_half(longest=(700,), count=3)
def _resized_places(b: Graph, r: Random, ids: str) -> str:
    """Positions spread over a shorter table: place * rows / length."""
    length = b.cast(b.length(ids), FLOAT)
    rows = r.choice([500.0, 2500.0])
    index = b.op("Floor", b.op("Div", b.op("Mul", b.cast(b.places(ids), FLOAT), b.const(rows)), length))
    return b.unsqueeze(b.op("Gather", _rows(b), b.cast(index, INT64), axis=0), 0)


@in_half(opset=(18,))
def _deviation(b: Graph, r: Random, ids: str) -> str:
    """A variance spelled out over the sequence, and a softmax of loud numbers written as Exp and sum."""
    y = b.op("Mul", b.input("y", ("B", "S", HIDDEN)), b.const(r.choice([1.0, 30.0])))
    if r.random() < 0.5:
        centred = b.op("Sub", y, b.op("ReduceMean", y, b.ints([1]), keepdims=1))
        variance = b.op("ReduceMean", b.op("Mul", centred, centred), b.ints([1]), keepdims=1)
        return b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.const(1e-6))))
    shifted = b.op("Exp", b.op("Sub", y, b.op("ReduceMax", y, b.ints([-1]), keepdims=1)))
    return b.op("Div", shifted, b.op("ReduceSum", shifted, b.ints([-1]), keepdims=1))


@in_half(opset=(17,), longest=(64, 2100), count=3)
def _sorted_lengths(b: Graph, r: Random, ids: str) -> str:
    """TopK of numbers of places, as floats: which of them come first."""
    numbers = b.cast(b.op("Add", b.places(ids), b.ints(r.choice([0, 5000]))), FLOAT)
    _, order = b.op("TopK", numbers, b.size(ids, 1), outputs=2, largest=0, sorted=1)
    return b.unsqueeze(b.op("Gather", _rows(b), order, axis=0), 0)


@in_half(opset=(17,), longest=(2100,), count=3)
def _drawn_from_constants(b: Graph, r: Random, ids: str) -> str:
    """A number of the graph that float16 does not have, by way of ConstantOfShape, Expand and Range of floats."""
    limit = b.cast(b.length(ids), FLOAT)
    if r.random() < 0.5:
        places = b.op("Range", b.const(0.0), limit, b.const(1.0))
    else:
        one = helper.make_tensor("value", FLOAT, [1], [1.0])
        places = b.op(
            "Sub", b.op("CumSum", b.op("ConstantOfShape", b.size(ids, 1), value=one), b.ints(0)), b.const(1.0)
        )
    return b.unsqueeze(b.op("Gather", _rows(b), b.cast(places, INT64), axis=0), 0)
