"""Operators that pick elements, and those that make them: parts, look-ups, sizes, running numbers."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from . import poly
from .elements import Elements, Places
from .expr import Expr, Number, constant
from .moves import add_rule, from_the_front, in_range
from .poly import ONE, ZERO, Poly, nonnegative

_TO_THE_END = (1 << 31) - 1


# ---- parts


def _slices(elements: Elements, node: gs.Node) -> dict[int, tuple[Poly, Poly, int]]:
    """By axis: where it starts, how many elements it takes, the step."""
    shape = elements.shape(node.inputs[0])
    starts, ends = (elements.vector(t, node) for t in node.inputs[1:3])
    rest = [elements.numbers(t, node) if not t.is_empty() else None for t in node.inputs[3:]]
    axes = rest[0] if rest and rest[0] is not None else range(len(starts))
    steps = rest[1] if len(rest) > 1 and rest[1] is not None else [1] * len(starts)
    cuts = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = in_range(node, axis, len(shape))
        cuts[axis] = _cut(node, start, end, shape[axis], step)
    return cuts


def _cut(node: gs.Node, start: Poly, end: Poly, extent: Poly, step: int) -> tuple[Poly, Poly, int]:
    if step == -1 and _beyond(start, 1, extent) and end.constant is not None and end.constant <= -_TO_THE_END:
        return extent - ONE, extent, -1
    first = _clamped(node, start, extent)
    length = _clamped(node, end, extent) - first
    if step < 1 or not nonnegative(length):
        raise NoMatch(node, f"slices {extent!r} elements from {start!r} to {end!r} by {step}", wanted="a part of them")
    if step > 1:
        found = poly.divided(length + poly.number(step - 1), poly.number(step))
        if found is None:
            raise NoMatch(node, f"takes one in {step} of {length!r} elements", wanted="a number that is known")
        length = found[0]
    return first, length, step


def _beyond(start: Poly, step: int, extent: Poly) -> bool:
    return start == poly.number(-1) or (start.constant is not None and start.constant >= _TO_THE_END)


def _clamped(node: gs.Node, bound: Poly, extent: Poly) -> Poly:
    if bound.constant is not None and bound.constant >= _TO_THE_END:
        return extent
    if bound.constant is not None and bound.constant <= -_TO_THE_END:
        return ZERO
    bound = from_the_front(node, bound, extent, "a bound")
    if not nonnegative(bound):
        raise NoMatch(node, f"a bound {bound!r} may lie before the first element")
    return poly.minimum(bound, extent)


def _slice_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = list(elements.shape(node.inputs[0]))
    for axis, (_, length, _step) in _slices(elements, node).items():
        shape[axis] = length
    return shape


def _slice(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = list(places)
    for axis, (first, _, step) in _slices(elements, node).items():
        own[axis] = first + poly.number(step) * own[axis]
    return elements.element(node.inputs[0], tuple(own))


def _parts(elements: Elements, node: gs.Node, axis: int) -> list[Poly]:
    extent = elements.shape(node.inputs[0])[axis]
    if len(node.inputs) > 1 and not node.inputs[1].is_empty():
        return [poly.number(n) for n in elements.numbers(node.inputs[1], node)]
    count = len(node.outputs)
    if extent.constant is None or extent.constant % count:
        raise NoMatch(node, f"splits {extent!r} elements into {count}", wanted="equal parts of a known size")
    return [poly.number(extent.constant // count)] * count


def _split_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = list(elements.shape(node.inputs[0]))
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    shape[axis] = _parts(elements, node, axis)[output]
    return shape


def _split(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    axis = in_range(node, node.attrs.get("axis", 0), len(places))
    before = sum(_parts(elements, node, axis)[:output], ZERO)
    own = list(places)
    own[axis] = own[axis] + before
    return elements.element(node.inputs[0], tuple(own))


def _concat_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shapes = [elements.shape(t) for t in node.inputs]
    shape = list(shapes[0])
    axis = in_range(node, node.attrs["axis"], len(shape))
    shape[axis] = sum((other[axis] for other in shapes[1:]), shape[axis])
    return shape


def _concat(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    axis, before = in_range(node, node.attrs["axis"], len(places)), ZERO
    for tensor in node.inputs:
        extent = elements.shape(tensor)[axis]
        place = places[axis] - before
        if nonnegative(place) and nonnegative(extent - ONE - place):
            return elements.element(tensor, (*places[:axis], place, *places[axis + 1 :]))
        before = before + extent
    raise NoMatch(node, f"joins tensors along axis {axis}, of which place {places[axis]!r} may be in any")


# ---- elements looked up


def _index(elements: Elements, node: gs.Node, tensor: gs.Tensor, places: Places, extent: Poly) -> Poly:
    """The place that an index says: some place along the axis where that depends on what the model is fed."""
    found = elements.element(tensor, places)
    if isinstance(found, Number):
        return from_the_front(node, found.poly, extent, "the place")
    at = ", ".join(place.text(exact=True) for place in places)
    name = f"'{tensor.name}'[{at}]<{extent.text(exact=True)}"
    return poly.of(poly.Atom(name, (ZERO,), (extent - ONE,)))


def _gather_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, index = elements.shape(node.inputs[0]), elements.shape(node.inputs[1])
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    return [*shape[:axis], *index, *shape[axis + 1 :]]


def _gather(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    data, index = node.inputs
    shape, rank = elements.shape(data), len(elements.shape(index))
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    row = _index(elements, node, index, places[axis : axis + rank], shape[axis])
    return elements.element(data, (*places[:axis], row, *places[axis + rank :]))


def _gather_nd_depth(elements: Elements, node: gs.Node) -> tuple[int, int]:
    """How many leading axes data and indices share, and how many numbers make an index."""
    depth = elements.shape(node.inputs[1])[-1].constant
    if depth is None:
        raise NoMatch(node, "indices of an unknown number of axes")
    return node.attrs.get("batch_dims", 0), depth


def _gather_nd_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    batch, depth = _gather_nd_depth(elements, node)
    return [*elements.shape(node.inputs[1])[:-1], *elements.shape(node.inputs[0])[batch + depth :]]


def _gather_nd(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    data, index = node.inputs
    batch, depth = _gather_nd_depth(elements, node)
    shape, rank = elements.shape(data), len(elements.shape(index)) - 1
    at = [_index(elements, node, index, (*places[:rank], poly.number(i)), shape[batch + i]) for i in range(depth)]
    return elements.element(data, (*places[:batch], *at, *places[rank:]))


def _gather_elements(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    data, index = node.inputs
    shape = elements.shape(data)
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    row = _index(elements, node, index, places, shape[axis])
    return elements.element(data, (*places[:axis], row, *places[axis + 1 :]))


# ---- elements made


def _shape_slice(node: gs.Node, rank: int) -> slice:
    return slice(node.attrs.get("start", 0), node.attrs.get("end", rank))


def _shape(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    shape = elements.shape(node.inputs[0])
    (place,) = places
    if place.constant is None:
        raise NoMatch(node, "sizes by a computed number of their axis")
    return Number(shape[_shape_slice(node, len(shape))][place.constant], np.dtype(np.int64))


def _shape_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = elements.shape(node.inputs[0])
    return [poly.number(len(shape[_shape_slice(node, len(shape))]))]


def _size(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    return Number(poly.product(elements.shape(node.inputs[0])), np.dtype(np.int64))


def _range_bounds(elements: Elements, node: gs.Node) -> tuple[Poly, Poly, int, np.dtype]:
    found = [elements.element(t, tuple(ZERO for _ in elements.shape(t))) for t in node.inputs]
    start, limit, delta = (elements.number(e, node, t) for e, t in zip(found, node.inputs, strict=True))
    if delta.constant not in (1, -1):
        raise NoMatch(node, f"counts from {start!r} by {delta!r}", wanted="by 1")
    return start, limit, delta.constant, found[0].dtype


def _range_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    start, limit, delta, _ = _range_bounds(elements, node)
    length = (limit - start) * poly.number(delta)
    if not nonnegative(length):
        raise NoMatch(node, f"counts from {start!r} to {limit!r}, which may be backwards")
    return [length]


def _range(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    start, _, delta, dtype = _range_bounds(elements, node)
    return Number(start + poly.number(delta) * places[0], dtype)


def _cumulated(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    """CumSum of a number that is the same along the axis: 1, 2, 3, ... of ones."""
    (axis,) = elements.numbers(node.inputs[1], node)
    axis = in_range(node, axis, len(places))
    extent = elements.shape(node.inputs[0])[axis]
    along = poly.place(f"along {node.name}", extent)
    one = elements.element(node.inputs[0], (*places[:axis], along, *places[axis + 1 :]))
    if not isinstance(one, Number) or one.poly.atoms & along.atoms:
        raise NoMatch(node, "adds up what differs from place to place")
    before = extent - ONE - places[axis] if node.attrs.get("reverse", 0) else places[axis]
    count = before if node.attrs.get("exclusive", 0) else before + ONE
    return elements.checked(node, Number(one.poly * count, one.dtype))


def _constant_of_shape_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = elements.vector(node.inputs[0], node)
    if not all(nonnegative(n) for n in shape):
        raise NoMatch(node, f"makes a tensor of {shape}")
    return shape


def _constant_of_shape(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    value = node.attrs.get("value")
    return constant(np.float32(0) if value is None else np.asarray(value.values).reshape(-1)[0])


def _triangle(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    """Trilu, where it is known on which side of the diagonal the place lies."""
    diagonal = (
        elements.numbers(node.inputs[1], node)[0] if len(node.inputs) > 1 and not node.inputs[1].is_empty() else 0
    )
    after = places[-1] - places[-2] - poly.number(diagonal)  # how far right of the diagonal
    upper = node.attrs.get("upper", 1)
    for kept, sign in ((bool(upper), 1), (not upper, -1)):
        # On the diagonal itself both keep.
        beyond = after if sign > 0 else -after
        if kept and nonnegative(beyond):
            return elements.element(node.inputs[0], places)
        if not kept and nonnegative(beyond - ONE):
            data = elements.element(node.inputs[0], places)
            return constant(np.zeros((), data.dtype)[()])
    raise NoMatch(node, f"keeps one side of a diagonal: {after!r} may be on either", wanted="the same for every place")


add_rule("Slice", _slice_shape, _slice)
add_rule("Split", _split_shape, _split)
add_rule("Concat", _concat_shape, _concat)
add_rule("Gather", _gather_shape, _gather)
add_rule("GatherND", _gather_nd_shape, _gather_nd)
add_rule("GatherElements", lambda elements, node, output: elements.shape(node.inputs[1]), _gather_elements)
add_rule("Shape", _shape_shape, _shape)
add_rule("Size", lambda elements, node, output: [], _size)
add_rule("Range", _range_shape, _range)
add_rule("ConstantOfShape", _constant_of_shape_shape, _constant_of_shape)
add_rule("CumSum", lambda elements, node, output: elements.shape(node.inputs[0]), _cumulated)
add_rule("Trilu", lambda elements, node, output: elements.shape(node.inputs[0]), _triangle)
