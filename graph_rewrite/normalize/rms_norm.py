"""RMSNormalization over the last axis, or the operators that it is made of: RmsNorm(x, gamma)."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import RMS_NORM
from ..graph import FusionGraph
from ..nodes import NoMatch, check_rank, is_float_cast, node_name, producer, scalar
from .layer_norm import check_mean, own_type, squared

# The one op that comes of these anchors: what is wrong with them for a LayerNorm, whose anchors they are, too, says
# nothing about it.
OF_OP = "FusedRMSNorm"


def anchors(graph: FusionGraph) -> list[gs.Node]:
    roots = [n for n in graph.nodes("Sqrt", "Pow") if mean_of_squares(n) is not None]
    return [*graph.nodes("RMSNormalization"), *roots]


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    if node.op == "RMSNormalization":
        axis, rank = node.attrs.get("axis", -1), len(node.inputs[0].shape or ())
        if axis not in (-1, rank - 1):
            raise NoMatch(node, f"normalises from axis {axis}", wanted="the last axis alone")
        _finish(graph, node, *node.inputs[:2], node.attrs.get("epsilon", 1e-5), [node])
    else:
        _spelled_out(graph, node)


def mean_of_squares(root: gs.Node) -> tuple[gs.Tensor, float, list[gs.Node]] | None:
    """(x, epsilon, nodes) where the node is the root of mean(x²) + epsilon, or one over it."""
    if root.op == "Pow" and scalar(root.inputs[1]) not in (0.5, -0.5):
        return None
    add = producer(root.inputs[0])
    if add is None or add.op != "Add":
        return None
    mean = next((p for t in add.inputs if (p := producer(t)) is not None and p.op == "ReduceMean"), None)
    epsilon = next((value for t in add.inputs if (value := scalar(t)) is not None), None)
    if mean is None or epsilon is None:
        return None
    try:
        square = producer(mean.inputs[0])
        x = squared(square)
        check_mean(mean)
    except NoMatch:
        return None
    above = producer(x)
    return None if above is not None and above.op == "Sub" else (x, epsilon, [root, add, mean, square])


def _spelled_out(graph: FusionGraph, root: gs.Node) -> None:
    x, epsilon, interior = mean_of_squares(root)
    inverse = root.op == "Pow" and scalar(root.inputs[1]) == -0.5
    deviation = root
    following = _only_user(graph, root)
    if not inverse and (following.op == "Reciprocal" or (following.op == "Div" and scalar(following.inputs[0]) == 1.0)):
        inverse, deviation = True, following
        interior.append(following)
    scaled = _only_user(graph, deviation)
    others = [t for t in scaled.inputs if t is not deviation.outputs[0]]
    divides = scaled.op == "Div" and scaled.inputs[1] is deviation.outputs[0]
    if len(others) != 1 or others[0] is not x or not (scaled.op == "Mul" if inverse else divides):
        raise NoMatch(scaled, "scales something else", wanted=f"'{x.name}' over the root of its mean square")
    interior.append(scaled)
    last = scaled
    if is_float_cast(following := _only_user(graph, last)):
        interior.append(following)
        last, following = following, _only_user(graph, following)
    gamma = next((t for t in following.inputs if t is not last.outputs[0]), None)
    values = None if gamma is None else graph.constants.value(gamma)
    if following.op != "Mul" or values is None or values.ndim != 1:
        raise NoMatch(following, "is not scaled by a vector", wanted="a constant vector")
    check_rank(following, x)
    before = producer(x)
    if before is not None and is_float_cast(before) and before.inputs[0].dtype == following.outputs[0].dtype:
        x = before.inputs[0]
        interior.append(before)
    if not isinstance(gamma, gs.Constant):  # Gemma adds 1 to it
        gamma = graph.constant(f"{gamma.name}_folded", np.array(values))
    _finish(graph, following, x, gamma, epsilon, [*interior, following])


def _only_user(graph: FusionGraph, node: gs.Node) -> gs.Node:
    (output, *_) = node.outputs
    if len(output.outputs) != 1 or graph.is_output(output):
        users = ", ".join(map(node_name, output.outputs)) or "nothing"
        raise NoMatch(node, f"'{output.name}' feeds {users}", wanted="one consumer")
    return output.outputs[0]


def _finish(graph: FusionGraph, root: gs.Node, x: gs.Tensor, gamma: gs.Tensor, epsilon: float, interior) -> None:
    if not isinstance(gamma, gs.Constant) or len(gamma.shape) != 1:
        raise NoMatch(root, f"'{gamma.name}' is no constant vector", wanted="a constant vector")
    root, x, casts = own_type(graph, root, x)
    # The gamma keeps its type until a fused op takes it (gammas.py).
    graph.replace(root, RMS_NORM, [x, gamma], interior=[*interior, *casts], epsilon=float(epsilon))
