"""Residuals that a quantised model rounds to int8, in float operators.

TensorRT takes QuantizeLinear and DequantizeLinear of activations with one scale for the tensor, not one for each column
as `bertfuse quantize --residual` writes them in float32, and before 10 only in networks that may compute in int8.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertfuse.graph_rewrite.spec import DOMAIN

_ENDS = {"least": -128, "most": 127}


def write_out(model: onnx.ModelProto) -> None:
    """Replaces pairs of int8 around a zero point of 0 before fused ops, in place: every bit of the numbers stays."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {value.name: [onnx.NodeProto()] for value in graph.output}
    for node in graph.node:
        if any(attribute.HasField("g") for attribute in node.attribute):
            return  # what its body reads is not looked for
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def is_residual(node: onnx.NodeProto) -> bool:
        inverses = readers.get(node.output[0], [])
        following = [reader for inverse in inverses for name in inverse.output for reader in readers.get(name, [])]
        casts = [name for reader in following if reader.op_type == "Cast" for name in reader.output]
        following += [reader for name in casts for reader in readers.get(name, [])]
        fused = all(reader.domain == DOMAIN or reader.op_type == "Cast" for reader in following)
        return fused and _can_be_floats(node, inverses, constants)

    rounded = {
        node.output[0]: constants[node.input[1]].data_type
        for node in graph.node
        if node.op_type == "QuantizeLinear" and is_residual(node)
    }
    for data_type in sorted(set(rounded.values())):
        for name, value in _bounds(data_type).items():
            graph.initializer.append(numpy_helper.from_array(value, name))
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] in rounded:
            q, (x, scale) = node.output[0], node.input[:2]
            nodes += [
                helper.make_node("Div", [x, scale], [f"{q}/scaled"], f"{q}/Div"),
                helper.make_node("Round", [f"{q}/scaled"], [f"{q}/whole"], f"{q}/Round"),
                helper.make_node("Clip", [f"{q}/whole", *_bounds(rounded[q])], [q], f"{q}/Clip"),
            ]
        elif node.op_type == "DequantizeLinear" and node.input[0] in rounded:
            nodes.append(helper.make_node("Mul", node.input[:2], node.output, node.name))
        else:
            nodes.append(node)
    if rounded:
        kept = [value for value in graph.value_info if value.name not in rounded]
        made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:], graph.value_info[:]
        graph.node.extend(made)
        graph.value_info.extend(kept)


def _can_be_floats(
    node: onnx.NodeProto, readers: list[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]
) -> bool:
    """Whether a QuantizeLinear writes int8 around 0, by one scale or one for each column, for its inverse alone."""
    if node.domain or len(node.input) != 3 or not {*node.input[1:]} <= set(constants):
        return False
    scale, zero = (constants[name] for name in node.input[1:])
    axes = {next((a.i for a in of.attribute if a.name == "axis"), 1) for of in (node, *readers)}  # 1 by default
    return (
        zero.data_type == TensorProto.INT8
        and not numpy_helper.to_array(zero).any()
        and (not scale.dims or axes == {-1})
        and all(of.op_type == "DequantizeLinear" and of.input[1:] == node.input[1:] for of in readers)
    )


def _bounds(data_type: int) -> dict[str, np.ndarray]:
    """Clip's inputs."""
    kind = helper.tensor_dtype_to_np_dtype(data_type)
    return {f"bertfuse_int8_{end}_{data_type}": np.array(value, kind) for end, value in _ENDS.items()}
