"""LayerNormalization over the last axis, or its nine operators of older opsets: LayerNorm(x, gamma, beta)."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import LAYER_NORM
from ..graph import FusionGraph
from ..nodes import NoMatch, check_rank, is_float_cast, node_name, producer, scalar


def anchors(graph: FusionGraph) -> list[gs.Node]:
    deviations = [n for n in graph.nodes("Sqrt", "Pow") if _is_deviation(n)]
    return [*graph.nodes("LayerNormalization"), *deviations]


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    if node.op == "LayerNormalization":
        _named(graph, node)
    else:
        _spelled_out(graph, node)


def _is_deviation(node: gs.Node) -> bool:
    """Whether the node is sqrt(mean(...) + epsilon), or one over it, which is expected but not fused."""
    if node.op == "Pow" and scalar(node.inputs[1]) not in (0.5, -0.5):
        return False
    add = producer(node.inputs[0])
    return (
        add is not None
        and add.op == "Add"
        and any((p := producer(t)) is not None and p.op == "ReduceMean" for t in add.inputs)
    )


def _named(graph: FusionGraph, node: gs.Node) -> None:
    x, gamma = node.inputs[:2]
    rank = len(x.shape) if x.shape is not None else None
    axis = node.attrs.get("axis", -1)
    if axis != -1 and (rank is None or axis != rank - 1):
        raise NoMatch(node, f"normalises from axis {axis}", wanted="the last axis alone")
    if any(t.outputs or graph.is_output(t) for t in node.outputs[1:] if not t.is_empty()):
        raise NoMatch(node, "its mean or deviation is used", wanted="its first output alone")
    node.outputs = node.outputs[:1]  # whatever takes its place has one
    has_beta = len(node.inputs) > 2 and not node.inputs[2].is_empty()
    _finish(graph, node, x, gamma, node.inputs[2] if has_beta else None, node.attrs.get("epsilon", 1e-5), [node])


def _spelled_out(graph: FusionGraph, sqrt: gs.Node) -> None:
    add = producer(sqrt.inputs[0])
    epsilon = next((value for t in add.inputs if (value := scalar(t)) is not None), None)
    if epsilon is None:
        raise NoMatch(add, "adds no constant to the variance", wanted="a constant epsilon")
    variance = next(producer(t) for t in add.inputs if scalar(t) is None)
    check_mean(variance)
    square = producer(variance.inputs[0])
    centred = squared(square)
    sub, casts = _uncast(centred)
    if sub is None or sub.op != "Sub":
        raise NoMatch(square or variance, "squares something else", wanted="x - mean(x)")
    x, mean = sub.inputs[0], producer(sub.inputs[1])
    if mean is None or mean.op != "ReduceMean" or mean.inputs[0] is not x:
        raise NoMatch(sub, f"subtracts '{sub.inputs[1].name}'", wanted=f"the mean of '{x.name}'")
    check_mean(mean)
    quotient = _only_consumer(graph, sqrt.outputs[0], "Div")
    if sqrt.op == "Pow" and scalar(sqrt.inputs[1]) != 0.5:
        raise NoMatch(sqrt, f"raises to {scalar(sqrt.inputs[1]):g}", wanted="a square root")
    if quotient.inputs[1] is not sqrt.outputs[0]:
        raise NoMatch(quotient, "divides the deviation", wanted="x - mean(x) divided by it")
    numerator, more = _uncast(quotient.inputs[0])
    if numerator is not sub and not _same_difference(numerator, x):
        raise NoMatch(quotient, f"divides '{quotient.inputs[0].name}'", wanted="x - mean(x)")
    back = _recast(graph, quotient)
    scaled, gamma = _affine(graph, (back or quotient).outputs[0], "Mul")
    shifted, beta = _affine(graph, scaled.outputs[0], "Add")
    check_rank(shifted, x)
    interior = [
        sqrt,
        add,
        variance,
        square,
        sub,
        mean,
        quotient,
        scaled,
        shifted,
        *casts,
        *more,
        *([back] if back else []),
    ]
    _finish(graph, shifted, x, gamma, beta, epsilon, interior)


def _finish(graph, root, x, gamma, beta, epsilon, interior) -> None:
    for tensor in (gamma, beta):
        if tensor is not None and (not isinstance(tensor, gs.Constant) or len(tensor.shape) != 1):
            raise NoMatch(root, f"'{tensor.name}' is {_kind(tensor)}", wanted="a constant vector")
    if beta is None:
        beta = graph.zeros(gamma.shape[0], gamma.dtype)
    root, x, casts = own_type(graph, root, x)
    vectors = [graph.cast(vector, x.dtype) for vector in (gamma, beta)]
    graph.replace(root, LAYER_NORM, [x, *vectors], interior=[*interior, *casts], epsilon=float(epsilon))


def own_type(graph: FusionGraph, root: gs.Node, x: gs.Tensor) -> tuple[gs.Node, gs.Tensor, list[gs.Node]]:
    """Of a normalisation in float32 between two Casts all of it: kernels compute in float32 anyway.

    The last node, the argument, and the Casts to take in.
    """
    before, after = producer(x), _recast(graph, root)
    sources = [(before.inputs[0], [before])] if before is not None and is_float_cast(before) else []
    ends = [(after, [after])] if after is not None else []
    for end, below in [*ends, (root, [])]:
        for source, above in [*sources, (x, [])]:
            if None in (types := {end.outputs[0].dtype, source.dtype}) or len(types) == 1:
                return end, source, [*above, *below]
    raise NoMatch(root, f"gives {root.outputs[0].dtype} of {x.dtype}", wanted="one type")


def _uncast(tensor: gs.Tensor) -> tuple[gs.Node | None, list[gs.Node]]:
    """The node that makes `tensor`, and the Casts between float types on the way."""
    node, casts = producer(tensor), []
    while node is not None and is_float_cast(node):
        casts.append(node)
        node = producer(node.inputs[0])
    return node, casts


def _recast(graph: FusionGraph, node: gs.Node) -> gs.Node | None:
    """The Cast to another float type that is all that uses the node's output."""
    (output, *_) = node.outputs
    if len(output.outputs) != 1 or graph.is_output(output) or not is_float_cast(output.outputs[0]):
        return None
    return output.outputs[0]


