"""Operators that arrange elements anew: which place of its input an element of the output comes from."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from . import poly
from .elements import RULES, SHAPES, Elements, Places
from .expr import Expr
from .poly import ONE, ZERO, Poly, nonnegative


def in_range(node: gs.Node, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise NoMatch(node, f"has axis {axis} of {rank}")
    return axis % rank


def from_the_front(node: gs.Node, place: Poly, extent: Poly, what: str) -> Poly:
    """A place that may be counted from the end."""
    if nonnegative(place):
        return place
    if nonnegative(-place - ONE):
        return place + extent
    raise NoMatch(node, f"{what} {place!r} may count from the front or from the end")


# ---- axes added, removed, exchanged


def _unsqueezed_axes(elements: Elements, node: gs.Node) -> list[int]:
    axes = elements.numbers(node.inputs[1], node)
    rank = len(elements.shape(node.inputs[0])) + len(axes)
    return sorted(in_range(node, axis, rank) for axis in axes)


def _unsqueeze_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = list(elements.shape(node.inputs[0]))
    for axis in _unsqueezed_axes(elements, node):
        shape.insert(axis, ONE)
    return shape


def _unsqueeze(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    axes = _unsqueezed_axes(elements, node)
    return elements.element(node.inputs[0], tuple(p for axis, p in enumerate(places) if axis not in axes))


def _squeezed_axes(elements: Elements, node: gs.Node) -> list[int]:
    shape = elements.shape(node.inputs[0])
    if len(node.inputs) > 1 and not node.inputs[1].is_empty():
        return sorted(in_range(node, axis, len(shape)) for axis in elements.numbers(node.inputs[1], node))
    if any(extent.constant is None for extent in shape):
        raise NoMatch(node, f"removes every axis of size 1 from {shape}", wanted="axes by number")
    return [axis for axis, extent in enumerate(shape) if extent == ONE]


def _squeeze_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    axes = _squeezed_axes(elements, node)
    return [n for axis, n in enumerate(elements.shape(node.inputs[0])) if axis not in axes]


def _squeeze(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = list(places)
    for axis in _squeezed_axes(elements, node):
        own.insert(axis, ZERO)
    return elements.element(node.inputs[0], tuple(own))


def _permutation(elements: Elements, node: gs.Node) -> list[int]:
    rank = len(elements.shape(node.inputs[0]))
    return list(node.attrs.get("perm", range(rank)[::-1]))


def _transpose_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = elements.shape(node.inputs[0])
    return [shape[axis] for axis in _permutation(elements, node)]


def _transpose(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = dict(zip(_permutation(elements, node), places, strict=True))
    return elements.element(node.inputs[0], tuple(own[axis] for axis in range(len(places))))


# ---- axes merged and divided


def _reshape_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    given, wanted = elements.shape(node.inputs[0]), elements.vector(node.inputs[1], node)
    shape: list[Poly | None] = []
    for axis, extent in enumerate(wanted):
        if extent == ZERO:
            if node.attrs.get("allowzero", 0):
                raise NoMatch(node, "gives a tensor without elements")
            extent = given[axis]
        elif extent != poly.number(-1) and not nonnegative(extent - ONE):
            raise NoMatch(node, f"reshapes to {wanted}", wanted="sizes that are known to be sizes")
        shape.append(None if extent == poly.number(-1) else extent)
    if None in shape:
        rest = poly.quotient_of_products(given, [n for n in shape if n is not None])
        if rest is None or shape.count(None) > 1:
            raise NoMatch(node, f"reshapes {given} to {wanted}", wanted="sizes that can be worked out")
        shape = [rest if n is None else n for n in shape]
    return shape


def _flatten_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, axis = elements.shape(node.inputs[0]), node.attrs.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [poly.product(shape[:axis]), poly.product(shape[axis:])]


def _reshape(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    given, made = elements.shape(node.inputs[0]), elements.shape(node.outputs[output])
    own = _at_same_number(node, given, made, places)
    return elements.element(node.inputs[0], tuple(own))


def _at_same_number(node: gs.Node, given: list[Poly], made: list[Poly], places: Places) -> list[Poly]:
    """The place in `given` of the element that is in `made` at `places`, both counted row by row."""
    long = [(n, p) for n, p in zip(made, places, strict=True) if n != ONE]
    if [n for n, _ in long] == [n for n in given if n != ONE]:
        left = iter([p for _, p in long])
        return [ZERO if n == ONE else next(left) for n in given]
    rest = ZERO
    for extent, place in zip(made, places, strict=True):
        rest = rest * extent + place
    own = []
    for axis in range(len(given)):
        found = poly.divided(rest, poly.product(given[axis + 1 :]))
        if found is None:
            raise NoMatch(node, f"reshapes {given} to {made}, in which place {rest!r} is not found again")
        own.append(found[0])
        rest = found[1]
    return own


# ---- elements repeated


def _expand_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return elements.broadcast([elements.shape(node.inputs[0]), elements.vector(node.inputs[1], node)], node)


def _expand(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    return elements.spread(node.inputs[0], places)


def _tile_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    times = elements.vector(node.inputs[1], node)
    if not all(nonnegative(n - ONE) for n in times):
        raise NoMatch(node, f"repeats {times} times", wanted="once or more")
    return [extent * n for extent, n in zip(elements.shape(node.inputs[0]), times, strict=True)]


def _tile(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = []
    for place, extent in zip(places, elements.shape(node.inputs[0]), strict=True):
        found = poly.divided(place, extent)
        if found is None:
            raise NoMatch(node, f"repeats an axis of {extent!r}, in which place {place!r} is not found again")
        own.append(found[1])
    return elements.element(node.inputs[0], tuple(own))


def add_rule(op: str, shape: Callable, element: Callable) -> None:
    """How to find the shape and the elements of an operator's output."""
    SHAPES[op], RULES[op] = shape, element


add_rule("Unsqueeze", _unsqueeze_shape, _unsqueeze)
add_rule("Squeeze", _squeeze_shape, _squeeze)
add_rule("Transpose", _transpose_shape, _transpose)
add_rule("Reshape", _reshape_shape, _reshape)
add_rule("Flatten", _flatten_shape, _reshape)
add_rule("Expand", _expand_shape, _expand)
add_rule("Tile", _tile_shape, _tile)
