"""A fused model's calls of our ops at a batch and sequence size: shapes, dtypes and attributes, no data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import open_model
from bertfuse.graph_rewrite.local_functions import inlined
from bertfuse.graph_rewrite.nodes import data_type
from bertfuse.graph_rewrite.ops import PACKING_OPS
from bertfuse.graph_rewrite.shapes import monomial
from bertfuse.graph_rewrite.spec import DOMAIN, PADDING_KEY, AttrSpec, OpSpec
from bertfuse.qualify.problem import tensor_shape
from bertfuse.runtime import native


def model_calls(path: Path, batch: int, sequence: int) -> list[tuple[str, native.Call, int]]:
    """(op, call, how many nodes) of the fused ops of the model at `path`, run at that size.

    The calls hold shapes, dtypes and attributes, and say which inputs are initialisers. Of packed rows there are as
    many as without padding. Raises BertfuseError.
    """
    skeleton, weights = open_model(path)
    constants = {tensor.name for tensor in skeleton.graph.initializer} | set(weights)
    shapes = _shapes(skeleton, weights, batch, sequence, path)
    found: dict[tuple[Any, ...], tuple[str, native.Call, int]] = {}
    opsets = {entry.domain: entry.version for entry in skeleton.opset_import}
    for node in skeleton.graph.node:
        if node.domain != DOMAIN or node.op_type not in OPS:
            if any(name not in shapes for name in node.output):
                shapes |= _standard_shapes(node, shapes, opsets)
            continue
        spec = OPS[node.op_type]
        names = [*node.input, *[""] * (len(spec.inputs) - len(node.input))]
        values = [_attribute(node, attr, path) for attr in spec.attributes]
        if all(name in shapes for name in names if name) and any(name not in shapes for name in node.output):
            # Of packed tensors neither the file nor ONNX's inference says more than their columns.
            given = [shapes[name] if name else None for name in names]
            attributes = dict(zip((attr.name for attr in spec.attributes), values, strict=True))
            shapes |= zip(node.output, output_shapes(spec, given, attributes), strict=False)
        if node.op_type in PACKING_OPS:
            continue  # there is one way to move rows
        unknown = [name for name in (*names, *node.output) if name and name not in shapes]
        if unknown:
            raise BertfuseError(f"{path}: node {node.name!r}: the shape of {unknown[0]!r} is unknown; fuse it again")
        tensors = [shapes[name] if name else (native.ABSENT, []) for name in names]
        constant = sum(1 << index for index, name in enumerate(names) if name in constants)
        key = (node.op_type, str(tensors), str(values), constant)
        if key not in found:
            inputs = [native.Tensor.of(dtype, dims) for dtype, dims in tensors]
            outputs = [native.Tensor.of(*shapes[name]) for name in node.output]
            found[key] = node.op_type, native.Call.of(inputs, outputs, values, constant_inputs=constant), 0
        op, call, count = found[key]
        found[key] = op, call, count + 1
    if not found:
        raise BertfuseError(f"{path}: has no fused op; make one that has with 'bertfuse fuse' or 'optimize'")
    return list(found.values())


def _standard_shapes(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, list[int]]], opsets: Mapping[str, int]
) -> dict[str, tuple[int, list[int]]]:
    """What ONNX infers of a node of its own from the shapes of its inputs."""
    if any(name and name not in shapes for name in node.input):
        return {}
    types = {name: onnx.helper.make_tensor_type_proto(*shapes[name]) for name in node.input if name}
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        made = onnx.shape_inference.infer_node_outputs(schema, node, types)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}
    named = {name: _sizes(onnx.helper.make_value_info(name, made[name]), {}) for name in node.output if name in made}
    return {name: known for name, known in named.items() if known is not None}


def output_shapes(
    spec: OpSpec, given: Sequence[tuple[int, list[int]] | None], attributes: Mapping[str, Any]
) -> list[tuple[int, list[int]]]:
    """(element type, shape) of the op's outputs, of inputs and attributes that fit it; None is an absent input."""
    sizes: dict[str, int] = {}
    leading: tuple[int, ...] = ()
    dtypes = dict.fromkeys("TIC", onnx.TensorProto.INT32) | {"S": onnx.TensorProto.FLOAT}
    for tensor, known in zip(spec.inputs, given, strict=False):
        if known is None:
            continue
        dtypes[tensor.dtype], shape = known
        before = len(shape) - len(tensor.trailing)
        if tensor.leading:
            leading = tuple(shape[:before])
        for axis, size in zip(tensor.trailing, shape[before:], strict=True):
            if not axis.is_attribute:
                sizes.setdefault(axis.symbol, axis.symbol_size(size, attributes))
    present = [tensor.name for tensor, known in zip(spec.inputs, given, strict=False) if known is not None]
    outputs = spec.outputs_of(present)
    return [(dtypes[t.dtype], list(tensor_shape(t, sizes, leading, attributes))) for t in outputs]


