"""MatMul with a constant matrix and maybe Add with a constant vector, or Gemm: Linear(x, weight[N, K], bias[N]).

A Mul by a constant vector behind it (DINOv2's layer scale) goes into the constants.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from .. import known_attributes
from ..dialect.pattern import LINEAR
from ..graph import FusionGraph, as_weight
from ..nodes import DIALECT, NoMatch, matrix, producer
from ..shapes import Dim, product


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
    _check_product(node, x, weight)
    root, constants, interior = node, [weight], []
    add = _vector_user(graph, node, "Add", weight.shape[0])
    if add is not None:
        root, interior = add, [node]
        constants.append(_other(add, node))
    scale = _vector_user(graph, root, "Mul", weight.shape[0])
    if scale is not None and _keeps_bits(factors := np.asarray(_other(scale, root).values)):
        scaled = [as_weight(t).times(factors) for t in constants]
        scaled[1:] = [bias.load() for bias in scaled[1:]]
        constants = [graph.constant(f"{t.name}_scaled", s) for t, s in zip(constants, scaled, strict=True)]
        root, interior = scale, [*interior, root]
    _replace(graph, root, x, constants, interior)


def _weight(graph: FusionGraph, node: gs.Node, stored_transposed: bool) -> gs.Constant:
    """The node's second operand as [N, K]; `stored_transposed` where the node itself transposes it."""
    found = matrix(node.inputs[1])
    if found is None:
        raise NoMatch(node, f"multiplies by '{node.inputs[1].name}'", wanted="a constant matrix")
    constant, transposed = found
    return constant if transposed != stored_transposed else graph.transposed(constant)


def _check_product(node: gs.Node, x: gs.Tensor, weight: gs.Constant) -> None:
    """Such a model does not run, but may come to be fused."""
    width = x.shape[-1] if x.shape else None
    if isinstance(width, int) and width != weight.shape[1]:
        raise NoMatch(node, f"multiplies '{x.name}' {list(x.shape)} by {weight.shape[1]} rows", wanted=f"{width}")


def _vector_user(graph: FusionGraph, node: gs.Node, op: str, size: int) -> gs.Node | None:
    """The one `op` with a constant vector that uses the node's output, if that is all that does."""
    (output,) = node.outputs
    if len(output.outputs) != 1 or output.outputs[0].op != op or graph.is_output(output):
        return None
    user = output.outputs[0]
    others = [t for t in user.inputs if t is not output]
    if len(others) == 1 and isinstance(others[0], gs.Constant) and list(others[0].shape) == [size]:
        return user
    return None


def _other(user: gs.Node, node: gs.Node) -> gs.Constant:
    return next(t for t in user.inputs if t is not node.outputs[0])


def _keeps_bits(factors: np.ndarray) -> bool:
    """Whether weights times these numbers keep their digits in float16, where small ones have few."""
    sizes = np.abs(factors.astype(np.float32))
    return factors.dtype != np.float16 or bool(np.all((sizes >= 1e-2) & (sizes <= 1e2)))


def _gemm(graph: FusionGraph, node: gs.Node) -> None:
    attrs = node.attrs
    known_attributes.check(node, graph.opset)
    x = node.inputs[0]
    bias = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    weight = _weight(graph, node, bool(attrs.get("transB", 0)))
    _check_product(node, x, weight)
    if x.shape is None or len(x.shape) != 2:  # ONNX Runtime takes a vector, too, and gives a matrix
        raise NoMatch(node, f"multiplies '{x.name}' {x.shape or 'of unknown shape'}", wanted="two axes")
    if bias is not None and (not isinstance(bias, gs.Constant) or list(bias.shape) != [weight.shape[0]]):
        raise NoMatch(node, f"adds '{bias.name}'", wanted=f"a constant vector of {weight.shape[0]}")
    _replace(graph, node, x, [weight] + ([bias] if bias is not None else []), [])


def _replace(graph: FusionGraph, root: gs.Node, x: gs.Tensor, constants: list, interior: list[gs.Node]) -> None:
    """Put a Linear in the place of `root`; one between a Reshape to two axes and a Reshape back takes in all three."""
    back = _brought_back(graph, root, x)
    unflattened = None if back is None else _unflattened(graph, x, [*back.outputs[0].shape[:2], x.shape[-1]])
    if unflattened is None:
        graph.replace(root, LINEAR, [x, *constants], interior=interior)
    elif len(back.outputs[0].shape) == 3:
        graph.replace(back, LINEAR, [unflattened, *constants], interior=[*interior, root])
    else:  # the heads are taken apart in one go: they still are, after a Linear of three axes
        y = root.outputs[0]
        whole = graph.variable(f"{y.name}_unflattened", y.dtype, [*unflattened.shape[:2], y.shape[-1]])
        with graph.transaction():
            graph.add_node(LINEAR, [unflattened, *constants], [whole], DIALECT)
            graph.replace(back, "Reshape", [whole, back.inputs[1]], interior=[*interior, root], domain="")


def _brought_back(graph: FusionGraph, root: gs.Node, x: gs.Tensor) -> gs.Node | None:
    """The Reshape to [B, S, ...] that alone uses a product of two axes."""
    (y,) = root.outputs
    if any(not t.shape or len(t.shape) != 2 or not isinstance(t.shape[1], int) for t in (x, y)):
        return None
    if len(y.outputs) != 1 or graph.is_output(y) or y.outputs[0].op != "Reshape" or y.outputs[0].inputs[0] is not y:
        return None
    back = y.outputs[0]
    shape = back.outputs[0].shape
    wanted = None if shape is None or len(shape) < 3 else product(shape[2:])
    if wanted != (y.shape[1], ()) or _copies_axes(back):
        return None
    return back


def _copies_axes(reshape: gs.Node) -> bool:
    """Whether the Reshape takes an axis over from its input, which is to have others."""
    given = reshape.inputs[1]
    return isinstance(given, gs.Constant) and 0 in np.asarray(given.values)


def _unflattened(graph: FusionGraph, x: gs.Tensor, wanted: list[Dim]) -> gs.Tensor | None:
    """What is reshaped to `x`, in the `wanted` shape [B, S, K]."""
    before = producer(x)
    source = before.inputs[0] if before is not None and before.op == "Reshape" else None
    if source is None or not source.shape or None in source.shape or product(source.shape) != product(wanted):
        return None
    if list(source.shape) == wanted:
        return source
    known = [dim if isinstance(dim, int) else -1 for dim in wanted]
    if known.count(-1) > 1:
        if list(source.shape[:2]) != wanted[:2]:
            return None
        known = [0, 0, wanted[2]]
    result = graph.variable(f"{x.name}_unflattened", x.dtype, wanted)
    shape = graph.constant(f"{x.name}_unflattened_shape", np.array(known, np.int64))
    graph.add_node("Reshape", [source, shape], [result])
    return result
