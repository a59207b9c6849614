"""Pre-norm blocks: a projection, the residual sum that is handed on, and the norm that reads it, as one op."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from .account import Credit
from .dialect.pattern import LAYER_NORM, LINEAR, RMS_NORM
from .graph import FusionGraph
from .match import Match, check_description
from .nodes import DIALECT, NoMatch, producer
from .ops.fused_gemm_residual_norm import OP
from .spec import DOMAIN, NODE_MARKERS


def write(graph: FusionGraph) -> dict[int, Credit]:
    """Fuse them in a graph whose other ops are fused; what came out, by the id of the original node of the norm."""
    credits: dict[int, Credit] = {}
    for norm in [n for n in graph.gs.nodes if n.domain == DIALECT and n.op in (LAYER_NORM, RMS_NORM)]:
        total = producer(norm.inputs[0]) if graph.is_live(norm) and norm.outputs else None
        parts = None if total is None or total.op != "Add" else _parts(graph, total)
        anchor = graph.anchor(norm)
        if parts is None or anchor is None:
            continue
        attributes = {"epsilon": norm.attrs["epsilon"], "norm": "rms" if norm.op == RMS_NORM else "layer"}
        inputs = _inputs(graph, norm, *parts)
        try:
            check_description(OP, Match({n: t for n, t in inputs.items() if not t.is_empty()}, attributes), norm)
        except NoMatch as miss:
            graph.note_failure(norm, miss, OP.name)
            continue
        made = _replaced(graph, norm, total, list(inputs.values()), attributes)
        credits[anchor] = Credit(OP, made.outputs[0].name, attributes, "")
    return credits


def _parts(graph: FusionGraph, total: gs.Node) -> tuple[gs.Node, gs.Tensor] | None:
    """The projection and the residual that are added, of one shape."""
    for mine, residual in (total.inputs, total.inputs[::-1]):
        linear = producer(mine)
        is_linear = linear is not None and linear.op == LINEAR and linear.domain == DIALECT
        if not is_linear or len(mine.outputs) != 1 or graph.is_output(mine) or isinstance(residual, gs.Constant):
            continue
        if mine.shape is not None and None not in mine.shape and list(mine.shape) == list(residual.shape or ()):
            return linear, residual
    return None


def _inputs(graph: FusionGraph, norm: gs.Node, linear: gs.Node, residual: gs.Tensor) -> dict[str, gs.Tensor]:
    """The op's inputs by name, those that are left out empty."""
    x, weight, *bias = linear.inputs
    _, gamma, *beta = norm.inputs
    if beta and not bias:  # which a beta needs
        bias = [graph.constant(f"{linear.outputs[0].name}_bias", np.zeros_like(np.asarray(beta[0].values)))]
    optional = [*(bias or [gs.Variable.empty()]), *(beta or [gs.Variable.empty()])]
    names = [t.name for t in OP.inputs if not t.packed]
    return dict(zip(names, (x, weight, residual, gamma, *optional), strict=True))


def _replaced(graph: FusionGraph, norm: gs.Node, total: gs.Node, inputs: list[gs.Tensor], attributes: dict) -> gs.Node:
    while inputs[-1].is_empty():
        inputs.pop()
    made = graph.replace(norm, OP.name, inputs, domain=DOMAIN, **attributes, **NODE_MARKERS)
    graph.hand_over(total, made)
    return made
