"""Model-local functions: each fused op in standard operators, for runtimes that do not have our library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from .dialect.quantized import LARGEST
from .dialect.standard_ops import AttributeRef, FunctionBody
from .ops import OPS
from .spec import DOMAIN, OP_VERSION, OpSpec

# Function overloads came with this IR version.
_OVERLOAD_IR_VERSION = 10


@dataclass(frozen=True)
class Signature:
    """What a body depends on: which inputs are there, the strings among the attributes, the element type.

    `heads` are number and size of an attention's heads, where the file tells: such a body computes no shapes.
    `weight_type` is the element type of a quantised weight, `y_type` of results in 8 bits; 0 where there are none.
    """

    op: str
    present: tuple[str, ...]
    strings: tuple[tuple[str, str], ...]
    data_type: int
    heads: tuple[int, int] | None = None
    weight_type: int = 0
    y_type: int = 0


def attach(
    model: onnx.ModelProto,
    data_types: dict[str, int],
    make_body: Callable[[int, int], FunctionBody] = lambda opset, data_type: FunctionBody(opset),
) -> None:
    """Give `model` one function for each fused op type in it.

    `data_types` maps the first output of a fused node to its element type. A model that uses an op in two forms (with
    and without an optional input, of two numbers of heads) gets the rarer form as an overload of the function, which
    needs IR version 10.
    `make_body(opset, element type)` is what the bodies are written into.
    """
    sizes = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if len(tensor.dims) == 1}
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    forms: dict[str, dict[Signature, list[onnx.NodeProto]]] = {}
    for node in model.graph.node:
        if node.domain == DOMAIN:
            signature = _signature(node, data_types[node.output[0]], sizes, types)
            forms.setdefault(node.op_type, {}).setdefault(signature, []).append(node)
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for by_signature in forms.values():
        ranked = sorted(by_signature.items(), key=lambda item: -len(item[1]))
        for index, (signature, nodes) in enumerate(ranked):
            overload = f"form_{index + 1}" if index else ""
            body = make_body(opset, signature.data_type)
            model.functions.append(function(OPS[signature.op], signature, opset, overload, body))
            if overload:
                model.ir_version = max(model.ir_version, _OVERLOAD_IR_VERSION)
                for node in nodes:
                    node.overload = overload


def function(
    spec: OpSpec, signature: Signature, opset: int, overload: str = "", body: FunctionBody | None = None
) -> onnx.FunctionProto:
    """The function of one op in the form that `signature` gives, for a model of that opset, written into `body`."""
    body = FunctionBody(opset) if body is None else body
    body.heads, body.weight_type, body.y_type = signature.heads, signature.weight_type, signature.y_type
    body.data_type = signature.data_type
    plain = signature.data_type == TensorProto.FLOAT
    values = []
    for tensor in spec.inputs:
        value = tensor.name if tensor.name in signature.present else None
        is_float = tensor.dtype == "T" or (tensor.dtype == "W" and not signature.weight_type)
        if value is not None and is_float and not plain:
            # Products, statistics and softmax are float32 in every kernel, and here too.
            value = body.emit("Cast", [value], to=TensorProto.FLOAT)
        values.append(value)
    strings = dict(signature.strings)
    settings = {
        a.name: strings.get(a.name, a.default if a.by_pass else AttributeRef(a.name, a.kind)) for a in spec.attributes
    }
    outputs = spec.body(body, *values, **settings)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    described = spec.outputs_of(signature.present)
    for value, tensor in zip(outputs, described, strict=True):
        cast = not plain and tensor.is_float
        body.rename(body.emit("Cast", [value], to=signature.data_type) if cast else value, tensor.name)
    # TensorRT's parser wants as many inputs as its callers give.
    last = max(spec.input_index(name) for name in signature.present)
    result = helper.make_function(
        DOMAIN,
        spec.name,
        [t.name for t in spec.inputs[: last + 1]],
        [t.name for t in described],
        body.nodes,
        [helper.make_opsetid("", opset)],
        attributes=[
            *(a.name for a in spec.attributes if not a.by_pass or a.name in strings),
            "plugin_version",
            "plugin_namespace",
        ],
        doc_string=spec.doc,
    )
    if overload:
        result.overload = overload
    return result


def _signature(node: onnx.NodeProto, data_type: int, sizes: dict[str, int], types: dict[str, int]) -> Signature:
    spec = OPS[node.op_type]
    present = tuple(t.name for t, name in zip(spec.inputs, node.input, strict=False) if name)
    strings = tuple(
        (a.name, helper.get_attribute_value(a).decode())
        for a in node.attribute
        if a.type == onnx.AttributeProto.STRING and any(a.name == s.name for s in spec.attributes)
    )

    def quantized_type(variable: str) -> int:
        name = next((name for t, name in zip(spec.inputs, node.input, strict=False) if t.dtype == variable), "")
        return types[name] if types.get(name) in LARGEST else 0

    heads = _heads(node, sizes)
    return Signature(node.op_type, present, strings, data_type, heads, quantized_type("W"), quantized_type("Q"))


def _heads(node: onnx.NodeProto, sizes: dict[str, int]) -> tuple[int, int] | None:
    """Number and size of the heads, by the length of the bias of Q, K and V."""
    count = next((a.i for a in node.attribute if a.name == "num_heads"), 0)
    packed = [i for i, tensor in enumerate(OPS[node.op_type].inputs) if tensor.axes == ("3*H",)]
    size = sizes.get(node.input[packed[0]], 0) if count > 0 and packed else 0
    return (count, size // (3 * count)) if size else None


def import_domain(model: onnx.ModelProto) -> None:
    """Say that the model uses our ops."""
    if all(o.domain != DOMAIN for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, OP_VERSION))
