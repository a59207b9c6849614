"""From the graph under rewriting back to an ONNX model that keeps everything the original said of itself."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from . import domains
from .graph import FusionGraph
from .nodes import DEFAULT_DOMAINS, data_type
from .ops import OPS
from .spec import DOMAIN
from .weights import MIN_BYTES, Weight

_WRITTEN_AS_THEY_ARE = [
    getattr(onnx.AttributeProto, name) for name in ("FLOAT", "INT", "STRING", "TENSOR", "FLOATS", "INTS", "STRINGS")
]
_MODEL_FIELDS = ("doc_string", "domain", "model_version", "producer_name", "producer_version", "ir_version")


def to_model(
    graph: FusionGraph, original: onnx.ModelProto
) -> tuple[onnx.ModelProto, dict[str, Weight], dict[str, int]]:
    """The model without its large weights, these, and the element type of each fused node's first output."""
    tensors = graph.gs.tensors()
    beside = [*graph.defaults.values(), *(t for name, t in graph.captured_constants.items() if name not in tensors)]
    weights = {
        tensor.name: tensor._values
        for tensor in (*tensors.values(), *beside)
        if isinstance(tensor, gs.Constant) and isinstance(tensor._values, Weight)
    }
    fused = [node for node in graph.gs.nodes if node.domain == DOMAIN]
    data_types = {node.outputs[0].name: _element_type(node) for node in fused}
    model = gs.export_onnx(graph.gs, do_type_check=False, opset_imports=list(original.opset_import))
    domains.restore(model.graph.node)
    model.graph.initializer.extend(OnnxExporter.export_tensor_proto(tensor) for tensor in beside)
    _keep_attributes(model, original)
    for field in _MODEL_FIELDS:
        setattr(model, field, getattr(original, field))
    for tensor in model.graph.initializer:
        # What is small after transposing or packing goes where a reader of the file would leave it: into the message.
        if tensor.name in weights and weights[tensor.name].nbytes < MIN_BYTES:
            weights.pop(tensor.name).fill(tensor)
    model.metadata_props.extend(original.metadata_props)
    model.graph.metadata_props.extend(original.graph.metadata_props)
    del model.functions[:]
    model.functions.extend(original.functions)
    if not graph.interface_changed:
        for ours, theirs in ((model.graph.input, original.graph.input), (model.graph.output, original.graph.output)):
            _keep_declarations(ours, theirs)
    # Of intermediate shapes only those that the exporter gave and those of fused outputs are worth keeping.
    known = {value.name for value in original.graph.value_info} | set(data_types)
    kept = [value for value in model.graph.value_info if value.name in known]
    declared = (*original.graph.input, *original.graph.output, *original.graph.value_info)
    _forget_names(kept, {dim.dim_param for value in declared for dim in value.type.tensor_type.shape.dim})
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    if not graph.interface_changed:
        _keep_ranks_for_scans(model, original)
    return model, weights, data_types


def _element_type(node: gs.Node) -> int:
    """The float type of a fused node, whose inputs agree in it; shape inference may have lost that of its output.

    Of an op that has no floats, float32, in which bodies compute.
    """
    floats = [t for t, spec in zip(node.inputs, OPS[node.op].inputs, strict=False) if spec.is_float]
    if not floats:
        return onnx.TensorProto.FLOAT
    return next(data_type(t.dtype) for t in (node.outputs[0], *floats) if not t.is_empty() and t.dtype is not None)


def _keep_attributes(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Attributes as they were which onnx-graphsurgeon changes or drops.

    It writes what a body reads from the outer graph into the body once more, and does not know some types.
    """
    kept = {
        (node.op_type, *node.output): found
        for node in original.graph.node
        if (found := [a for a in node.attribute if a.type not in _WRITTEN_AS_THEY_ARE])
    }
    for node in model.graph.node:
        for attribute in kept.get((node.op_type, *node.output), ()):
            written = next((a for a in node.attribute if a.name == attribute.name), None)
            (node.attribute.add() if written is None else written).CopyFrom(attribute)


def _forget_names(values: list[onnx.ValueInfoProto], known: set[str]) -> None:
    """Sizes that only inference has a name for are unknown to whoever reads the file."""
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param not in known:
                dim.ClearField("dim_param")


def _keep_ranks_for_scans(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """How many axes the original declared of what a Scan reads, where no more is known of it.

    ONNX Runtime runs a Scan only if it can work out the rank of what the body gives, and knows none of a Loop's results
    for example. Sizes stay unknown: they need not be right, and a rank is the same once padding is removed.
    """
    declared = {value.name: value for value in original.graph.value_info if value.type.tensor_type.HasField("shape")}
    stack = list(_read_by_scans(model.graph)) if declared else []
    if not stack:
        return
    known = {value.name: value for value in (*model.graph.value_info, *model.graph.input)}
    makers = {name: node for node in model.graph.node for name in node.output}
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        found = known.get(name)
        if name in seen or name not in makers or (found is not None and found.type.tensor_type.HasField("shape")):
            continue
        seen.add(name)
        if name not in declared:
            stack.extend(makers[name].input)  # from these ONNX Runtime may work it out
        elif found is not None and found.type.tensor_type.elem_type:
            for _ in declared[name].type.tensor_type.shape.dim:
                found.type.tensor_type.shape.dim.add()
            found.type.tensor_type.shape.SetInParent()  # of a scalar, too


def _read_by_scans(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        if node.op_type == "Scan" and node.domain in DEFAULT_DOMAINS:
            yield from node.input
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _read_by_scans(body)


def _keep_declarations(ours, theirs) -> None:
    """Inputs and outputs as they were declared, but for an element type that conversion changed."""
    types = {value.name: value.type.tensor_type.elem_type for value in ours}
    del ours[:]
    for value in theirs:
        ours.append(value)
        if value.type.HasField("tensor_type"):
            ours[-1].type.tensor_type.elem_type = types[value.name]
