"""GELU however it is spelled: the element-wise region around an Erf or Tanh has GELU's coefficients.

A region is looked for by running it on a grid; that it is GELU, everywhere, follows from its polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import GELU
from ..dialect.reference import Reference
from ..domains import MICROSOFT, called
from ..graph import FusionGraph
from ..nodes import NoMatch, check_rank, node_name, producer, scalar
from . import polynomial

MICROSOFTS = (_, _FAST) = called(MICROSOFT, "Gelu", "FastGelu")
_GRID = np.concatenate([np.linspace(-9, 9, 181), [0.1234567, -0.7654321]])
_UNARY = {
    "Erf": np.vectorize(math.erf, otypes=[np.float64]),
    "Tanh": np.tanh,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
}
_BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
_GELUS = {kind: Reference().gelu(_GRID, kind) for kind in ("none", "tanh")}
# What rounding the spelled-out constants to the element type may do; the two GELUs differ by 4.7e-4 themselves.
_TOLERANCES = {"float16": 2e-4, "bfloat16": 1e-3}
_DEFAULT_TOLERANCE = 1e-5
# Relative, of coefficients: what rounding two constants to the type makes of their product.
_COEFFICIENTS = {"float16": 1.2e-3, "bfloat16": 8e-3}
_DEFAULT_COEFFICIENT = 3e-5
_MAX_STEPS = 16


def anchors(graph: FusionGraph) -> list[gs.Node]:
    return [*graph.nodes("Erf", "Tanh"), *graph.nodes("Gelu"), *graph.nodes(*MICROSOFTS, domain=MICROSOFT)]


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    if node.op in ("Gelu", *MICROSOFTS):
        _named(graph, node)
        return
    nearest, last = math.inf, node
    for x in _sources(node):
        for root, region in _growing(graph, node, x):
            last = root
            kind, deviation = _compare(root.outputs[0], x)
            near = deviation < _TOLERANCES.get(str(x.dtype), _DEFAULT_TOLERANCE)
            if near and _is_gelu(root.outputs[0], x, node, kind):
                check_rank(root, x)
                graph.replace(root, GELU, [x], interior=region, approximate=kind)
                return
            nearest = min(nearest, deviation)
            if near:
                raise NoMatch(root, "is near GELU, but another function", wanted="x/2 (1 + erf(x/sqrt(2))) for every x")
    if node.op == "Tanh":
        raise NoMatch(node, "a plain Tanh", wanted="a GELU")
    raise NoMatch(
        last,
        f"the region around {node_name(node)} is off GELU by {nearest:.3g}",
        "check the constants",
        wanted="x/2 (1 + erf(x/sqrt(2)))",
    )


def _is_gelu(result: gs.Tensor, x: gs.Tensor, anchor: gs.Node, kind: str) -> bool:
    """Whether `result` is x/2 + x/2 f, f being the anchor's function of GELU's argument."""
    root = math.sqrt(2 / math.pi)
    argument = {(1, 0): math.sqrt(0.5)} if kind == "none" else {(1, 0): root, (3, 0): 0.044715 * root}
    tolerance = _COEFFICIENTS.get(str(x.dtype), _DEFAULT_COEFFICIENT)
    return (
        anchor.op == ("Erf" if kind == "none" else "Tanh")
        and polynomial.equal(polynomial.of(anchor.inputs[0], x, None), argument, tolerance)
        and polynomial.equal(polynomial.of(result, x, anchor.outputs[0]), {(1, 0): 0.5, (1, 1): 0.5}, tolerance)
    )


def _named(graph: FusionGraph, node: gs.Node) -> None:
    kind = "tanh" if node.op == _FAST else node.attrs.get("approximate", "none")
    if len(node.inputs) > 1 and not node.inputs[1].is_empty():
        raise NoMatch(node, "FastGelu with a bias input", wanted="no bias")
    graph.replace(node, GELU, [node.inputs[0]], approximate=kind)


def _sources(anchor: gs.Node) -> Iterator[gs.Tensor]:
    """Candidates for x, nearest first: what the anchor's argument is computed from, one tensor throughout."""
    frontier = [anchor.inputs[0]]
    for _ in range(_MAX_STEPS):
        distinct = {id(t): t for t in frontier}
        if len(distinct) == 1:
            yield frontier[0]
        expandable = [t for t in distinct.values() if (p := producer(t)) is not None and p.op in (*_UNARY, *_BINARY)]
        if not expandable:
            return
        # Deepest first would need an order; expanding all of them meets at the same source.
        keep = [t for t in distinct.values() if not any(t is e for e in expandable)]
        frontier = keep + [i for t in expandable for i in producer(t).inputs if scalar(i) is None]
        if not frontier:
            return


def _growing(graph: FusionGraph, anchor: gs.Node, x: gs.Tensor) -> Iterator[tuple[gs.Node, list[gs.Node]]]:
    """Regions from x through the anchor to an ever later node, with all nodes in them."""
    node, region = anchor, [anchor]
    for _ in range(_MAX_STEPS):
        if len(node.outputs[0].outputs) != 1 or graph.is_output(node.outputs[0]):
            return
        node = node.outputs[0].outputs[0]
        if node.op not in (*_UNARY, *_BINARY):
            return
        region = [*region, node]
        yield node, region


def _compare(tensor: gs.Tensor, x: gs.Tensor) -> tuple[str, float]:
    with np.errstate(all="ignore"):
        values = _evaluate(tensor, x, {}, _MAX_STEPS)
    if values is None or np.ndim(values) == 0:
        return "none", math.inf
    deviations = {kind: float(np.max(np.abs(values - wanted))) for kind, wanted in _GELUS.items()}
    kind = min(deviations, key=deviations.__getitem__)
    return kind, deviations[kind] if np.isfinite(deviations[kind]) else math.inf


def _evaluate(
    tensor: gs.Tensor, x: gs.Tensor, known: dict[tuple[int, int], np.ndarray | None], depth: int
) -> np.ndarray | float | None:
    """The tensor as a function of x on the grid; None where it depends on anything else."""
    if tensor is x:
        return _GRID
    if (value := scalar(tensor)) is not None:
        return value
    node, key = producer(tensor), (id(tensor), depth)
    if node is None or depth == 0 or node.op not in (*_UNARY, *_BINARY):
        return None
    if key not in known:  # failures are kept too: sums of sums have twice as many ways up with every step
        known[key] = None
        arguments = []
        for tensor in node.inputs:
            argument = _evaluate(tensor, x, known, depth - 1)
            if argument is None:
                return None
            arguments.append(argument)
        known[key] = (_UNARY.get(node.op) or _BINARY[node.op])(*arguments)
    return known[key]
