"""What says nothing: small computed constants become constants; Identity, Dropout and casts to the same type go."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import FusionGraph
from ..nodes import DEFAULT_DOMAINS, data_type

_FEW = 64  # numbers in a shape, an axis list; rows looked up in a table are left to those who look for them
_SCALARS = {"value_float": np.float32, "value_int": np.int64, "value_floats": np.float32, "value_ints": np.int64}


def remove(graph: FusionGraph) -> None:
    """Remove it all, in one pass over the nodes; what they computed stays bit for bit the same."""
    for node in graph.gs.nodes:
        if node.domain not in DEFAULT_DOMAINS or not node.outputs:
            continue
        if node.op == "Constant":
            _fold_constant(graph, node)
        elif _is_computed_constant(graph, node):
            _fold_computed(graph, node)
        elif _passes_through(graph, node):
            _bypass(graph, node)


def _fold_constant(graph: FusionGraph, node: gs.Node) -> None:
    (output,) = node.outputs
    if graph.is_output(output):
        return
    for name, value in node.attrs.items():
        if name == "value":
            value = np.array(value.values)
        elif name in _SCALARS:
            value = np.array(value, _SCALARS[name])
        else:
            return  # strings and sparse tensors: nothing here looks at them
        output.inputs.clear()
        output.to_constant(value)


def _is_computed_constant(graph: FusionGraph, node: gs.Node) -> bool:
    """Whether all that the node gives is a few numbers, the same for every input: 1 / sqrt(head size)."""
    values = [None if t.is_empty() or graph.is_output(t) else graph.constants.value(t) for t in node.outputs]
    return all(v is not None and (v.size == 1 or (v.dtype.kind in "iu" and v.size <= _FEW)) for v in values)


def _fold_computed(graph: FusionGraph, node: gs.Node) -> None:
    for output, value in [(output, graph.constants.value(output)) for output in node.outputs]:
        output.inputs.clear()
        output.to_constant(np.array(value))
    graph.remove(node)


def _passes_through(graph: FusionGraph, node: gs.Node) -> bool:
    if node.op == "Identity":
        return True
    if node.op == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        off = (
            training is None or training.is_empty() or (isinstance(training, gs.Constant) and not training.values.any())
        )
        return off and not any(t.outputs or graph.is_output(t) for t in node.outputs[1:])
    if node.op == "Cast" and node.inputs[0].dtype is not None:
        return data_type(node.inputs[0].dtype) == data_type(node.attrs["to"])
    return False


def _bypass(graph: FusionGraph, node: gs.Node) -> None:
    source, output = node.inputs[0], node.outputs[0]
    if graph.is_output(output):
        return  # the name of a graph output stays, and with it this node
    for consumer in list(output.outputs):
        for index, tensor in enumerate(consumer.inputs):
            if tensor is output:
                consumer.inputs[index] = source
    node.inputs.clear()
    node.outputs.clear()
