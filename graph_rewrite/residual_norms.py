"""Pre-norm blocks: a projection, the residual sum that is handed on, and the norm that reads it, as one op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from . import gammas
from .account import Credit
from .dialect.pattern import LAYER_NORM, LINEAR, RMS_NORM
from .graph import FusionGraph
from .match import Match, check_description
from .nodes import DIALECT, NoMatch, producer
from .ops.fused_gemm_residual_norm import OP
from .spec import DOMAIN, NODE_MARKERS


@dataclass(frozen=True)
class _Parts:
    linear: gs.Node
    residual: gs.Tensor
    product_gamma: gs.Tensor | None  # of an RMSNorm between the two


def write(graph: FusionGraph) -> dict[int, Credit]:
    """Fuse them in a graph whose other ops are fused; what came out, by the id of the original node of the norm."""
    credits: dict[int, Credit] = {}
    for norm in [n for n in graph.gs.nodes if n.domain == DIALECT and n.op in (LAYER_NORM, RMS_NORM)]:
        total = producer(norm.inputs[0]) if graph.is_live(norm) and norm.outputs else None
        anchor = graph.anchor(norm)
        if total is None or total.op != "Add" or anchor is None:
            continue
        attributes = {"epsilon": norm.attrs["epsilon"], "norm": "rms" if norm.op == RMS_NORM else "layer"}
        misses = []
        for parts in sorted(_candidates(graph, norm, total), key=lambda parts: parts.product_gamma is None):
            inputs, offset = _inputs(graph, norm, parts)
            settings = attributes | offset
            try:
                check_description(OP, Match({n: t for n, t in inputs.items() if not t.is_empty()}, settings), norm)
            except NoMatch as miss:
                misses.append(miss)
                continue
            made = _replaced(graph, norm, total, list(inputs.values()), settings)
            credits[anchor] = Credit(OP, made.outputs[0].name, settings, "")
            break
        else:
            if misses:
                graph.note_failure(norm, misses[0], OP.name)
    return credits


def _candidates(graph: FusionGraph, norm: gs.Node, total: gs.Node) -> Iterator[_Parts]:
    """The projection and the residual that are added, of one shape, and what the projection is normalised with."""
    for mine, residual in (total.inputs, total.inputs[::-1]):
        gamma = None
        inner = producer(mine)
        if inner is not None and inner.op == RMS_NORM and _is_alone(graph, mine) and _same_epsilon(inner, norm):
            mine, gamma = inner.inputs
        if not _is_alone(graph, mine) or isinstance(residual, gs.Constant):
            continue
        linear = producer(mine)
        if linear is None or linear.op != LINEAR or linear.domain != DIALECT or mine.shape is None:
            continue
        if None not in mine.shape and list(mine.shape) == list(residual.shape or ()):
            yield _Parts(linear, residual, gamma)


def _is_alone(graph: FusionGraph, tensor: gs.Tensor) -> bool:
    """Whether one node reads it, and nobody else does."""
    return len(tensor.outputs) == 1 and not graph.is_output(tensor)


def _same_epsilon(a: gs.Node, b: gs.Node) -> bool:
    return a.domain == b.domain == DIALECT and a.attrs["epsilon"] == b.attrs["epsilon"]


def _inputs(graph: FusionGraph, norm: gs.Node, parts: _Parts) -> tuple[dict[str, gs.Tensor], dict[str, float]]:
    """The op's inputs by name, those that are left out empty, and what it adds to gammas."""
    x, weight, *bias = parts.linear.inputs
    _, gamma, *beta = norm.inputs
    if beta and not bias:  # which a beta needs
        bias = [graph.constant(f"{parts.linear.outputs[0].name}_bias", np.zeros_like(np.asarray(beta[0].values)))]
    given = dict(zip(("x", "weight", "bias"), (x, weight, *bias), strict=False))
    given |= dict(zip(("gamma", "beta"), (gamma, *beta), strict=False)) | {"residual": parts.residual}
    if parts.product_gamma is not None:
        given["product_gamma"] = _as_one_row(graph, parts.product_gamma)
    scales = {name: given[name] for name in ("gamma", "product_gamma") if name in given}
    if norm.op == LAYER_NORM:
        del scales["gamma"]
    offset = {}
    if all(isinstance(scale, gs.Constant) for scale in scales.values()):  # else the op's description refuses them
        made, offset = gammas.stored(graph, scales, parts.linear.outputs[0].dtype)
        given |= made
    return {tensor.name: given.get(tensor.name, gs.Variable.empty()) for tensor in OP.inputs}, offset


def _as_one_row(graph: FusionGraph, gamma: gs.Tensor) -> gs.Tensor:
    if not isinstance(gamma, gs.Constant):
        return gamma  # which the op's description refuses
    return graph.constant(f"{gamma.name}_row", np.asarray(gamma.values).reshape(1, -1))


def _replaced(graph: FusionGraph, norm: gs.Node, total: gs.Node, inputs: list[gs.Tensor], attributes: dict) -> gs.Node:
    while inputs[-1].is_empty():
        inputs.pop()
    made = graph.replace(norm, OP.name, inputs, domain=DOMAIN, **attributes, **NODE_MARKERS)
    graph.hand_over(total, made)
    return made
