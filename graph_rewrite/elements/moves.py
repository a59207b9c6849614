"""Operators that arrange elements anew: which place of its input an element of the output comes from."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from . import poly
from .engine import RULES, Elements, Places
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


def unsqueezed_axes(elements: Elements, node: gs.Node) -> list[int]:
    axes = elements.numbers(node.inputs[1], node)
    rank = len(elements.shape(node.inputs[0])) + len(axes)
    return sorted(in_range(node, axis, rank) for axis in axes)


def _unsqueeze(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    axes = unsqueezed_axes(elements, node)
    return elements.element(node.inputs[0], tuple(p for axis, p in enumerate(places) if axis not in axes))


def squeezed_axes(elements: Elements, node: gs.Node) -> list[int]:
    shape = elements.shape(node.inputs[0])
    axes = elements.numbers(node.inputs[1], node) if len(node.inputs) > 1 and not node.inputs[1].is_empty() else []
    if axes:
        return sorted(in_range(node, axis, len(shape)) for axis in axes)
    if any(extent.constant is None for extent in shape):
        raise NoMatch(node, f"removes every axis of size 1 from {shape}", wanted="axes by number")
    return [axis for axis, extent in enumerate(shape) if extent == ONE]


def _squeeze(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = list(places)
    for axis in squeezed_axes(elements, node):
        own.insert(axis, ZERO)
    return elements.element(node.inputs[0], tuple(own))


def permutation(elements: Elements, node: gs.Node) -> list[int]:
    rank = len(elements.shape(node.inputs[0]))
    return list(node.attrs.get("perm", range(rank)[::-1]))


def _transpose(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = dict(zip(permutation(elements, node), places, strict=True))
    return elements.element(node.inputs[0], tuple(own[axis] for axis in range(len(places))))


# ---- axes merged and divided


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


def _expand(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    elements.check_broadcast([elements.shape(node.inputs[0]), elements.shape(node.outputs[output])], node)
    return elements.spread(node.inputs[0], places)


def _tile(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    own = []
    for place, extent in zip(places, elements.shape(node.inputs[0]), strict=True):
        found = poly.divided(place, extent)
        if found is None:
            raise NoMatch(node, f"repeats an axis of {extent!r}, in which place {place!r} is not found again")
        own.append(found[1])
    return elements.element(node.inputs[0], tuple(own))


RULES["Unsqueeze"] = _unsqueeze
RULES["Squeeze"] = _squeeze
RULES["Transpose"] = _transpose
RULES["Reshape"] = RULES["Flatten"] = _reshape
RULES["Expand"] = _expand
RULES["Tile"] = _tile
