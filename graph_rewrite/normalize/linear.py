"""MatMul with a constant matrix and maybe Add with a constant vector, or Gemm: Linear(x, weight[N, K], bias[N])."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..dialect.pattern import LINEAR
from ..graph import FusionGraph
from ..nodes import NoMatch, matrix, producer


def anchors(graph: FusionGraph) -> list[gs.Node]:
    return graph.nodes("MatMul", "Gemm")


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    if node.op == "Gemm":
        _gemm(graph, node)
    else:
        _matmul(graph, node)


def _matmul(graph: FusionGraph, node: gs.Node) -> None:
    x = node.inputs[0]
    weight = _weight(graph, node, False)
    if isinstance(x, gs.Constant):
        raise NoMatch(node, "both operands are constants", wanted="one", hint="fold constants before fusing")
    add = _bias_add(node.outputs[0], weight.shape[0])
    if add is None or graph.is_output(node.outputs[0]):
        _replace(graph, node, x, [weight], [])
    else:
        bias = next(t for t in add.inputs if t is not node.outputs[0])
        _replace(graph, add, x, [weight, bias], [node])


def _weight(graph: FusionGraph, node: gs.Node, stored_transposed: bool) -> gs.Constant:
    """The node's second operand as [N, K]; `stored_transposed` where the node itself transposes it."""
    found = matrix(node.inputs[1])
    if found is None:
        raise NoMatch(node, f"multiplies by '{node.inputs[1].name}'", wanted="a constant matrix")
    constant, transposed = found
    return constant if transposed != stored_transposed else graph.transposed(constant)


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
    x = node.inputs[0]
    bias = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    weight = _weight(graph, node, bool(attrs.get("transB", 0)))
    if bias is not None and (not isinstance(bias, gs.Constant) or list(bias.shape) != [weight.shape[0]]):
        raise NoMatch(node, f"adds '{bias.name}'", wanted=f"a constant vector of {weight.shape[0]}")
    _replace(graph, node, x, [weight] + ([bias] if bias is not None else []), [])


def _replace(graph: FusionGraph, root: gs.Node, x: gs.Tensor, constants: list, interior: list[gs.Node]) -> None:
    flat = _between_reshapes(graph, root, x)
    if flat is not None:
        x, reshape = flat
        root, interior = reshape, [*interior, root]
    graph.replace(root, LINEAR, [x, *constants], interior=interior)


def _between_reshapes(graph: FusionGraph, root: gs.Node, x: gs.Tensor) -> tuple[gs.Tensor, gs.Node] | None:
    """What is flattened to two axes before the product, and the Reshape that brings its axes back after it."""
    before, (y,) = producer(x), root.outputs
    if before is None or before.op != "Reshape" or len(y.outputs) != 1 or graph.is_output(y):
        return None
    after, source = y.outputs[0], before.inputs[0]
    if after.op != "Reshape" or after.inputs[0] is not y:
        return None
    shapes = [source.shape, x.shape, y.shape, after.outputs[0].shape]
    if any(not shape for shape in shapes):
        return None
    first, flat, product, last = (list(shape) for shape in shapes)
    same = None not in first[:-1] and first[:-1] == last[:-1]  # so that equal names are equal sizes
    return (source, after) if same and first[-1] == flat[-1] and last[-1] == product[-1] else None