def _kind(tensor: gs.Tensor) -> str:
    return f"a constant {list(tensor.shape)}" if isinstance(tensor, gs.Constant) else "computed"


def check_mean(node: gs.Node) -> None:
    axes = node.attrs.get("axes")
    if axes is None and len(node.inputs) > 1 and isinstance(node.inputs[1], gs.Constant):
        axes = np.asarray(node.inputs[1].values).tolist()
    shape = node.inputs[0].shape
    last = {-1} | ({len(shape) - 1} if shape is not None else set())
    one = axes is not None and np.shape(axes) == (1,)
    if not one or axes[0] not in last or not node.attrs.get("keepdims", 1):
        raise NoMatch(node, f"averages over axes {axes}", wanted="the last axis alone, with keepdims")


def squared(node: gs.Node | None) -> gs.Tensor:
    if node is not None and node.op == "Pow" and scalar(node.inputs[1]) == 2.0:
        return node.inputs[0]
    if node is not None and node.op == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    raise NoMatch(node or "?", "the variance is not a mean of a square", wanted="Pow(x - mean(x), 2)")


def _same_difference(node: gs.Node | None, x: gs.Tensor) -> bool:
    """x - mean(x) computed a second time, as old exporters do."""
    mean = producer(node.inputs[1]) if node is not None and node.op == "Sub" and node.inputs[0] is x else None
    if mean is None or mean.op != "ReduceMean" or mean.inputs[0] is not x:
        return False
    check_mean(mean)
    return True


def _only_consumer(graph: FusionGraph, tensor: gs.Tensor, op: str) -> gs.Node:
    users = tensor.outputs
    if len(users) != 1 or users[0].op != op or graph.is_output(tensor):
        raise NoMatch(
            producer(tensor),
            f"'{tensor.name}' feeds {', '.join(map(node_name, users)) or 'nothing'}",
            wanted=f"one {op}",
        )
    return users[0]


def _affine(graph: FusionGraph, tensor: gs.Tensor, op: str) -> tuple[gs.Node, gs.Tensor]:
    node = _only_consumer(graph, tensor, op)
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    if len(constants) != 1:
        raise NoMatch(node, f"{op} of {len(constants)} constants", wanted="one constant vector")
    return node, constants[0]
