"""RMSNorms that no other op has taken, each as an op of its own: what a pre-norm model makes of its embeddings."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from . import gammas
from .account import Credit
from .dialect.pattern import RMS_NORM
from .graph import FusionGraph
from .match import Match, check_description
from .nodes import DIALECT, NoMatch
from .ops.fused_rms_norm import OP
from .spec import DOMAIN, NODE_MARKERS


def write(graph: FusionGraph) -> dict[int, Credit]:
    """Fuse them in a graph whose other ops are fused; what came out, by the id of the original node of the norm."""
    credits: dict[int, Credit] = {}
    for norm in [n for n in graph.gs.nodes if n.domain == DIALECT and n.op == RMS_NORM]:
        anchor = graph.anchor(norm)
        if anchor is None or not graph.is_live(norm) or not norm.outputs:
            continue
        x, gamma = norm.inputs
        settings = {"epsilon": norm.attrs["epsilon"]}
        if isinstance(gamma, gs.Constant):  # else the op's description refuses it
            stored, offset = gammas.stored(graph, {"gamma": gamma}, norm.outputs[0].dtype)
            gamma, settings = stored["gamma"], settings | offset
        try:
            check_description(OP, Match({"x": x, "gamma": gamma}, settings), norm)
        except NoMatch as miss:
            graph.note_failure(norm, miss, OP.name, alone=True)
            continue
        made = graph.replace(norm, OP.name, [x, gamma], domain=DOMAIN, **settings, **NODE_MARKERS)
        credits[anchor] = Credit(OP, made.outputs[0].name, settings, "")
    return credits
