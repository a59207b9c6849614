"""What the ONNX parsers of TensorRT 8 and 9 do not know, written with what they do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.graph_rewrite.weights import Weight

OPSET = 17  # what 8.6's parser knows
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_AXES_AS_INPUT = {"ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
                  "ReduceLogSumExp", "ReduceSumSquare"}  # fmt: skip
# Newer than OPSET, with a definition in older operators that comes with onnx.
_DEFINED = ("Attention", "Mish", "RMSNormalization", "RotaryEmbedding")


def element_types(
    model: onnx.ModelProto, weights: Mapping[str, Weight], data_types: Mapping[str, int]
) -> dict[str, int]:
    """Tensor name -> its TensorProto.DataType, of all that onnx infers; `data_types`: of fused nodes' first outputs."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.functions[:]
    kept = [tensor for tensor in probe.graph.initializer if tensor.name not in weights]
    del probe.graph.initializer[:]
    probe.graph.initializer.extend(kept)
    probe.graph.input.extend(
        helper.make_tensor_value_info(name, weight.data_type, list(weight.shape)) for name, weight in weights.items()
    )
    for node in probe.graph.node:
        if node.domain != DOMAIN:
            continue
        spec = OPS[node.op_type]
        for tensor, name in zip((*spec.outputs, *spec.quantized_outputs), node.output, strict=False):
            known = {"T": data_types[node.output[0]], "S": TensorProto.FLOAT}.get(tensor.dtype)
            known = TensorProto.INT32 if tensor.dtype in ("C", "Q") else known  # Q: as eight_bits.py has it
            if name and known:
                probe.graph.value_info.append(helper.make_tensor_value_info(name, known, None))
    inferred = onnx.shape_inference.infer_shapes(probe).graph
    values = [*inferred.input, *inferred.value_info, *inferred.output]
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {tensor.name: tensor.data_type for tensor in inferred.initializer}


