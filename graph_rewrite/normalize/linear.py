"""MatMul with a constant matrix and maybe Add with a constant vector, or Gemm: Linear(x, weight[N, K], bias[N])."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..dialect.pattern import LINEAR
from ..graph import FusionGraph
from ..nodes import NoMatch


def anchors(graph: FusionGraph) -> list[gs.Node]:
    return graph.nodes("MatMul", "Gemm")


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    if node.op == "Gemm":
        _gemm(graph, node)
    else:
        _matmul(graph, node)


def _matmul(graph: FusionGraph, node: gs.Node) -> None:
    x, weight = node.inputs
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
        raise NoMatch(node, f"multiplies by '{weight.name}'", wanted="a constant matrix")
    if isinstance(x, gs.Constant):
        raise NoMatch(node, "both operands are constants", wanted="one", hint="fold constants before fusing")
    weight = graph.transposed(weight)
    add = _bias_add(node.outputs[0], weight.shape[0])
    if add is None or graph.is_output(node.outputs[0]):
        graph.replace(node, LINEAR, [x, weight])
    else:
        bias = next(t for t in add.inputs if t is not node.outputs[0])
        graph.replace(add, LINEAR, [x, weight, bias], interior=[node])


def _bias_add(product: gs.Tensor, size: int) -> gs.Node | None:
    """The one Add of a constant vector that uses `product`, if that is all that does."""
    if len(product.outputs) != 1 or product.outputs[0].op != "Add":
        return None
    add = product.outputs[0]
    others = [t for t in add.inputs if t is not product]
    if len(others) == 1 and isinstance(others[0], gs.Constant) and list(others[0].shape) == [size]:
        return add
    return None


def _gemm(graph: FusionGraph, node: gs.Node) -> None:
    attrs = node.attrs
    if attrs.get("transA", 0) or attrs.get("alpha", 1.0) != 1.0 or attrs.get("beta", 1.0) != 1.0:
        raise NoMatch(node, "transA, alpha or beta is set", wanted="their defaults")
    x, weight = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
        raise NoMatch(node, f"multiplies by '{weight.name}'", wanted="a constant matrix")
    if not attrs.get("transB", 0):
        weight = graph.transposed(weight)
    if bias is not None and (not isinstance(bias, gs.Constant) or list(bias.shape) != [weight.shape[0]]):
        raise NoMatch(node, f"adds '{bias.name}'", wanted=f"a constant vector of {weight.shape[0]}")
    graph.replace(node, LINEAR, [x, weight] + ([bias] if bias is not None else []))
