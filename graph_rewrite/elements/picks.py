"""Operators that pick elements, and those that make them: parts, look-ups, sizes, running numbers."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from . import poly
from .engine import RULES, Elements, Places
from .expr import Expr, Number, constant, made
from .moves import from_the_front, in_range
from .poly import ONE, ZERO, Poly, nonnegative
from .simplify import simplified

_BOOL = np.dtype(bool)
_TO_THE_END = (1 << 31) - 1


# ---- parts


def slice_axes(elements: Elements, node: gs.Node, rank: int, count: int) -> list[tuple[int, int | None]] | None:
    """Along which axes a Slice cuts, and in which steps, None for those not known; None where axes are computed."""
    given = [t if index < len(node.inputs) and not t.is_empty() else None for index, t in enumerate(node.inputs)]
    axes, steps = [*given[3:], None, None][:2]
    if axes is not None and elements.constant(axes) is None:
        return None
    numbers = list(range(count)) if axes is None else elements.numbers(axes, node)
    if steps is None:
        by = [1] * count
    else:
        by = [None] * count if elements.constant(steps) is None else elements.numbers(steps, node)
    return [(in_range(node, axis, rank), step) for axis, step in zip(numbers, by, strict=True)]


def _slices(elements: Elements, node: gs.Node) -> dict[int, tuple[Poly, Poly, int]]:
    """By axis: where it starts, how many elements it takes, the step."""
    shape = elements.shape(node.inputs[0])
    starts, ends = (elements.vector(t, node) for t in node.inputs[1:3])
    axes = slice_axes(elements, node, len(shape), len(starts))
    if axes is None or any(step is None for _, step in axes):
        raise NoMatch(node, "slices along axes or in steps that are computed", wanted="constant ones")
    return {
        axis: cut(node, start, end, shape[axis], step)
        for start, end, (axis, step) in zip(starts, ends, axes, strict=True)
    }


def cut(node: gs.Node, start: Poly, end: Poly, extent: Poly, step: int) -> tuple[Poly, Poly, int]:
    """Where a part of `extent` elements starts, how many it has, and the step between them."""
    if step == -1 and _beyond(start) and end.constant is not None and end.constant <= -_TO_THE_END:
        return extent - ONE, extent, -1
    first = _clamped(node, start, extent)
    length = _clamped(node, end, extent) - first
    if step < 1 or not nonnegative(length):
        raise NoMatch(node, f"slices {extent!r} elements from {start!r} to {end!r} by {step}", wanted="a part of them")
    if step > 1:
        length = poly.quotient(length + poly.number(step - 1), poly.number(step))
    return first, length, step


def _beyond(start: Poly) -> bool:
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


def _slice(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = list(places)
    for axis, (first, _, step) in _slices(elements, node).items():
        own[axis] = first + poly.number(step) * own[axis]
    return elements.element(node.inputs[0], tuple(own))


def split_axis(node: gs.Node, rank: int) -> int:
    return in_range(node, node.attrs.get("axis", 0), rank)


def _parts(elements: Elements, node: gs.Node, axis: int) -> list[Poly]:
    extent = elements.shape(node.inputs[0])[axis]
    if len(node.inputs) > 1 and not node.inputs[1].is_empty():
        return [poly.number(n) for n in elements.numbers(node.inputs[1], node)]
    count = len(node.outputs)
    if extent.constant is None or extent.constant % count:
        raise NoMatch(node, f"splits {extent!r} elements into {count}", wanted="equal parts of a known size")
    return [poly.number(extent.constant // count)] * count


def _split(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    axis = split_axis(node, len(places))
    before = sum(_parts(elements, node, axis)[:output], ZERO)
    own = list(places)
    own[axis] = own[axis] + before
    return elements.element(node.inputs[0], tuple(own))


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
    atom = poly.Atom(("index", elements.number_of(tensor), *places, extent), name, (ZERO,), (extent - ONE,))
    if elements.symbolic:
        elements.looked_up[atom] = found
    return poly.of(atom)


def _gather(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    data, index = node.inputs
    shape, rank = elements.shape(data), len(elements.shape(index))
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    row = _index(elements, node, index, places[axis : axis + rank], shape[axis])
    return elements.element(data, (*places[:axis], row, *places[axis + rank :]))


def gather_nd_depth(elements: Elements, node: gs.Node) -> tuple[int, int]:
    """How many leading axes data and indices share, and how many numbers make an index."""
    depth = elements.shape(node.inputs[1])[-1].constant
    if depth is None:
        raise NoMatch(node, "indices of an unknown number of axes")
    return node.attrs.get("batch_dims", 0), depth


def _gather_nd(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    data, index = node.inputs
    batch, depth = gather_nd_depth(elements, node)
    shape, rank = elements.shape(data), len(elements.shape(index)) - 1
    if shape[:batch] != elements.shape(index)[:batch]:
        raise NoMatch(node, f"takes elements of {shape} by {elements.shape(index)}", wanted=f"{batch} axes in common")
    at = [_index(elements, node, index, (*places[:rank], poly.number(i)), shape[batch + i]) for i in range(depth)]
    return elements.element(data, (*places[:batch], *at, *places[rank:]))


def _gather_elements(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    data, index = node.inputs
    shape = elements.shape(data)
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    row = _index(elements, node, index, places, shape[axis])
    return elements.element(data, (*places[:axis], row, *places[axis + 1 :]))


# ---- elements made


def shape_slice(node: gs.Node, rank: int) -> slice:
    return slice(node.attrs.get("start", 0), node.attrs.get("end", rank))


def _shape(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    shape = elements.shape(node.inputs[0])
    (place,) = places
    if place.constant is None:
        raise NoMatch(node, "sizes by a computed number of their axis")
    return Number(shape[shape_slice(node, len(shape))][place.constant], np.dtype(np.int64))


def _size(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    return Number(poly.product(elements.shape(node.inputs[0])), np.dtype(np.int64))


def range_bounds(elements: Elements, node: gs.Node) -> tuple[Poly, Poly, int, np.dtype]:
    found = [elements.element(t, tuple(ZERO for _ in elements.shape(t))) for t in node.inputs]
    start, limit, delta = (elements.number(e, node, t) for e, t in zip(found, node.inputs, strict=True))
    if delta.constant not in (1, -1):
        raise NoMatch(node, f"counts from {start!r} by {delta!r}", wanted="by 1")
    return start, limit, delta.constant, found[0].dtype


def _range(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    start, _, delta, dtype = range_bounds(elements, node)
    return Number(start + poly.number(delta) * places[0], dtype)


def _cumulated(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    """CumSum of a number that is the same along the axis: 1, 2, 3, ... of ones."""
    (axis,) = elements.numbers(node.inputs[1], node)
    axis = in_range(node, axis, len(places))
    extent = elements.shape(node.inputs[0])[axis]
    along = poly.place("along", extent, of_what=elements.number_of(node.outputs[output]))
    one = elements.element(node.inputs[0], (*places[:axis], along, *places[axis + 1 :]))
    if not isinstance(one, Number) or any(poly.depends_on(one.poly, atom) for atom in along.atoms):
        raise NoMatch(node, "adds up what differs from place to place")
    before = extent - ONE - places[axis] if node.attrs.get("reverse", 0) else places[axis]
    count = before if node.attrs.get("exclusive", 0) else before + ONE
    return elements.checked(node, Number(one.poly * count, one.dtype))


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
    if elements.symbolic:
        data = elements.element(node.inputs[0], places)
        zero = Number(ZERO, np.dtype(np.int64))
        kept = made("GreaterOrEqual" if upper else "LessOrEqual", (Number(after, zero.dtype), zero), _BOOL, node)
        return simplified(made("Where", (kept, data, constant(np.zeros((), data.dtype)[()])), data.dtype, node))
    raise NoMatch(node, f"keeps one side of a diagonal: {after!r} may be on either", wanted="the same for every place")


RULES["Slice"] = _slice
RULES["Split"] = _split
RULES["Concat"] = _concat
RULES["Gather"] = _gather
RULES["GatherND"] = _gather_nd
RULES["GatherElements"] = _gather_elements
RULES["Shape"] = _shape
RULES["Size"] = _size
RULES["Range"] = _range
RULES["ConstantOfShape"] = _constant_of_shape
RULES["CumSum"] = _cumulated
RULES["Trilu"] = _triangle
