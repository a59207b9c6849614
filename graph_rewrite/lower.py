"""What was normalised but not fused: put back as it was; attention behind AddQKVBias in standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import numpy_helper

from .dialect.pattern import SDPA
from .dialect.standard_ops import OnnxDialect
from .graph import FusionGraph
from .nodes import DIALECT, producer
from .normalize import rms_norm
from .weights import cast_array


class _GraphDialect(OnnxDialect):
    """Emits nodes into the graph. Handles are its tensors; constants and masks are shared by all layers."""

    def __init__(self, graph: FusionGraph, stem: str, like: gs.Tensor, shared: dict[Any, gs.Tensor]) -> None:
        super().__init__(graph.opset)
        self._graph, self._stem, self._like, self._shared = graph, stem, like, shared

    def emit(self, op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> Any:
        if op == "Constant":
            values = numpy_helper.to_array(attributes["value"])
            if values.dtype.kind == "f":
                # The least float32 of masks must stay finite: a row of -inf alone has no softmax.
                values = cast_array(values, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self._like.dtype)))
            key = (values.dtype.str, values.shape, values.tobytes())
            if key not in self._shared:
                self._shared[key] = self._graph.constant("bertfuse_constant", values)
            return self._shared[key]
        dtype = self._like.dtype if op not in ("Cast", "Unsqueeze") else None
        made = [self._graph.variable(f"{self._stem}_{op.lower()}", dtype, None) for _ in range(outputs)]
        self._graph.add_node(op, inputs, made, **attributes)
        return made[0] if outputs == 1 else tuple(made)

    def attention(self, q, k, v, mask, scale):
        self.heads = (q.shape[1], q.shape[3])
        return super().attention(q, k, v, mask, scale)

    def scores(self, q, k_transposed, scale):
        """Q is scaled, mostly to less, and not the product, which in half precision may be out of range before."""
        return self.emit("MatMul", [self.emit("Mul", [q, scale]), k_transposed])

    def additive_mask(self, mask: gs.Tensor) -> gs.Tensor:
        key = ("mask", mask.name)
        if key not in self._shared:
            self._stem = mask.name
            self._shared[key] = super().additive_mask(mask)
        return self._shared[key]


def leftovers(graph: FusionGraph) -> None:
    """Restore or spell out every dialect node that is still in the graph."""
    shared: dict[Any, gs.Tensor] = {}
    for node in [n for n in graph.gs.nodes if n.op == SDPA and n.domain == DIALECT and graph.is_live(n)]:
        _spell_out(graph, node, shared)
    pending = True
    while pending:  # a restored node can bring back a dialect node that it reads from
        pending = False
        for node in graph.gs.nodes:
            if graph.is_live(node) and node.outputs and graph.is_normalisation(node):
                graph.restore(node)
                pending = True
    _divide_by_roots(graph)


def _divide_by_roots(graph: FusionGraph) -> None:
    """An RMSNorm's x * (1 / root) becomes x / root, the form that ONNX Runtime's optimizer turns into one kernel."""
    for inverse in graph.nodes("Reciprocal"):
        root, (output,) = producer(inverse.inputs[0]), inverse.outputs
        squares = None if root is None or root.op not in ("Sqrt", "Pow") else rms_norm.mean_of_squares(root)
        if squares is None or len(output.outputs) != 1 or graph.is_output(output):
            continue
        (scaled,) = output.outputs
        if scaled.op == "Mul" and {id(t) for t in scaled.inputs} == {id(squares[0]), id(output)}:
            scaled.op, scaled.inputs = "Div", [squares[0], inverse.inputs[0]]
            graph.remove(inverse)


def _spell_out(graph: FusionGraph, node: gs.Node, shared: dict[Any, gs.Tensor]) -> None:
    (output,) = node.outputs
    q, k, v = node.inputs[:3]
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    result = _GraphDialect(graph, output.name, output, shared).attention(q, k, v, mask, node.attrs["scale"])
    node.outputs.clear()
    node.inputs.clear()
    last = result.inputs[0]
    last.outputs.clear()
    last.outputs.append(output)
