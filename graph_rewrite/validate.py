"""Is this a model at all? Asked before anything relies on it, and of what came out of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import onnx

from bertfuse.errors import FusionError

from .shapes import safe_to_infer, without_weights
from .weights import Weight


def check(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Raise FusionError for a model that onnx.checker refuses, with sparse initialisers, or names that are not text."""
    for text in _names(skeleton.graph):
        if not isinstance(text, str):  # protobuf hands out what is not UTF-8 as bytes
            raise FusionError(f"the model is damaged: a name in it, {text!r}, is not text; export or copy it again")
    if sparse := next(_sparse_initializers(skeleton.graph), None):
        raise FusionError(f"initialiser '{sparse}' is sparse, which is not supported; write it as a dense tensor")
    for node in _nodes(skeleton.graph):
        _check_split(node)
        _check_keepdims(node)
    bare = without_weights(skeleton, weights)
    for value in (*bare.graph.input, *bare.graph.output):
        if value.type.HasField("tensor_type"):  # unknown ranks, which every runtime takes, the checker does not
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(bare)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise FusionError(f"the model is not valid ONNX: {' '.join(str(error).split())}; export it again") from error


def check_fused(fused: onnx.ModelProto, original: onnx.ModelProto, folded: Callable[[], onnx.ModelProto]) -> None:
    """Raise FusionError for a fused model of which ONNX's strict shape inference says that it contradicts itself.

    The fault may be the original's own, which inference may not see before constants are folded: `folded` gives the
    original with that and nothing else done to it. No model need have its weights.
    """
    faults = _faults(fused)
    if not faults:
        return
    theirs = _faults(original) or [fault for fault in _faults(folded()) if fault in faults]
    if theirs:
        raise FusionError(f"the model is not valid ONNX: {'; '.join(theirs)}; export it again")
    raise FusionError(f"the fused model is not valid ONNX: {'; '.join(faults)}")


_FAULT = re.compile(r"\(op_type:([^,)]+)(?:, node name: (.*?))?\): (?:\[\w+\] )?(.*?)(?= \(op_type:|$)")


def _faults(model: onnx.ModelProto) -> list[str]:
    """What strict shape inference finds wrong, a line for each node."""
    try:
        onnx.shape_inference.infer_shapes(safe_to_infer(model), check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        return [f"{op} '{name}': {fault}" for op, name, fault in _FAULT.findall(text)] or [text]
    return []


def _check_split(node: onnx.NodeProto) -> None:
    """onnx's own shape inference ends the process where these two differ."""
    parts = next((a.i for a in node.attribute if a.name == "num_outputs"), None)
    if node.op_type == "Split" and parts is not None and parts != len(node.output):
        raise FusionError(
            f"the model is not valid ONNX: Split '{node.name or node.output[0]}' has num_outputs {parts} and "
            f"{len(node.output)} outputs; export it again"
        )


def _check_keepdims(node: onnx.NodeProto) -> None:
    """Given another number, onnx and ONNX Runtime's inference find different ranks."""
    keepdims = next((a.i for a in node.attribute if a.name == "keepdims"), 0)
    if node.domain in ("", "ai.onnx") and keepdims not in (0, 1):
        raise FusionError(
            f"the model is not valid ONNX: {node.op_type} '{node.name or node.output[0]}' has keepdims {keepdims}, "
            "not 0 or 1; export it again"
        )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Those of the bodies of If, Loop and Scan, too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


def _sparse_initializers(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        for attribute in node.attribute:
            yield from _sparse_initializers(attribute.g)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (node.op_type, node.name, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            yield from _names(attribute.g)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in graph.initializer)
