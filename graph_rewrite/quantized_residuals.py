"""Residuals in 8 bits: a norm adds what another op has written for products, in place of its rows in half precision.

Such a norm moves four bytes of a number where it else moves seven, as it leaves its own rows in half precision
unwritten.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from .fused_nodes import fused_nodes, input_of, set_inputs
from .ops import OPS
from .quantized_results import read_inside
from .spec import DOMAIN


def restore_residuals(model: onnx.ModelProto, asked: Collection[str]) -> set[str]:
    """Changes a skeleton whose ops write results in 8 bits; `asked` are first outputs of norms. Returns which of them
    are given their residual in 8 bits.

    It is one that an op with whole rows has written as integers. A norm that is given it and writes in 8 bits leaves y
    unwritten, so that all that reads y must read it in 8 bits.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    writers = {node.output[0]: node for node in fused_nodes(model) if _writes_integers(node, constants)}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    elsewhere = {value.name for value in model.graph.output} | read_inside(model)
    chosen = {node.output[0]: node for node in fused_nodes(model) if node.output[0] in asked and _takes(node, writers)}

    def is_read_in_8_bits(y: str) -> bool:
        return y not in elsewhere and all(_reads_numbers(reader, y, chosen) for reader in readers.get(y, ()))

    # Whether a norm may leave y depends on its readers, and so on for these.
    while refused := [y for y in chosen if y in writers and not is_read_in_8_bits(y)]:
        for y in refused:
            del chosen[y]
    for node in chosen.values():
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
    return set(chosen)


def _writes_integers(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Whether it writes its rows as integers, of which 0 is 0, beside themselves."""
    spec = OPS[node.op_type]
    if not spec.quantized_outputs or spec.quantizes_by_tensor:
        return False
    zero = constants.get(input_of(node, spec, "y_zero_point"))
    return zero is not None and zero.data_type == TensorProto.INT8 and not numpy_helper.to_array(zero).any()


def _takes(node: onnx.NodeProto, writers: dict[str, onnx.NodeProto]) -> bool:
    spec = OPS[node.op_type]
    takes = any(tensor.name == "residual_quantized" for tensor in spec.inputs)
    return takes and input_of(node, spec, "residual") in writers


def _reads_numbers(reader: onnx.NodeProto, y: str, chosen: dict[str, onnx.NodeProto]) -> bool:
    """Whether the node, which reads y, needs nothing of it but its numbers in 8 bits."""
    if reader.domain != DOMAIN or reader.op_type not in OPS:
        return False
    spec = OPS[reader.op_type]
    for tensor, name in zip(spec.inputs, reader.input, strict=False):
        if name != y:
            continue
        as_x = tensor.name == "x" and input_of(reader, spec, "x_quantized")
        as_residual = tensor.name == "residual" and reader.output[0] in chosen
        if not as_x and not as_residual:
            return False
    return True
