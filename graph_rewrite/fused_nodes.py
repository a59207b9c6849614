"""Fused nodes of a skeleton, and their inputs by the names of the op's description."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from .ops import OPS
from .spec import DOMAIN, OpSpec


def fused_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.domain == DOMAIN and node.op_type in OPS]


def input_of(node: onnx.NodeProto, spec: OpSpec, tensor: str) -> str:
    """The tensor that the node is given there; "" where it is given none, or the op has no such input."""
    place = spec.input_index(tensor) if any(known.name == tensor for known in spec.inputs) else len(node.input)
    return node.input[place] if place < len(node.input) else ""


def may_leave_y(node: onnx.NodeProto) -> bool:
    """Whether kernels may leave the node's first output unwritten."""
    spec = OPS[node.op_type]
    given = {tensor.name for tensor, name in zip(spec.inputs, node.input, strict=False) if name}
    y_use = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "y_use"), "")
    return spec.may_leave_y(given, y_use)


def set_inputs(node: onnx.NodeProto, spec: OpSpec, names: Mapping[str, str]) -> None:
    """Gives the node those inputs; "" takes one away."""
    for tensor, name in names.items():
        place = spec.input_index(tensor)
        node.input.extend([""] * (place + 1 - len(node.input)))
        node.input[place] = name
    while node.input and not node.input[-1]:
        node.input.pop()
