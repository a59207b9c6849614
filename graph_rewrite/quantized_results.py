"""A quantised model whose ops write what the next product reads in 8 bits, so that no kernel stands between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .dialect.quantized import LARGEST
from .fused_nodes import fused_nodes, input_of, set_inputs
from .ops import OPS
from .spec import DOMAIN, OpSpec


class ResultScale(NamedTuple):
    """What an op writes all rows of its result with: integers are y / scale + zero_point."""

    scale: float
    zero_point: int = 0


def write_results(
    model: onnx.ModelProto, scales: Mapping[str, ResultScale], row_sums: Callable[[str], np.ndarray]
) -> int:
    """Changes a skeleton whose weights are quantised; returns how many of its ops write their results in 8 bits.

    What an op writes is read by the products that round alike: to the same type, behind the same smoothing and by the
    same scale, where they have one for all of x. That is the result's scale then. Else each row has its own; an op
    without whole rows takes what `scales` has for its result. Such an op writes 8 bits alone, so that these products
    must be all that reads it. Where a zero point is not 0 `row_sums` gives the sums of the rows of such a product's
    weight, by its name.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    types = {name: tensor.data_type for name, tensor in constants.items()}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    elsewhere = {value.name for value in model.graph.output} | read_inside(model)
    count = 0
    for node in fused_nodes(model):
        spec, y = OPS[node.op_type], node.output[0]
        by_tensor = spec.quantizes_by_tensor
        products = [reader for reader in readers.get(y, []) if _rounds(reader, y, types, spec)]
        if not spec.quantized_outputs or not products:
            continue
        form = smooth, data_type, x_scale = _form(products[0], types, constants)
        alike = [reader for reader in products if _form(reader, types, constants) == form]
        names = {"y_zero_point": _constant(model, types, f"bertfuse_zero_{data_type}", data_type, b"\0")}
        chosen = ResultScale(x_scale) if x_scale is not None else scales.get(y) if by_tensor else None
        if by_tensor and (chosen is None or len(alike) != len(readers[y]) or y in elsewhere):
            continue
        if chosen is not None:
            scale, zero = chosen
            scale_data = np.float32(scale).tobytes()
            names["y_tensor_scale"] = _constant(model, types, f"{y}_tensor_scale", onnx.TensorProto.FLOAT, scale_data)
            if zero:
                names["y_zero_point"] = _constant(model, types, f"{y}_zero_point", data_type, np.int8(zero).tobytes())
                _compensate(model, alike, zero, row_sums)
        if smooth:
            names["y_smooth"] = smooth
        set_inputs(node, spec, names)
        rows, row_scales = f"{y}_in_8_bits", f"{y}_row_scales"
        node.output.extend([rows, row_scales])
        for reader in alike:
            given = {"x_smooth": "", "x_scale": "", "x_quantized": rows, "x_row_scale": row_scales}
            set_inputs(reader, OPS[reader.op_type], given)
        count += 1
    return count


def _compensate(
    model: onnx.ModelProto, products: list[onnx.NodeProto], zero: int, row_sums: Callable[[str], np.ndarray]
) -> None:
    """Give products of integers with a zero point what that adds to their sums."""
    for product in products:
        spec = OPS[product.op_type]
        sums = row_sums(input_of(product, spec, "weight"))
        name = f"{product.name or product.output[0]}_compensation"
        model.graph.initializer.append(numpy_helper.from_array((sums * zero).astype(np.int32), name))
        set_inputs(product, spec, {"x_compensation": name})


def _takes_scale(spec: OpSpec) -> bool:
    return any(tensor.name == "y_tensor_scale" for tensor in spec.inputs)


def _rounds(reader: onnx.NodeProto, y: str, types: Mapping[str, int], writer: OpSpec) -> bool:
    """Whether the node is a product that quantises y as its writer may do it: by a scale for each row, or by one."""
    if reader.domain != DOMAIN or reader.op_type not in OPS:
        return False
    spec = OPS[reader.op_type]
    takes = any(tensor.name == "x_quantized" for tensor in spec.inputs)
    if not takes or input_of(reader, spec, "x") != y or types.get(input_of(reader, spec, "weight")) not in LARGEST:
        return False
    if writer.quantizes_by_tensor:
        return list(reader.input).count(y) == 1
    return _takes_scale(writer) or not input_of(reader, spec, "x_scale")


def _form(
    reader: onnx.NodeProto, types: Mapping[str, int], constants: Mapping[str, onnx.TensorProto]
) -> tuple[str, int, float | None]:
    """Its factors, its type, and its one scale for x, if it has one."""
    spec = OPS[reader.op_type]
    data_type, scale = types[input_of(reader, spec, "weight")], input_of(reader, spec, "x_scale")
    value = float(numpy_helper.to_array(constants[scale])) if scale else None
    return input_of(reader, spec, "x_smooth"), data_type, value


def _constant(model: onnx.ModelProto, types: dict[str, int], name: str, data_type: int, data: bytes) -> str:
    """A scalar, once for each name."""
    if name not in types:
        types[name] = data_type
        model.graph.initializer.append(helper.make_tensor(name, data_type, [], data, raw=True))
    return name


def read_inside(model: onnx.ModelProto) -> set[str]:
    """What bodies of If and loops read of the graph around them."""
    found = set()
    for node in model.graph.node:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found |= {name for inner in graph.node for name in inner.input}
    return found
