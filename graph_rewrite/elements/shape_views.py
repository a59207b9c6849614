"""The shapes of operators that arrange, join, part, look up and make elements; see shape_rules.py."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from . import poly
from .engine import Elements
from .moves import in_range, permutation, squeezed_axes, unsqueezed_axes
from .picks import cut, gather_nd_depth, range_bounds, shape_slice, slice_axes, split_axis
from .poly import ONE, ZERO, Poly, nonnegative
from .shape_table import optional_input, rule, shape_of_first

_NOT_GIVEN = poly.number(-1)


# ---- axes added, removed, exchanged, merged and divided


@rule("Unsqueeze")
def _unsqueeze(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    for axis in unsqueezed_axes(elements, node):
        shape.insert(axis, ONE)
    return shape


@rule("Squeeze")
def _squeeze(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    axes = squeezed_axes(elements, node)
    return [size for axis, size in enumerate(elements.shape(node.inputs[0])) if axis not in axes]


@rule("Transpose")
def _transpose(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = elements.shape(node.inputs[0])
    return [shape[axis] for axis in permutation(elements, node)]


@rule("Flatten")
def _flatten(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, axis = shape_of_first(elements, node), node.attrs.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [poly.product(shape[:axis]), poly.product(shape[axis:])]


@rule("Reshape")
def _reshape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    wanted = elements.numbers_known(node.inputs[1], node)
    try:
        given: list[Poly] | None = elements.shape(node.inputs[0])
    except NoMatch:
        given = None
    shape: list[Poly | None] = []
    for axis, size in enumerate(wanted):
        if size == ZERO and not node.attrs.get("allowzero", 0):
            size = given[axis] if given is not None else elements.unknown()  # 0 stands for the size that is given
        elif size is not None and size != _NOT_GIVEN and not _is_size(node, size, given, axis):
            size = None
        shape.append(elements.unknown() if size is None else size)
    if shape.count(_NOT_GIVEN) > 1:
        raise NoMatch(node, f"reshapes to {wanted}", wanted="one size at most that is left open")
    if _NOT_GIVEN in shape:
        rest = poly.quotient_of_products(given, [n for n in shape if n != _NOT_GIVEN]) if given is not None else None
        shape[shape.index(_NOT_GIVEN)] = elements.unknown() if rest is None else rest
    return shape


def _is_size(node: gs.Node, size: Poly, given: list[Poly] | None, axis: int) -> bool:
    """Whether a computed number is the size of the axis: 0 would stand for the size that is given, -1 for the rest."""
    if nonnegative(size - ONE) or (node.attrs.get("allowzero", 0) and nonnegative(size)):
        return True
    # Where no such axis is given, 0 is an error.
    return given is not None and nonnegative(size) and (axis >= len(given) or size == given[axis])


# ---- elements repeated, joined and parted


@rule("Expand")
def _expand(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    wanted = elements.numbers_known(node.inputs[1], node)
    wanted = [elements.unknown() if n is None or not nonnegative(n) else n for n in wanted]
    return elements.broadcast([shape_of_first(elements, node), wanted], node)


@rule("Tile")
def _tile(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    times = elements.numbers_known(node.inputs[1], node)
    return [
        elements.unknown() if n is None or not nonnegative(n) else size * n
        for size, n in zip(shape_of_first(elements, node), times, strict=True)
    ]


@rule("Concat")
def _concat(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shapes = [elements.shape(t) for t in node.inputs]
    axis = in_range(node, node.attrs["axis"], len(shapes[0]))
    # ONNX Runtime does not look at the other axes of a tensor without elements.
    full = [shape for shape in shapes if all(nonnegative(n - ONE) for n in shape)]
    made = []
    for other, sizes in enumerate(zip(*shapes, strict=True)):
        if other == axis:
            made.append(sum(sizes[1:], sizes[0]))
        elif len(set(sizes)) == 1:
            made.append(sizes[0])
        else:
            known = [shape[other] for shape in full]
            made.append(next((n for n in known if n.constant is not None), known[0]) if known else elements.unknown())
    return made


@rule("Split")
def _split(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    axis = split_axis(node, len(shape))
    sizes = optional_input(node, 1)
    if sizes is not None:
        size = elements.numbers_known(sizes, node)[output]
        shape[axis] = elements.unknown() if size is None or not nonnegative(size) else size
        return shape
    count = len(node.outputs)
    if shape[axis].constant is not None:  # equal parts, of which the last may be smaller
        part = -(-shape[axis].constant // count)
        size = part if output < count - 1 else shape[axis].constant - part * (count - 1)
        if size < 0:
            raise NoMatch(node, f"splits {shape[axis]} elements into {count}")
        shape[axis] = poly.number(size)
        return shape
    found = poly.divided(shape[axis], poly.number(count))
    shape[axis] = found[0] if found is not None and found[1] == ZERO else elements.unknown()
    return shape


@rule("Slice")
def _slice(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    starts, ends = (elements.numbers_known(t, node) for t in node.inputs[1:3])
    found = slice_axes(elements, node, len(shape), len(starts))
    if found is None:
        return [elements.unknown() for _ in shape]
    for start, end, (axis, step) in zip(starts, ends, found, strict=True):
        shape[axis] = _part(elements, node, start, end, shape[axis], step)
    return shape


def _part(elements: Elements, node: gs.Node, start: Poly | None, end: Poly | None, size: Poly, step: int) -> Poly:
    if None in (start, end, step):
        return elements.unknown()
    numbers = [n.constant for n in (start, end, size)]
    if None not in numbers and step > 0:
        return poly.number(len(range(numbers[2])[numbers[0] : numbers[1] : step]))
    try:
        return cut(node, start, end, size, step)[1]
    except NoMatch:
        return elements.unknown()


@rule("Pad")
def _pad(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    pads, tensor = elements.numbers_known(node.inputs[1], node), optional_input(node, 3)
    if tensor is not None and elements.constant(tensor) is None:
        return [elements.unknown() for _ in shape]
    axes = range(len(shape)) if tensor is None else elements.numbers(tensor, node)
    for before, after, axis in zip(pads[: len(axes)], pads[len(axes) :], axes, strict=True):
        axis = in_range(node, axis, len(shape))
        size = None if before is None or after is None else shape[axis] + before + after
        shape[axis] = elements.unknown() if size is None or not nonnegative(size) else size
    return shape


@rule("Resize")
def _resize(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return [elements.unknown() for _ in elements.shape(node.inputs[0])]


# ---- elements looked up


@rule("Gather")
def _gather(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, index = elements.shape(node.inputs[0]), elements.shape(node.inputs[1])
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    return [*shape[:axis], *index, *shape[axis + 1 :]]


@rule("GatherND")
def _gather_nd(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    batch, depth = gather_nd_depth(elements, node)
    return [*elements.shape(node.inputs[1])[:-1], *elements.shape(node.inputs[0])[batch + depth :]]


@rule("GatherElements")
def _gather_elements(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return elements.shape(node.inputs[1])


# ---- elements made


@rule("Shape")
def _shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    try:
        shape = elements.shape(node.inputs[0])
    except NoMatch:
        return [elements.unknown()]
    return [poly.number(len(shape[shape_slice(node, len(shape))]))]


@rule("Size")
def _size(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return []


@rule("Range")
def _range(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    try:
        start, limit, delta, _ = range_bounds(elements, node)
    except NoMatch:
        return [elements.unknown()]
    length = (limit - start) * poly.number(delta)
    return [length if nonnegative(length) else elements.unknown()]


@rule("ConstantOfShape")
def _constant_of_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    sizes = elements.numbers_known(node.inputs[0], node)
    return [elements.unknown() if n is None or not nonnegative(n) else n for n in sizes]


@rule("OneHot")
def _one_hot(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    axis = in_range(node, node.attrs.get("axis", -1), len(shape) + 1)
    return [*shape[:axis], elements.unknown(), *shape[axis:]]


@rule("EyeLike")
def _eye_like(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return shape_of_first(elements, node)


@rule("Constant")
def _constant(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    value = node.attrs.get("value")
    if isinstance(value, gs.Constant):
        return [poly.number(n) for n in value.shape]
    for name, value in node.attrs.items():
        if name in ("value_float", "value_int", "value_string"):
            return []
        if name in ("value_floats", "value_ints", "value_strings"):
            return [poly.number(len(value))]
    raise NoMatch(node, "holds a constant of no known shape")
