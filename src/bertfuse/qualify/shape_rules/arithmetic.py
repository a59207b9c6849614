"""Numbers worked out from sizes: Shape, then arithmetic in several types, as exporters write shapes, and stranger."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from .draw import Draw
from .runtime import Refused

_COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_NARROW = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.UINT32, TensorProto.INT16,
           TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL,
           TensorProto.UINT64)  # fmt: skip


def vector(d: Draw, numbers: list[int]) -> str:
    """An int64 vector of these numbers, some of them from sizes."""
    if d.chance(0.25) and (whole := _like_a_shape(d, numbers)) is not None:
        return whole
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        if d.chance(0.35):
            take = d.r.randint(1, len(numbers) - at)
            parts.append(d.constant(np.array(numbers[at : at + take], np.int64)))
            at += take
        else:
            parts.append(_as_vector(d, scalar(d, numbers[at])))
            at += 1
    made = parts[0] if len(parts) == 1 and d.chance(0.8) else d.node("Concat", parts, axis=d.r.choice((0, -1)))
    if d.chance(0.15):
        made = _passed_on(d, made)
    return made


def _like_a_shape(d: Draw, numbers: list[int]) -> str | None:
    """The Shape of a tensor that has these sizes, or differs from one in a place that is then put right."""
    rank = len(numbers)
    found = d.tensors(lambda v: v.ndim == rank and sum(a != b for a, b in zip(v.shape, numbers, strict=True)) <= 1)
    found = [name for name in found if name not in d.constants]
    if not found or not rank:
        return None
    source = d.r.choice(found)
    made = shape_of(d, source)
    wrong = [i for i, (a, b) in enumerate(zip(d.shape(source), numbers, strict=True)) if a != b]
    for index in wrong:
        size, n = d.shape(source)[index], numbers[index]
        if d.chance(0.4):
            made = d.node(
                "ScatterND", [made, d.constant(np.array([[index]], np.int64)), d.constant(np.array([n], np.int64))]
            )
        elif size and n % size == 0 and d.chance(0.5):
            factors = np.ones(rank, np.int64)
            factors[index] = n // size
            made = d.node("Mul", [made, d.constant(factors)])
        else:
            more = np.zeros(rank, np.int64)
            more[index] = n - size
            made = d.node("Add", [made, d.constant(more)])
    return made


def shape_of(d: Draw, name: str) -> str:
    return d.node("Shape", [name])


def _as_vector(d: Draw, name: str) -> str:
    if d.rank(name) == 1:
        return name
    if d.chance(0.6):
        return d.node("Unsqueeze", [name, d.constant(np.array([d.r.choice((0, -1))], np.int64))])
    return d.node("Reshape", [name, d.constant(np.array([d.r.choice((1, -1))], np.int64))])


def _as_scalar(d: Draw, name: str) -> str:
    if d.rank(name) == 0:
        return name
    if d.chance(0.5):
        return d.node("Squeeze", [name] + ([d.constant(np.array([0], np.int64))] if d.chance(0.7) else []))
    if d.chance(0.5):
        return d.node("Gather", [name, d.constant(np.array(d.r.choice((0, -1)), np.int64))])
    return d.node("Reshape", [name, d.constant(np.array([], np.int64))])


def scalar(d: Draw, number: int) -> str:
    """A scalar of this value, worked out from sizes, with up to four steps between."""
    name = size(d)
    for _ in range(d.r.choices((0, 1, 2, 3), (5, 4, 2, 1))[0]):
        try:
            name = step(d, name)
        except Refused:
            continue
    return _as_scalar(d, _made(d, name, number))


def _made(d: Draw, name: str, number: int) -> str:
    """From a number of another value, by one more step, one of this value."""
    (value,) = d.value(name).reshape(-1).tolist()
    if value == number:
        return name
    ways: list[Callable[[], str]] = [
        lambda: d.node("Add", _either(d, name, _number(d, number - value))),
        lambda: d.node("Sub", [name, _number(d, value - number)]),
        lambda: d.node("Sub", [_number(d, number + value), name]),
    ]
    if value and number % value == 0:
        ways += 2 * [lambda: d.node("Mul", _either(d, name, _number(d, number // value)))]
    if number > 0 and value >= number > value - number:
        ways += 2 * [lambda: d.node("Div", [name, _number(d, value // number if value // (value // number) == number
                                                          else 1)])]  # fmt: skip
    if number >= 0 and value > number:
        ways.append(lambda: d.node("Mod", [name, _number(d, value - number)]))
        ways.append(lambda: d.node("Min", _either(d, name, _number(d, number))))
    if value < number:
        ways.append(lambda: d.node("Max", _either(d, name, _number(d, number))))
    ways.append(
        lambda: d.node("Where", [d.node(d.r.choice(("Less", "GreaterOrEqual")), [name, _number(d, 2)]), name, name])
    )
    for _ in range(4):
        made = d.r.choice(ways)()
        if d.value(made).reshape(-1).tolist() == [number]:
            return made
    return d.node("Add", [name, _number(d, number - value)])


def _either(d: Draw, a: str, b: str) -> list[str]:
    return [a, b] if d.chance(0.6) else [b, a]


def _number(d: Draw, number: int) -> str:
    array = np.array(number if d.chance(0.6) else [number], np.int64)
    return d.constant(array) if d.chance(0.93) else d.input(array, list(array.shape))


def size(d: Draw) -> str:
    """The size of an axis of some tensor (or of several, multiplied), an int64 scalar or vector of one."""
    found = d.tensors(lambda v: v.ndim > 0)
    moving = [name for name in found if name not in d.constants and d.rank(name) <= 5]
    name = d.r.choice(moving or found or [d.new([d.size(), d.size()])])
    rank = d.rank(name)
    axis = d.axis(rank)
    way = d.r.choice(("gather", "gather", "vector", "slice", "range", "split", "size", "prod", "elements"))
    if way == "range" and d.opset >= 15:
        end = axis + 1 or None
        start = axis if axis or d.chance(0.5) else None
        return d.node("Shape", [name], start=start, end=end if end != rank or d.chance(0.5) else None)
    if way == "size":
        return d.node("Size", [name])
    shape = shape_of(d, name)
    if way == "prod":
        dims = {"axes": [0]} if d.opset < 18 and d.chance(0.5) else {}
        return d.node("ReduceProd", [shape], keepdims=d.maybe(d.r.choice((0, 1))), **dims)
    if way == "slice":
        ends = [axis + 1] if axis != -1 else [d.r.choice((rank, 2**31 - 1, 2**63 - 1))]
        return d.node("Slice", [shape, *(d.constant(np.array(x, np.int64)) for x in ([axis], ends, [0]))])
    if way == "split" and rank > 1:
        parts = d.node("Split", [shape, d.constant(np.ones(rank, np.int64))], outputs=rank)
        return parts[axis]
    if way == "elements":
        return d.node("GatherElements", [shape, d.constant(np.array([axis], np.int64))])
    index = np.array([axis] if way == "vector" else axis, np.int64)
    return d.node("Gather", [shape, d.constant(index)], axis=d.maybe(0))


def step(d: Draw, name: str) -> str:
    """Some more arithmetic on a number, which stays an int64 of one element. Raises Refused."""
    made = d.r.choice(_STEPS)(d, name)
    if d.dtype(made) != np.int64 or d.value(made).size != 1 or abs(int(d.value(made).reshape(-1)[0])) > 1 << 20:
        raise Refused("no number")
    return made


def _with_number(d: Draw, name: str) -> str:
    op = d.r.choice(("Add", "Sub", "Mul", "Min", "Max", "Add", "Sub"))
    return d.node(op, _either(d, name, _number(d, d.r.choice((1, 2, 3, 4, -1, -2, 0, 7)))))


def _with_size(d: Draw, name: str) -> str:
    other = size(d)
    op = d.r.choice(("Add", "Sub", "Mul", "Min", "Max", "Sum", "Mean"))
    if op in ("Min", "Max") and d.chance(0.6):
        return d.node(op, [name, other, size(d)][:: d.r.choice((1, -1))])
    return d.node(op, _either(d, name, other))


def _divided(d: Draw, name: str) -> str:
    """Truncated, of negative numbers too; what divides is never 0, in whatever run."""
    op = d.r.choice(("Div", "Div", "Mod"))
    fmod = {"fmod": 1} if op == "Mod" and d.chance(0.3) else {}
    if d.chance(0.3):
        divisor = d.node("Max", [size(d), d.constant(np.array(1, np.int64))])
        return d.node(op, [name, divisor], **fmod)
    if d.chance(0.2):
        d.plan.positive = True
        source = d.tensors(lambda v: v.ndim > 0 and v.size > 0)
        inputs = {given.name for given in d.plan.inputs}
        source = [n for n in source if n in inputs]
        if source:
            chosen = d.r.choice(source)
            place = d.constant(np.array(d.r.randrange(d.rank(chosen)), np.int64))
            return d.node(op, [name, d.node("Gather", [shape_of(d, chosen), place])], **fmod)
    return d.node(op, [name, d.constant(np.array(d.r.choice((2, 3, 4, -2, -3, 1)), np.int64))], **fmod)


def _unary(d: Draw, name: str) -> str:
    op = d.r.choice(("Neg", "Abs", "Identity", "Sign", "Neg"))
    return d.node(op, [name])


def _through_floats(d: Draw, name: str) -> str:
    """float sizes: halves, roots, and their rounding."""
    element = d.r.choice((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT))
    dtype = np.float32 if element == TensorProto.FLOAT else np.float64
    made = d.node("Cast", [name], to=element)
    for _ in range(d.r.randint(1, 3)):
        op = d.r.choice(("Mul", "Div", "Add", "Sub", "Floor", "Ceil", "Round", "Sqrt", "Min", "Max", "Mod", "Pow"))
        if op in ("Floor", "Ceil", "Round", "Sqrt"):
            made = d.node(op, [made])
            continue
        more = {"fmod": 1} if op == "Mod" else {}
        if d.chance(0.2) and op not in ("Mod", "Pow"):
            other = d.node("Cast", [size(d)], to=element)
        else:
            other = d.constant(np.array(d.r.choice((0.5, 2.0, 1.5, 3.0, -0.5, 0.1, 2.5)), dtype))
        made = d.node(op, _either(d, made, other) if op not in ("Pow", "Mod", "Div") else [made, other], **more)
    if d.chance(0.4):
        made = d.node(d.r.choice(("Floor", "Ceil", "Round")), [made])
    if not np.isfinite(d.value(made)).all():
        raise Refused("not a number")
    return d.node("Cast", [made], to=TensorProto.INT64)


def _through_narrow(d: Draw, name: str) -> str:
    if d.chance(0.15):
        return d.group([("Cast", {"to": TensorProto.BFLOAT16}), ("Cast", {"to": TensorProto.INT64})], name)
    made = d.node("Cast", [name], to=d.r.choice(_NARROW))
    if d.chance(0.4) and d.dtype(made).kind in "iuf":
        with_other = d.constant(np.array(d.r.choice((1, 2, 3, 100)), d.dtype(made)))
        made = d.node(d.r.choice(("Add", "Mul", "Min", "Max")), [made, with_other])
    return d.node("Cast", [made], to=TensorProto.INT64)


def _compared(d: Draw, name: str) -> str:
    other = size(d) if d.chance(0.5) else _number(d, d.r.choice((0, 1, 2, 3, 5, -1)))
    told = d.node(d.r.choice(_COMPARISONS), [name, other])
    if d.chance(0.2):
        told = d.node("Not", [told])
    if d.chance(0.15):
        told = d.node(d.r.choice(("And", "Or", "Xor")), [told, d.constant(np.array(d.chance(0.5)))])
    if d.chance(0.3):
        return d.node("Cast", [told], to=TensorProto.INT64)
    return d.node("Where", [told, *_either(d, name, size(d) if d.chance(0.5) else _number(d, 4))])


def _compared_floats(d: Draw, name: str) -> str:
    made = d.node("Mul", [d.node("Cast", [name], to=TensorProto.FLOAT), d.constant(np.array(0.5, np.float32))])
    told = d.node(d.r.choice(_COMPARISONS), [made, d.constant(np.array(d.r.choice((1.0, 2.0, 2.5)), np.float32))])
    return d.node("Cast", [told], to=TensorProto.INT64)


def _counted(d: Draw, name: str) -> str:
    """The number of elements of a Range up to it."""
    start, delta = d.r.choice(((0, 1), (0, 2), (1, 1), (1, 3), (-2, 2)))
    scalars = [_as_scalar(d, name), d.constant(np.array(start, np.int64)), d.constant(np.array(delta, np.int64))]
    places = d.node("Range", [scalars[1], scalars[0], scalars[2]])
    if d.chance(0.3):
        return d.node("Size", [places])
    return d.node("ReduceSum", [places], keepdims=0) if d.chance(0.3) else d.node("Shape", [places])


def _among_several(d: Draw, name: str) -> str:
    """Joined with others in a vector, and one number taken from that."""
    parts = [_as_vector(d, name), _as_vector(d, size(d)), d.constant(np.array([d.r.choice((1, 2, 9))], np.int64))]
    d.r.shuffle(parts)
    joined = d.node("Concat", parts, axis=0)
    way = d.r.choice(("ReduceProd", "ReduceMax", "ReduceMin", "ReduceSum", "CumSum", "Gather", "Slice", "TopK", "Pad",
                      "Tile", "ArgMax", "Compress", "Split", "Reshape", "Transpose"))  # fmt: skip
    one = d.constant(np.array([d.r.randrange(-3, 3)], np.int64))
    if way.startswith("Reduce"):
        return d.node(way, [joined], keepdims=d.r.choice((0, 1)))
    if way == "ArgMax":
        return d.node(way, [joined], keepdims=d.r.choice((0, 1)))
    if way == "CumSum":
        zero = d.constant(np.array(0, np.int64))
        joined = d.node(way, [joined, zero], exclusive=d.maybe(1, 0.3), reverse=d.maybe(1, 0.3))
    elif way == "Slice":
        bounds = d.r.choice(
            (([-1], [-4], [0], [-1]), ([1], [9], [0], [1]), ([0], [2], [0], [1]), ([-5], [2], [-1], [1]))
        )
        joined = d.node(way, [joined, *(d.constant(np.array(x, np.int64)) for x in bounds)])
        return d.node("Gather", [joined, d.constant(np.array([0], np.int64))])
    elif way == "TopK":
        joined = d.node(way, [joined, d.constant(np.array([3], np.int64))], outputs=2)[d.r.randrange(2)]
    elif way == "Pad":
        joined = d.node(way, [joined, d.constant(np.array([1, 0], np.int64)), d.constant(np.array(2, np.int64))])
    elif way == "Tile":
        joined = d.node(way, [joined, d.constant(np.array([2], np.int64))])
    elif way == "Compress":
        return d.node(way, [joined, d.constant(np.roll([True, False, False], d.r.randrange(3)))], axis=d.maybe(0))
    elif way == "Split":
        return d.r.choice(d.node(way, [joined, d.constant(np.array([1, 1, 1], np.int64))], outputs=3))
    elif way == "Reshape":
        joined = d.node(way, [joined, d.constant(np.array([3, 1], np.int64))])
        return d.node("Squeeze", [d.node("Gather", [joined, one])])
    elif way == "Transpose":
        joined = d.node(way, [joined])
    return d.node("Gather", [joined, one])


_STEPS = (
    _with_number, _with_number, _with_size, _with_size, _divided, _divided, _unary, _through_floats, _through_floats,
    _through_narrow, _compared, _compared, _compared_floats, _counted, _among_several, _among_several,
)  # fmt: skip


def _passed_on(d: Draw, name: str) -> str:
    """The same vector, by way of something that does not change it here."""
    way = d.r.choice(("Cast", "Where", "Identity", "Reshape", "Slice", "Abs", "Expand", "Squeeze"))
    length = d.shape(name)[0]
    if way == "Cast":
        return d.node("Cast", [d.node("Cast", [name], to=TensorProto.INT32)], to=TensorProto.INT64)
    if way == "Where":
        told = d.node("Equal", [name, d.constant(np.array(-1, np.int64))])
        return d.node("Where", [told, name, name])
    if way == "Reshape":
        return d.node("Reshape", [name, d.constant(np.array([-1], np.int64))])
    if way == "Slice":
        return d.node("Slice", [name, d.constant(np.array([0], np.int64)), d.constant(np.array([length], np.int64))])
    if way == "Expand":
        return d.node("Expand", [name, d.constant(np.array([1], np.int64))])
    if way == "Squeeze":
        zero = d.constant(np.array([0], np.int64))
        return d.node("Squeeze", [d.node("Unsqueeze", [name, zero]), zero])
    if way == "Abs" and (d.value(name) < 0).any():
        way = "Identity"
    return d.node(way, [name])


def probe(d: Draw) -> None:
    """A tensor whose shape are the values of some small vector or number, so that what is said of them shows."""
    found = d.tensors(lambda v: v.dtype == np.int64 and v.ndim <= 1 and 0 < v.size <= 5)
    found = [name for name in found if name not in d.constants]
    if not found:
        raise Refused("nothing to probe")
    name = d.r.choice(found[-6:])
    value = d.value(name)
    if (value < 0).any() or d.chance(0.2):
        name = d.node("Max", [name, d.constant(np.array(d.r.choice((0, 1)), np.int64))])
    value = d.value(name)
    if np.prod(np.minimum(value, 10_000).astype(float)) > 1500:
        name = d.node("Min", [name, d.constant(np.array(d.r.choice((2, 3, 4)), np.int64))])
    name = _as_vector(d, name)
    way = d.r.random()
    if way < 0.6:
        d.node("ConstantOfShape", [name])
    elif way < 0.8:
        d.node("Expand", [d.new([1] * d.r.randrange(3)), name])
    else:
        d.node("Reshape", [d.node("ConstantOfShape", [name]), name])