def _attribute(node: onnx.NodeProto, spec: AttrSpec, path: Path) -> int | float | str:
    """The attribute's value or default. The library reads it by the op table's type, not by the node's."""
    given = next((attr for attr in node.attribute if attr.name == spec.name), None)
    if given is not None and given.type == getattr(onnx.AttributeProto, spec.kind.upper()):
        value = onnx.helper.get_attribute_value(given)
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    if given is None and spec.default is not None:
        return spec.default
    found = "missing" if given is None else f"of type {onnx.AttributeProto.AttributeType.Name(given.type).lower()}"
    raise BertfuseError(
        f"{path}: node {node.name!r}: {node.op_type}: attribute {spec.name!r} is {found}, expected {spec.kind};"
        " fuse it again"
    )


def _shapes(
    skeleton: onnx.ModelProto, weights: dict[str, Any], batch: int, sequence: int, path: Path
) -> dict[str, tuple[int, list[int]]]:
    """(element type, shape) of every tensor that is known at that size."""
    named: dict[str, int] = {}
    initializers = {tensor.name for tensor in skeleton.graph.initializer}
    ragged = any(entry.key == PADDING_KEY and entry.value == "ragged" for entry in skeleton.metadata_props)
    # Of a ragged batch [T], cu_seqlens [B + 1], and of max_seqlen as many elements as the longest sequence has tokens.
    rows = {"cu_seqlens": (batch + 1,), "max_seqlen": (sequence,)}
    for value in skeleton.graph.input:
        dims = value.type.tensor_type.shape.dim
        wanted = rows.get(value.name, (batch * sequence,)) if ragged else (batch, sequence)
        if value.name in initializers or len(dims) != len(wanted):
            continue
        for dim, size in zip(dims, wanted, strict=True):
            if dim.dim_value and dim.dim_value != size:
                raise BertfuseError(f"{path}: input {value.name!r} has a fixed size of {dim.dim_value}, not {size}")
            if dim.dim_param:
                named[dim.dim_param] = size
    # What the file says itself, by name, comes before inference, which knows less of what functions compute.
    declared = [*skeleton.graph.value_info, *skeleton.graph.input, *skeleton.graph.output]
    found = {value.name: _sizes(value, named) for value in declared}
    for value in skeleton.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named:
                dim.dim_value = named[dim.dim_param]
    for name, tensor in FusionGraph(inlined(skeleton), weights).gs.tensors().items():
        if found.get(name) is None and tensor.shape is not None and tensor.dtype is not None:
            found[name] = data_type(tensor.dtype), list(tensor.shape)
    found |= {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in skeleton.graph.initializer}
    found |= {name: (weight.data_type, list(weight.shape)) for name, weight in weights.items()}
    return {name: tensor for name, tensor in found.items() if tensor and all(isinstance(dim, int) for dim in tensor[1])}


def _sizes(value: onnx.ValueInfoProto, named: dict[str, int]) -> tuple[int, list[int]] | None:
    """Element type and shape, where every dimension is a number or a product of those names."""
    tensor, sizes = value.type.tensor_type, []
    if not tensor.HasField("shape"):
        return None
    for dim in tensor.shape.dim:
        factors = monomial(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None)
        if factors is None or any(symbol not in named for symbol in factors[1]):
            return None
        sizes.append(factors[0] * math.prod(named[symbol] for symbol in factors[1]))
    return tensor.elem_type, sizes
