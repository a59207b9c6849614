"""Residuals in 8 bits: a norm adds what another op has written for products, in place of its rows in half precision.

Where nothing else reads its own rows in half precision either, it leaves these unwritten: then it moves four bytes of a
number where it else moves seven.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .fused_nodes import fused_nodes, input_of, set_inputs
from .ops import OPS
from .quantized_results import read_inside
from .spec import DOMAIN


def restore_residuals(model: onnx.ModelProto, asked: Collection[str]) -> None:
    """Changes a skeleton whose ops write results in 8 bits; `asked` are first outputs of norms.

    Such a norm is given its residual in 8 bits where an op with whole rows has written it as integers.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    writers = {node.output[0]: node for node in fused_nodes(model) if _writes_integers(node, constants)}
    restored = [node for node in fused_nodes(model) if node.output[0] in asked and _takes(node, writers)]
    for node in restored:
        spec = OPS[node.op_type]
        writer = writers[input_of(node, spec, "residual")]
        written = len(OPS[writer.op_type].outputs)
        names = {"residual_quantized": writer.output[written], "residual_row_scale": writer.output[written + 1]}
        smooth = input_of(writer, OPS[writer.op_type], "y_smooth")
        if smooth:
            names["residual_factor"] = f"{smooth}_inverse"
            if names["residual_factor"] not in constants:
                inverse = np.float32(1) / numpy_helper.to_array(constants[smooth])
                constants[names["residual_factor"]] = made = numpy_helper.from_array(inverse, names["residual_factor"])
                model.graph.initializer.append(made)
        set_inputs(node, spec, names)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    elsewhere = {value.name for value in model.graph.output} | read_inside(model)
    for node in restored:
        y = node.output[0]
        if y not in elsewhere and all(_reads_numbers(reader, y) for reader in readers.get(y, ())):
            node.attribute.append(helper.make_attribute("y_use", "unread"))


def restored_residuals(model: onnx.ModelProto) -> int:
    """How many norms are given their residual in 8 bits."""
    return sum(bool(input_of(node, OPS[node.op_type], "residual_quantized")) for node in fused_nodes(model))


def _writes_integers(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether it writes its rows as integers, of which 0 is 0, beside themselves."""
    spec = OPS[node.op_type]
    if not spec.quantized_outputs or spec.quantizes_by_tensor:
        return False
    zero = constants.get(input_of(node, spec, "y_zero_point"))
    return zero is not None and zero.data_type == TensorProto.INT8 and not numpy_helper.to_array(zero).any()


def _takes(node: onnx.NodeProto, writers: Mapping[str, onnx.NodeProto]) -> bool:
    spec = OPS[node.op_type]
    takes = any(tensor.name == "residual_quantized" for tensor in spec.inputs)
    return takes and input_of(node, spec, "residual") in writers


def _reads_numbers(reader: onnx.NodeProto, y: str) -> bool:
    """Whether the node, which reads y, needs nothing of it but its numbers in 8 bits."""
    if reader.domain != DOMAIN or reader.op_type not in OPS:
        return False
    spec = OPS[reader.op_type]
    instead = {"x": "x_quantized", "residual": "residual_quantized"}
    places = (tensor.name for tensor, name in zip(spec.inputs, reader.input, strict=False) if name == y)
    return all(place in instead and input_of(reader, spec, instead[place]) for place in places)
