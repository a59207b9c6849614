"""A quantised model for the plugins: its tensors of 8 bits as int32 tensors of the same bytes.

TensorRT ties int8 and fp8 to rules of its own (scales by calibration, constants for DequantizeLinear alone), and knows
no fp8 before 8.6. So each such tensor has a quarter of its columns and is int32 in the network, and the plugins are
told what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS
from bertfuse.graph_rewrite.fused_nodes import input_of, may_leave_y
from bertfuse.graph_rewrite.quantization import drop_unused
from bertfuse.graph_rewrite.quantized_results import read_inside
from bertfuse.graph_rewrite.spec import DOMAIN, DTYPE_VARIABLES, OpSpec, TensorSpec
from bertfuse.graph_rewrite.weights import Weight

# Plugins' fields. Bit i of the first says that the op's input i is given, which ranks do not tell of a quantised form.
# The others are what the tensors of the dtype variables W and Q hold (ONNX's numbers).
GIVEN_INPUTS = "given_inputs"
TYPE_FIELDS = {"W": "weight_type", "Q": "result_type"}

_EIGHT_BITS = set(DTYPE_VARIABLES["Q"].values())
_IN_INT32 = 4


def as_int32(
    source: str | Path, model: onnx.ModelProto, weights: dict[str, Weight], fused: Iterable[onnx.NodeProto]
) -> dict[str, dict[str, int]]:
    """Changes model and weights in place; first output -> the plugin's fields, of each node of a quantised form.

    Every output that such a node can have gets a name, as a plugin's layer puts out all of them. Raises BertfuseError,
    with node and tensor, for what cannot be written so.
    """
    nodes = [node for node in fused if _is_quantized(node, OPS[node.op_type])]
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    written: dict[str, int] = {}
    for node in nodes:
        for tensor, name in zip(_name_outputs(node), node.output, strict=True):
            if tensor.dtype == "Q":
                written[name] = types.get(input_of(node, OPS[node.op_type], tensor.needs), 0)
    fields: dict[str, dict[str, int]] = {}
    replaced: dict[str, str] = {}
    for node in nodes:
        spec = OPS[node.op_type]
        given = sum(1 << place for place, name in enumerate(node.input) if name)
        fields[node.output[0]] = found = {GIVEN_INPUTS: given}
        for place, (tensor, name) in enumerate(zip(spec.inputs, node.input, strict=False)):
            if not name or not _is_of_eight_bits(node, spec, tensor):
                continue
            where = f"{source}: {node.op_type} {node.name or node.output[0]!r}: {tensor.name} {name!r}"
            data_type = types.get(name) or written.get(name, 0)
            if data_type not in _EIGHT_BITS:
                raise BertfuseError(f"{where} is neither an 8-bit initialiser nor a fused op's result; quantise again")
            if found.setdefault(TYPE_FIELDS[tensor.dtype], data_type) != data_type:
                other = "weight" if tensor.dtype == "W" else "result"
                raise BertfuseError(f"{where} is of another 8-bit type than the {other}; quantise again")
            if name in written:
                continue
            if name not in replaced:
                replaced[name] = _replace(model, weights, name, shapes[name], where)
            node.input[place] = replaced[name]
    _check_readers(source, model, written)
    kept = [value for value in model.graph.value_info if value.name not in written]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    if replaced:
        drop_unused(model, weights)
    return fields


def unwritten(node: onnx.NodeProto) -> set[str]:
    """The outputs of a fused node that are no floats, or that its kernel may leave as they are."""
    names = {name for tensor, name in zip(_outputs(node), node.output, strict=False) if tensor.dtype == "Q"}
    return names | ({node.output[0]} if may_leave_y(node) else set())


def check_kernels(source: str | Path, fused: Iterable[onnx.NodeProto]) -> None:
    """Raises BertfuseError for what quantised products may be given, but no CUDA kernel takes."""
    for node in fused:
        if input_of(node, OPS[node.op_type], "x_zero"):
            raise BertfuseError(
                f"{source}: {node.op_type} {node.name or node.output[0]!r}: no CUDA kernel takes activations with a"
                " zero point (x_zero); quantise them symmetrically"
            )


def _is_quantized(node: onnx.NodeProto, spec: OpSpec) -> bool:
    return any(name and tensor.of_quantized_form for tensor, name in zip(spec.inputs, node.input, strict=False))


def _is_of_eight_bits(node: onnx.NodeProto, spec: OpSpec, tensor: TensorSpec) -> bool:
    """Of a weight, or an x that another op has rounded, its scales tell."""
    scales = (known.name for known in spec.inputs if tensor.dtype == "W" and known.scales == tensor.name)
    return tensor.dtype == "Q" or any(input_of(node, spec, name) for name in scales)


def _outputs(node: onnx.NodeProto) -> tuple[TensorSpec, ...]:
    spec = OPS[node.op_type]
    return spec.outputs_of({tensor.name for tensor, name in zip(spec.inputs, node.input, strict=False) if name})


def _name_outputs(node: onnx.NodeProto) -> tuple[TensorSpec, ...]:
    """Names for outputs of the node that it leaves out."""
    outputs = _outputs(node)
    node.output.extend([""] * (len(outputs) - len(node.output)))
    for place, tensor in enumerate(outputs):
        node.output[place] = node.output[place] or f"{node.output[0]}/{tensor.name}"
    return outputs


def _replace(model: onnx.ModelProto, weights: dict[str, Weight], name: str, shape: tuple[int, ...], where: str) -> str:
    """The name of a new initialiser with the bytes of one of 8 bits."""
    made = f"{name}_as_int32"
    if not shape:
        (value,) = _bytes_of(next(tensor for tensor in model.graph.initializer if tensor.name == name)).reshape(-1)
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int32), made))
        return made
    if shape[-1] % _IN_INT32:
        raise BertfuseError(
            f"{where} has {shape[-1]} columns, which {_IN_INT32} does not divide: the plugins take 8-bit tensors as"
            " int32; keep that layer in float (bertfuse quantize --keep)"
        )
    narrow = (*shape[:-1], shape[-1] // _IN_INT32)
    if name in weights:
        of = weights[name]
        weights[made] = Weight(TensorProto.INT32, narrow, lambda: _narrowed(of.load()))
        model.graph.initializer.add(name=made, data_type=TensorProto.INT32, dims=narrow)
    else:
        array = _bytes_of(next(tensor for tensor in model.graph.initializer if tensor.name == name))
        model.graph.initializer.append(numpy_helper.from_array(_narrowed(array), made))
    return made


def _bytes_of(tensor: onnx.TensorProto) -> np.ndarray:
    return numpy_helper.to_array(tensor).view(np.uint8)


def _narrowed(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view("<i4")


def _check_readers(source: str | Path, model: onnx.ModelProto, written: Mapping[str, int]) -> None:
    """Raises BertfuseError where anything but a product of ours reads results in 8 bits."""
    for node in model.graph.node:
        spec = OPS.get(node.op_type) if node.domain == DOMAIN else None
        for place, name in enumerate(node.input):
            if name in written and (
                spec is None or spec.inputs[place].name not in ("x_quantized", "residual_quantized")
            ):
                raise BertfuseError(
                    f"{source}: {node.op_type} {node.name or node.output[0]!r} reads {name!r}, a result in 8 bits,"
                    " which the plugins hand each other alone"
                )
    for name in sorted(read_inside(model) & set(written)):
        raise BertfuseError(
            f"{source}: the body of an If or a loop reads {name!r}, a result in 8 bits: not in an engine"
        )
    for value in model.graph.output:
        if value.name in written:
            raise BertfuseError(f"{source}: output {value.name!r} is a result in 8 bits; leave it out for an engine")
