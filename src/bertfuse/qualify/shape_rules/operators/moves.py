"""Operators that move elements: what they give are elements of what they are given."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, numpy_helper

from ..draw import INTS, Draw, shuffling
from ..runtime import Refused
from .registry import draws

_DATA = (np.float32, np.float32, np.int64, np.int32, np.float64, bool)


@draws("Concat")
def concat(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (1, 4))
    axis = d.axis(d.rank(name))
    names = [name]
    for _ in range(d.r.choices((0, 1, 2, 3), (1, 5, 3, 1))[0]):
        shape = list(d.shape(name))
        shape[axis] = d.size()
        names.append(d.fitting(shape, d.dtype(name)))
    d.r.shuffle(names)
    d.node(op, names, axis=axis)


@draws("Split")
def split(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (1, 4))
    axis = d.axis(d.rank(name))
    size = d.shape(name)[axis]
    given_axis = axis if axis != 0 or d.chance(0.5) else None
    count = d.r.randint(1, 4)
    if d.opset >= 18 and d.chance(0.5):
        d.node(op, [name], outputs=count, axis=given_axis, num_outputs=count)  # the last may be smaller
    elif d.chance(0.3) and size % count == 0 and d.opset < 18:
        d.node(op, [name], outputs=count, axis=given_axis)
    else:
        cuts = sorted(d.r.randint(0, size) for _ in range(count - 1))
        parts = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
        d.node(op, [name, d.ints(parts)], outputs=count, axis=given_axis)


def _bound(d: Draw, size: int) -> int:
    roll = d.r.random()
    if roll < 0.5:
        return d.r.randint(0, size)
    if roll < 0.75:
        return -d.r.randint(1, size + 1)
    return d.r.choice((size + 1, size + 5, -size - 3, 2**31 - 1, 2**63 - 1, -(2**63) + 1, -(2**31)))


@draws("Slice")
def slice_(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (1, 4))
    rank = d.rank(name)
    number = d.r.randint(0 if d.chance(0.1) else 1, min(rank, 2))
    axes = d.axes(rank, number, number) if d.chance(0.7) else None
    places = list(range(number)) if axes is None else axes
    starts, ends, steps = [], [], []
    for axis in places:
        size = d.shape(name)[axis]
        step = d.r.choice((1, 1, 1, 1, 2, 3, -1, -1, -2, 2**31, -(2**31)))
        start, end = _bound(d, size), _bound(d, size)
        for _ in range(3):  # empty results are rather rare
            if len(range(size)[slice(start, end, step)]):
                break
            start, end = _bound(d, size), _bound(d, size)
        starts.append(start)
        ends.append(end)
        steps.append(step)
    narrow = [x for x in (starts, ends, steps) if all(abs(n) < 2**31 for n in x)]
    if d.chance(0.1) and len(narrow) == 3:
        arrays = [np.array(x, np.int32) for x in (starts, ends, axes if axes is not None else places, steps)]
        d.node(op, [name, *(d.given(x, fixed=True) for x in arrays)])
        return
    inputs = [name, d.ints(starts), d.ints(ends)]
    inputs.append("" if axes is None else d.ints(axes))
    inputs.append(d.ints(steps) if any(s != 1 for s in steps) or d.chance(0.3) else "")
    d.node(op, inputs)


def indices(d: Draw, shape: list[int], size: int) -> str:
    """int64 or int32 places along an axis of that size, in any run whose axis is not empty."""
    if not size and math.prod(shape):
        raise Refused("nothing to index")
    dtype = d.r.choice((np.int64, np.int64, np.int32))
    low = d.r.choice((0, 0, -size))

    def fill(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
        return np.asarray(rng.integers(-1 if low else 0, 1, sizes), dtype)

    found = d.tensors(lambda v: v.shape == tuple(shape) and v.dtype == dtype and v.size and -size <= v.min()
                      and v.max() < size)  # fmt: skip
    if found and d.chance(0.3):
        return d.r.choice(found)
    array = np.asarray(d.plan.rng().integers(low, max(size, 1), shape), dtype)
    return d.input(array, None, fill) if d.chance(0.5) else d.constant(array)


@draws("Gather")
def gather(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (1, 4))
    axis = d.axis(d.rank(name))
    shape = [d.size() for _ in range(d.r.choice((0, 1, 1, 2, 2, 3)))]
    d.node(op, [name, indices(d, shape, d.shape(name)[axis])], axis=axis if axis or d.chance(0.5) else None)


@draws("GatherElements")
def gather_elements(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (1, 4))
    axis = d.axis(d.rank(name))
    shape = [n if d.chance(0.7) else d.r.randint(0, n) for n in d.shape(name)]
    shape[axis] = d.size()
    d.node(op, [name, indices(d, shape, d.shape(name)[axis])], axis=axis if axis or d.chance(0.5) else None)


def _tuples(d: Draw, data: str, leading: list[int], batch: int, depth: int) -> str:
    sizes = d.shape(data)[batch : batch + depth]
    if 0 in sizes and math.prod(leading):
        raise Refused("nothing to index")
    array = np.stack([d.plan.rng().integers(0, max(n, 1), leading) for n in sizes], axis=-1).astype(np.int64)

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(-rng.integers(0, 2, shape), np.int64)

    return d.input(array, None, fill) if d.chance(0.6) else d.constant(array)


@draws("GatherND")
def gather_nd(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (1, 4))
    rank = d.rank(name)
    batch = d.r.randint(0, min(2, rank - 1))
    depth = d.r.randint(1, rank - batch)
    leading = list(d.shape(name)[:batch]) + [d.size() for _ in range(d.r.choice((0, 0, 1, 1, 2)))]
    places = _tuples(d, name, leading, batch, depth)
    d.node(op, [name, places], batch_dims=batch if batch or d.chance(0.3) else None)


@draws("ScatterND")
def scatter_nd(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64), (1, 4))
    depth = d.r.randint(1, d.rank(name))
    leading = [d.size() for _ in range(d.r.choice((0, 1, 1, 2)))]
    updates = d.new([*leading, *d.shape(name)[depth:]], d.dtype(name))
    attrs = {}
    if d.opset >= 16:
        attrs["reduction"] = d.maybe(d.r.choice(("none", "add", "mul", *(("max", "min") if d.opset >= 18 else ()))))
    d.node(op, [name, _tuples(d, name, leading, 0, depth), updates], **attrs)


@draws("ScatterElements")
def scatter_elements(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64), (1, 4))
    axis = d.axis(d.rank(name))
    shape = [n if d.chance(0.7) else d.r.randint(0, n) for n in d.shape(name)]
    shape[axis] = d.r.randint(0, d.shape(name)[axis])
    places = indices(d, shape, d.shape(name)[axis])
    attrs = {}
    if d.opset >= 16:
        attrs["reduction"] = d.maybe(d.r.choice(("none", "add", "mul", *(("max", "min") if d.opset >= 18 else ()))))
    d.node(op, [name, places, d.new(shape, d.dtype(name))], axis=d.maybe(axis) if axis == 0 else axis, **attrs)


@draws("TensorScatter")
def tensor_scatter(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,), (3, 4), lambda v: v.size > 0)
    axis = d.r.randrange(1, d.rank(name))
    shape = list(d.shape(name))
    shape[axis] = d.r.randint(1, shape[axis])
    inputs = [name, d.new(shape)]
    if d.chance(0.6):
        inputs.append(d.constant(np.zeros(shape[0], np.int64)))
    axis = axis - d.rank(name) if d.chance(0.5) else axis
    d.node(op, inputs, axis=axis if axis != -2 or d.chance(0.5) else None,
           mode=d.maybe(d.r.choice(("linear", "circular"))))  # fmt: skip


@draws("Transpose")
def transpose(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (0, 5))
    d.node(op, [name], perm=d.maybe(d.r.sample(range(d.rank(name)), d.rank(name)), 0.8))


@draws("Flatten")
def flatten(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64), (0, 4))
    rank = d.rank(name)
    d.node(op, [name], axis=d.maybe(d.r.randint(-rank, rank), 0.7))


@draws("Squeeze")
def squeeze(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (0, 4), lambda v: 1 in v.shape or v.ndim < 2)
    ones = [axis for axis, n in enumerate(d.shape(name)) if n == 1]
    if d.chance(0.4):
        d.node(op, [name])
        return
    chosen = d.r.sample(ones, d.r.randint(0 if d.chance(0.2) else min(1, len(ones)), len(ones)))
    d.node(op, [name, d.ints([a - d.rank(name) if d.chance(0.3) else a for a in chosen])])


@draws("Unsqueeze")
def unsqueeze(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (0, 3))
    more = d.r.randint(0 if d.chance(0.1) else 1, 2)
    d.node(op, [name, d.ints(d.axes(d.rank(name) + more, more, more))])


def factors(d: Draw, size: int, number: int) -> list[int]:
    """That many numbers with this product."""
    made = [1] * number
    for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23):
        while size > 1 and size % prime == 0 and number:
            size //= prime
            made[d.r.randrange(number)] *= prime
    if number:
        made[d.r.randrange(number)] *= size
    return made


@draws("Reshape")
def reshape(d: Draw, op: str) -> None:
    name = d.tensor(_DATA, (0, 5))
    shape, size = list(d.shape(name)), math.prod(d.shape(name))
    allow_zero = d.opset >= 14 and d.chance(0.25)
    roll = d.r.random()
    if roll < 0.3 and len(shape) > 1:  # two axes become one, or one becomes two
        at = d.r.randrange(len(shape) - 1)
        wanted = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    elif roll < 0.6 and shape:
        at = d.r.randrange(len(shape))
        wanted = [*shape[:at], *factors(d, shape[at], 2), *shape[at + 1 :]]
    else:
        wanted = factors(d, size, d.r.randint(0 if size == 1 else 1, 4))
    if not size and math.prod(wanted):
        wanted[d.r.randrange(len(wanted))] = 0
    if d.chance(0.4) and wanted and (not allow_zero or 0 not in wanted):
        wanted[d.r.randrange(len(wanted))] = -1
    for at in range(min(len(wanted), len(shape))):
        if wanted[at] == shape[at] and d.chance(0.25) and not (allow_zero and -1 in wanted):
            wanted[at] = 0
    attrs = {"allowzero": 1} if allow_zero else {"allowzero": d.maybe(0, 0.1)} if d.opset >= 14 else {}
    d.node(op, [name, d.ints(wanted)], **attrs)


@draws("Expand")
def expand(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.int32), (0, 4))
    shape = [d.size() if n == 1 and d.chance(0.7) else 1 if d.chance(0.3) else n for n in d.shape(name)]
    if d.chance(0.3):
        shape = [d.size(), *shape]
    elif d.chance(0.2):
        shape = shape[d.r.randrange(len(shape) + 1) :]
    d.node(op, [name, d.ints(shape)])


@draws("Tile")
def tile(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64), (0, 4))
    d.node(op, [name, d.ints([d.r.choice((1, 1, 2, 3, 0 if d.chance(0.1) else 1)) for _ in d.shape(name)])])


@draws("Pad")
def pad(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.float64), (1, 4))
    rank = d.rank(name)
    mode = d.r.choice(("constant", "constant", None, "edge", "reflect", *(("wrap",) if d.opset >= 19 else ())))
    low = -1 if mode in ("constant", None) else 0
    axes = d.axes(rank) if d.opset >= 18 and d.chance(0.5) else None
    amounts = [d.r.choice((0, 0, 1, 2, low)) for _ in range(2 * (rank if axes is None else len(axes)))]
    if mode in ("reflect", "wrap", "edge"):
        amounts = [min(n, 1) for n in amounts]
    inputs = [name, d.ints(amounts)]
    inputs.append(d.given(np.array(1, d.dtype(name))) if d.chance(0.4) else "")
    if axes is not None:
        inputs.append(d.given(np.array(axes, d.r.choice(INTS)), shuffling(axes), fixed=True))
    d.node(op, inputs, mode=mode)


@draws("CenterCropPad")
def center_crop_pad(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64), (1, 4))
    rank = d.rank(name)
    axes = d.axes(rank, 1) if d.chance(0.6) else None
    d.node(op, [name, d.ints([d.size() for _ in (axes if axes is not None else range(rank))])], axes=axes)


@draws("DepthToSpace")
def depth_to_space(d: Draw, op: str) -> None:
    block = d.r.choice((1, 2, 2, 3))
    name = d.tensor((np.float32,), 4, lambda v: v.shape[1] and v.shape[1] % block**2 == 0, old=0.4) if d.chance(
        0.2) else d.new([d.size(), block**2 * d.r.choice((1, 2)), d.size(), d.size()])  # fmt: skip
    d.node(op, [name], blocksize=block, mode=d.maybe(d.r.choice(("DCR", "CRD"))))


@draws("SpaceToDepth")
def space_to_depth(d: Draw, op: str) -> None:
    block = d.r.choice((1, 2, 2, 3))
    name = d.new([d.size(), d.size(), block * d.r.choice((1, 2)), block * d.r.choice((1, 2, 3))])
    d.node(op, [name], blocksize=block)


@draws("Shape")
def shape(d: Draw, op: str) -> None:
    name = d.tensor((*_DATA, np.float16), (0, 5))
    attrs = {}
    if d.opset >= 15:
        reach = d.rank(name) + 2
        attrs = {"start": d.maybe(d.r.randint(-reach, reach)), "end": d.maybe(d.r.randint(-reach, reach))}
    d.node(op, [name], **attrs)


@draws("Size")
def size(d: Draw, op: str) -> None:
    d.node(op, [d.tensor(_DATA, (0, 5))])


@draws("ConstantOfShape")
def constant_of_shape(d: Draw, op: str) -> None:
    dtype = d.r.choice((np.float32, np.int64, np.int32, bool, np.float64))
    value = numpy_helper.from_array(np.array([d.r.choice((0, 1, 2, 3))], dtype), "value")
    d.node(op, [d.ints([d.size() for _ in range(d.r.randint(0, 3))])], value=d.maybe(value, 0.7))


@draws("Constant")
def constant(d: Draw, op: str) -> None:
    shape = [d.size() for _ in range(d.r.randrange(3))]
    roll = d.r.random()
    array = d.array(shape, d.r.choice((np.float32, np.int64, np.float32, bool)))
    if roll < 0.1:
        d.node(op, [], value_strings=["a", "b"])
    elif roll < 0.2:
        d.node(op, [], value_string="a")
    else:
        d.node(op, [], **d._constant_attribute(array))


@draws("Range")
def range_(d: Draw, op: str) -> None:
    dtype = d.r.choice((np.int64, np.int64, np.int64, np.int32, np.float32, np.float64))
    if np.dtype(dtype).kind == "f":
        start, delta = d.r.choice((0.0, 0.5, 1.0, -1.5)), d.r.choice((1.0, 0.5, 2.0, 1.5, -1.0, 0.1))
        limit = start + delta * d.r.choice((0, 1, 2.5, 3, 4.5, 5.5, -1))
        numbers = (start, limit, delta)
        if d.chance(0.3):
            whole = d.node("Cast", [d.integer(d.r.randint(1, 7))], to=TensorProto.FLOAT)
            factor = d.constant(np.array(d.r.choice((0.5, 1.5, 1.0)), np.float32))
            inputs = [d.constant(np.array(0, np.float32)), d.node("Mul", [whole, factor]),
                      d.constant(np.array(abs(delta), np.float32))]  # fmt: skip
            d.node(op, inputs)
            return
        d.node(op, [d.given(np.array(n, dtype), fixed=True) for n in numbers])
        return
    delta = d.r.choice((1, 1, 1, 2, 3, -1, -2))
    start = d.r.choice((0, 0, 1, -2, d.r.randint(0, 7)))
    limit = start + delta * d.r.randint(-1, 6) + d.r.choice((0, 0, 1))
    d.node(op, [d.integer(n, dtype=dtype) for n in (start, limit, delta)])


@draws("Col2Im")
def col_to_image(d: Draw, op: str) -> None:
    block = [d.r.choice((1, 2)), d.r.choice((1, 2))]
    image = [d.r.choice((2, 3, 4)), d.r.choice((2, 3, 5))]
    strides = d.maybe([d.r.choice((1, 2)) for _ in range(2)])
    dilations = d.maybe([d.r.choice((1, 2)) for _ in range(2)], 0.3)
    pads = d.maybe([d.r.randrange(2) for _ in range(4)], 0.3)
    length = 1
    for axis in range(2):
        whole = image[axis] + (pads[axis] + pads[axis + 2] if pads else 0)
        reach = (dilations[axis] if dilations else 1) * (block[axis] - 1) + 1
        length *= (whole - reach) // (strides[axis] if strides else 1) + 1
    name = d.new([d.size(), d.r.choice((1, 2)) * math.prod(block), length])
    d.node(op, [name, d.ints(image), d.ints(block)], strides=strides, dilations=dilations, pads=pads)