def fit(model: onnx.ModelProto, types: Mapping[str, int], layer_normalization: bool = True) -> onnx.ModelProto:
    """`model` in operators of opset 17; one of an older opset comes back as it is, where the parser takes all of it.

    types                see element_types
    layer_normalization  whether the parser knows LayerNormalization (8.5's does not)

    Raises BertfuseError for a node that has no such form.
    """
    opset = next((entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    if opset is None:
        return model
    newest = OPSET if layer_normalization else OPSET - 1
    if opset.version <= newest and not any(_is_sign_of_integers(node, types) for node in model.graph.node):
        return model
    if any(node.op_type in _DEFINED and not node.domain for node in model.graph.node):
        wanted = [("", name) for name in _DEFINED]
        model = onnx.inliner.inline_selected_functions(model, wanted, inline_schema_functions=True)
        opset = next(entry for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    constants = _constants(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.domain in ("", "ai.onnx"):
            if node.op_type == "LayerNormalization" and not layer_normalization:
                nodes.extend(_layer_norm(node, types))
            else:
                nodes.extend(_older(node, constants, types))
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    opset.version = min(opset.version, OPSET)
    return model


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The small integer vectors that are constant, as axes are."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                found[node.output[0]] = attribute.t
    small = {name: tensor for name, tensor in found.items() if np.prod(tensor.dims) <= 16}
    return {
        name: numpy_helper.to_array(tensor)
        for name, tensor in small.items()
        if tensor.data_type in (TensorProto.INT64, TensorProto.INT32)
    }


def _older(node: onnx.NodeProto, constants: Mapping[str, np.ndarray], types: Mapping[str, int]) -> list[onnx.NodeProto]:
    if node.op_type in _AXES_AS_INPUT:
        return [_with_axes(node, constants)]
    if node.op_type == "Gelu":
        return _gelu(node, types)
    if _is_sign_of_integers(node, types):
        return _sign(node, types[node.input[0]])
    dropped = {"Split": "num_outputs", "Cast": "saturate", "CastLike": "saturate"}.get(node.op_type)
    if dropped:
        kept = [attribute for attribute in node.attribute if attribute.name != dropped]
        del node.attribute[:]
        node.attribute.extend(kept)
    if node.op_type == "Pad" and len(node.input) > 3 and node.input[3]:
        raise BertfuseError(f"node {node.name!r} (Pad): has axes, which TensorRT before 10 does not take")
    return [node]


def _is_sign_of_integers(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    """As DeBERTa's positions have it; the parser takes that of floating-point numbers alone."""
    return node.op_type == "Sign" and not node.domain and types.get(node.input[0]) in _INTEGERS


def _sign(node: onnx.NodeProto, dtype: int) -> list[onnx.NodeProto]:
    wide, sign = f"{node.output[0]}/float", f"{node.output[0]}/sign"
    return [
        helper.make_node("Cast", [node.input[0]], [wide], name=wide, to=TensorProto.FLOAT),
        helper.make_node("Sign", [wide], [sign], name=node.name),
        helper.make_node("Cast", [sign], list(node.output), name=f"{node.output[0]}/cast", to=dtype),
    ]


def _with_axes(node: onnx.NodeProto, constants: Mapping[str, np.ndarray]) -> onnx.NodeProto:
    """A reduction whose axes are an attribute, as they were before opset 18."""
    if len(node.input) < 2 or not node.input[1]:
        return node
    name = node.input[1]
    if name not in constants:
        raise BertfuseError(
            f"node {node.name!r} ({node.op_type}): its axes are no constant; TensorRT before 10 needs one"
        )
    del node.input[1:]
    kept = [attribute for attribute in node.attribute if attribute.name != "noop_with_empty_axes"]
    noop = len(kept) < len(node.attribute) and any(
        attribute.i for attribute in node.attribute if attribute.name == "noop_with_empty_axes"
    )
    axes = [int(axis) for axis in constants[name].reshape(-1)]
    if noop and not axes:
        return helper.make_node("Identity", list(node.input), list(node.output), name=node.name)
    del node.attribute[:]
    node.attribute.extend(kept)
    if axes:
        node.attribute.append(helper.make_attribute("axes", axes))
    return node


class _Nodes:
    """Nodes that compute what one did, in its element type; `y` is its output."""

    def __init__(self, node: onnx.NodeProto, types: Mapping[str, int]) -> None:
        self.made: list[onnx.NodeProto] = []
        self._y = node.output[0]
        self._of = (node.name or self._y, node.op_type.lower())
        dtype = types.get(node.input[0]) or types.get(self._y)
        if dtype not in _FLOATS:
            raise BertfuseError(f"node {node.name!r} ({node.op_type}): its element type cannot be told")
        self.dtype = dtype

    def emit(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or self._next()
        self.made.append(
            helper.make_node(op, list(inputs), [name], name=f"{self._of[0]}/{op}_{len(self.made)}", **attributes)
        )
        return name

    def constant(self, value: float, dtype: int | None = None) -> str:
        name = self._next()
        tensor = helper.make_tensor(name, dtype or self.dtype, [], [value])
        self.made.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def _next(self) -> str:
        return f"{self._y}/{self._of[1]}_{len(self.made)}"


def _gelu(node: onnx.NodeProto, types: Mapping[str, int]) -> list[onnx.NodeProto]:
    nodes = _Nodes(node, types)
    emit, constant, x = nodes.emit, nodes.constant, node.input[0]
    tanh = any(a.name == "approximate" and a.s == b"tanh" for a in node.attribute)
    if tanh:
        cube = emit("Mul", emit("Mul", x, x), x)
        inner = emit("Add", x, emit("Mul", cube, constant(0.044715)))
        bell = emit("Tanh", emit("Mul", inner, constant(math.sqrt(2 / math.pi))))
    else:
        bell = emit("Erf", emit("Mul", x, constant(math.sqrt(0.5))))
    half = emit("Mul", x, constant(0.5))
    emit("Mul", half, emit("Add", bell, constant(1.0)), output=node.output[0])
    return nodes.made


def _layer_norm(node: onnx.NodeProto, types: Mapping[str, int]) -> list[onnx.NodeProto]:
    """The statistics and the normalised values in float32, as ONNX has them."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    axis = given.get("axis", -1)
    unlike = "its mean or deviation is used" if any(node.output[1:]) else "its axis is counted from the first one"
    if any(node.output[1:]) or axis >= 0:
        raise BertfuseError(f"node {node.name!r} (LayerNormalization): {unlike}; TensorRT before 8.6 has no form of it")
    nodes, axes = _Nodes(node, types), list(range(axis, 0))
    emit, wide = nodes.emit, TensorProto.FLOAT
    narrow = nodes.dtype != wide
    x = emit("Cast", node.input[0], to=wide) if narrow else node.input[0]
    centered = emit("Sub", x, emit("ReduceMean", x, axes=axes, keepdims=1))
    variance = emit("ReduceMean", emit("Mul", centered, centered), axes=axes, keepdims=1)
    deviation = emit("Sqrt", emit("Add", variance, nodes.constant(given.get("epsilon", 1e-5), wide)))
    y = emit("Div", centered, deviation)
    if narrow:
        y = emit("Cast", y, to=nodes.dtype)
    y = emit("Mul", y, node.input[1])
    nodes.emit("Add" if len(node.input) > 2 and node.input[2] else "Identity", y, *filter(None, node.input[2:3]),
               output=node.output[0])  # fmt: skip
    return nodes.made
