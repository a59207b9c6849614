"""Products and look-ups of 8-bit numbers, as other tools write them, become MatMul, Gemm and Gather of floats.

Their constants are QuantizedWeights, which say what the numbers were and how x is rounded: the op that takes the
product in computes the same. What no op takes is put back as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from .. import known_attributes
from ..dialect.quantized import FLOAT8, INT8
from ..eight_bit import QuantizedWeight, Rounding
from ..graph import FusionGraph, as_weight
from ..nodes import DEFAULT_DOMAINS, NoMatch, data_type, producer
from ..weights import Weight

_UINT8 = onnx.TensorProto.UINT8
_TYPES = {INT8: "int8", _UINT8: "uint8", FLOAT8: "float8e4m3fn"}
_NUMPY = {number: onnx.helper.tensor_dtype_to_np_dtype(number) for number in _TYPES}
_TO_INT8 = 128  # from uint8


def anchors(graph: FusionGraph) -> list[gs.Node]:
    found = graph.nodes("MatMul", "Gemm", "MatMulInteger", "Gather", "DequantizeLinear")
    return [node for node in found if _is_anchor(node)]


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    if node.op == "MatMulInteger":
        _integer_product(graph, node)
    elif node.op in ("MatMul", "Gemm"):
        _product(graph, node)
    else:
        _lookup(graph, node)


def fold_vectors(graph: FusionGraph) -> None:
    """Biases, and LayerNorms' vectors, that are stored as integers become floats."""
    for node in graph.nodes("DequantizeLinear"):
        known = all(isinstance(t, gs.Constant) for t in node.inputs) and len(node.inputs[0].shape) <= 1
        if not known or any(map(graph.is_output, node.outputs)):
            continue
        try:
            (values,) = graph.constants.run(node, [np.asarray(t.values) for t in node.inputs])
        except ValueError:
            continue
        (output,) = node.outputs
        output.inputs.clear()
        output.to_constant(values)
        graph.remove(node)


def is_lookup(node: gs.Node | None) -> bool:
    """Whether the node gives rows of a table of 8-bit numbers, as floats."""
    if node is None or node.domain not in DEFAULT_DOMAINS:
        return False
    if node.op == "DequantizeLinear":
        gather = producer(node.inputs[0])
        table = gather.inputs[0] if gather is not None and gather.op == "Gather" else None
    else:
        above = producer(node.inputs[0]) if node.op == "Gather" else None
        table = above.inputs[0] if above is not None and above.op == "DequantizeLinear" else None
    return isinstance(table, gs.Constant) and len(table.shape) == 2


def _is_anchor(node: gs.Node) -> bool:
    return is_lookup(node) if node.op in ("Gather", "DequantizeLinear") else is_product(node)


def is_product(node: gs.Node) -> bool:
    """Whether the node multiplies 8-bit numbers, as they are or as floats that are multiples of them."""
    if node.op == "MatMulInteger":
        return True
    if node.op not in ("MatMul", "Gemm"):
        return False
    above = [producer(_untransposed(tensor)) for tensor in node.inputs[:2]]
    return any(p is not None and p.op == "DequantizeLinear" for p in above)


def _untransposed(tensor: gs.Tensor) -> gs.Tensor:
    node = producer(tensor)
    is_transpose = node is not None and node.op == "Transpose" and list(node.attrs.get("perm", [1, 0])) == [1, 0]
    return node.inputs[0] if is_transpose else tensor


# ---- scales and zeros


@dataclass
class _Scale:
    """The constants of a QuantizeLinear or DequantizeLinear node: one of each, or one for each place along `axis`."""

    type: int
    scale: np.ndarray
    zero: np.ndarray
    axis: int | None


def _scale(graph: FusionGraph, node: gs.Node, stored: gs.Tensor) -> _Scale:
    """Of a node whose 8-bit side is `stored`. Raises NoMatch for what no op takes."""
    known_attributes.check(node, graph.opset)
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    zero = None if zero is None or zero.is_empty() else zero
    for tensor in (scale, zero):
        if tensor is not None and not isinstance(tensor, gs.Constant):
            raise NoMatch(node, f"'{tensor.name}' is computed", wanted="a constant scale and zero point")
    number = data_type(zero.dtype) if zero is not None else None
    if number is None:
        number = node.attrs.get("output_dtype") or (None if stored.dtype is None else data_type(stored.dtype)) or _UINT8
    _check_type(node, number)
    scales = np.asarray(scale.values, np.float32)
    if not np.isfinite(scales).all() or (scales <= 0).any():
        raise NoMatch(node, f"'{scale.name}' is {scales.reshape(-1).min():g}", wanted="a scale above 0")
    zeros = np.zeros(scales.shape, np.int32)
    if zero is not None:
        zeros = np.asarray(zero.values).astype(np.float32).astype(np.int32)
        if zeros.shape != scales.shape and zeros.size > 1:
            raise NoMatch(node, f"'{zero.name}' has {zeros.size} zero points", wanted=f"{scales.size}, as scales")
    axis = node.attrs.get("axis", 1) if scales.size > 1 else None
    return _Scale(number, scales.reshape(-1), zeros.reshape(-1), axis)


def _check_type(node: gs.Node, number: int) -> None:
    if number not in _TYPES:
        name = onnx.helper.tensor_dtype_to_string(number).removeprefix("TensorProto.").lower()
        raise NoMatch(node, f"rounds to {name}", wanted=" or ".join(_TYPES.values()))


def _rounding(graph: FusionGraph, node: gs.Node, dequantize: gs.Node) -> tuple[gs.Tensor, Rounding]:
    """What is rounded and given back as floats by this node, and how."""
    quantize = producer(dequantize.inputs[0])
    if quantize is None or quantize.op != "QuantizeLinear":
        what = f"multiplies 8-bit numbers of {'an input' if quantize is None else quantize.op}"
        raise NoMatch(dequantize, what, wanted="QuantizeLinear right before DequantizeLinear")
    there, back = _scale(graph, quantize, quantize.outputs[0]), _scale(graph, dequantize, dequantize.inputs[0])
    if there.scale.size > 1 or back.scale.size > 1:
        raise NoMatch(quantize, f"has {there.scale.size} scales for what is multiplied", wanted="one for the tensor")
    if (there.type, there.scale[0], there.zero[0]) != (back.type, back.scale[0], back.zero[0]):
        raise NoMatch(dequantize, "scales back otherwise than was rounded", wanted="the scale and zero point of before")
    return quantize.inputs[0], _with_zero(quantize, there)


def _with_zero(node: gs.Node, found: _Scale) -> Rounding:
    zero = int(found.zero[0])
    if found.type == FLOAT8:
        if zero:
            raise NoMatch(node, f"its zero point is {zero}", wanted="0 of 8-bit floats")
        return Rounding(FLOAT8, float(found.scale[0]))
    return Rounding(INT8, float(found.scale[0]), zero + (_TO_INT8 if found.type == INT8 else 0))


# ---- weights


def _stored(node: gs.Node, constant: gs.Constant, found: _Scale) -> tuple[Weight, int]:
    """A constant of 8-bit numbers, those of uint8 as int8, and the zero among them."""
    weight, zeros = as_weight(constant), set(found.zero.tolist())
    if len(zeros) != 1:
        raise NoMatch(node, f"'{constant.name}' has several zero points", wanted="one zero point")
    (zero,) = zeros
    if found.type != _UINT8:
        return weight, zero
    shifted = lambda: (np.asarray(weight.load()).astype(np.int16) - _TO_INT8).astype(np.int8)  # noqa: E731
    return Weight(INT8, weight.shape, shifted), zero - _TO_INT8


def _rounded(constant: gs.Constant, found: _Scale) -> Weight:
    """A float constant as QuantizeLinear rounds it."""

    def load() -> np.ndarray:
        numbers = np.asarray(as_weight(constant).load()).astype(np.float32)
        scale = found.scale if found.axis is None else np.expand_dims(found.scale, 1 - found.axis % 2)
        numbers = numbers / scale
        if found.type == FLOAT8:
            return np.clip(numbers, -448, 448).astype(_NUMPY[FLOAT8])
        limits = np.iinfo(_NUMPY[found.type])
        zero = found.zero if found.zero.size == 1 else np.expand_dims(found.zero, 1 - found.axis % 2)
        return np.clip(np.rint(numbers) + zero, limits.min, limits.max).astype(_NUMPY[found.type])

    return Weight(found.type, constant.shape, load)


def _matrix(graph: FusionGraph, dequantize: gs.Node, rounding: Rounding | None) -> QuantizedWeight:
    """What DequantizeLinear makes of a constant matrix, stored as 8-bit numbers or as floats that are rounded."""
    found, source = _scale(graph, dequantize, dequantize.inputs[0]), dequantize.inputs[0]
    quantize = producer(source)
    if quantize is not None and quantize.op == "QuantizeLinear" and isinstance(quantize.inputs[0], gs.Constant):
        there = _scale(graph, quantize, source)
        same = there.type == found.type and np.array_equal(there.scale, found.scale)
        if not same or not np.array_equal(there.zero, found.zero) or there.axis != found.axis:
            raise NoMatch(dequantize, "scales back otherwise than was rounded", wanted="the scale of before")
        source = gs.Constant(quantize.inputs[0].name, _rounded(quantize.inputs[0], there))
    if not isinstance(source, gs.Constant) or len(source.shape) != 2:
        raise NoMatch(dequantize, f"'{source.name}' is no constant matrix", wanted="a weight")
    return _weight(dequantize, source, found, rounding, dequantize.outputs[0].dtype)


def _weight(
    node: gs.Node, source: gs.Constant, found: _Scale, rounding: Rounding | None, dtype: np.dtype | None
) -> QuantizedWeight:
    integers, zero = _stored(node, source, found)
    axis = 1 if found.axis is None else found.axis % 2
    scales = np.full(source.shape[axis], found.scale[0]) if found.axis is None else found.scale
    if len(scales) != source.shape[axis]:
        raise NoMatch(node, f"has {len(scales)} scales along an axis of {source.shape[axis]}", wanted="one for each")
    floats = onnx.TensorProto.FLOAT if dtype is None else data_type(dtype)
    return QuantizedWeight(integers, scales, axis, rounding, zero, floats)


def _without_zero(weight: QuantizedWeight) -> QuantizedWeight:
    """The same numbers with 0 for 0, where they fit 8 bits so: those of 7 bits do."""
    if not weight.zero or weight.integers.data_type != INT8:
        return weight
    numbers = np.asarray(weight.integers.load()).astype(np.int16) - weight.zero
    if numbers.size and (numbers.min() < -128 or numbers.max() > 127):
        return weight
    stored, zero = weight.integers, weight.zero
    shifted = Weight(INT8, weight.shape, lambda: (np.asarray(stored.load()).astype(np.int16) - zero).astype(np.int8))
    return QuantizedWeight(shifted, weight.scales, weight.axis, weight.rounding, 0, weight.data_type)


def _check_weight(node: gs.Node, weight: QuantizedWeight, channels: int) -> None:
    """Raise NoMatch where the op's formula is another: it has scales for output channels, and weights without zero."""
    if weight.zero:
        unsigned = weight.zero + _TO_INT8
        raise NoMatch(
            node,
            f"the weight's zero is {unsigned} of 0 to 255",
            "quantise weights symmetrically, or to 7 bits",
            wanted="128",
        )
    if weight.axis != channels:
        raise NoMatch(node, "the weight's scales are those of its input channels", wanted="one for each output channel")
    if weight.rounding is not None and (weight.integers.data_type == FLOAT8) != (weight.rounding.data_type == FLOAT8):
        raise NoMatch(node, "multiplies integers with 8-bit floats", wanted="both of one kind")


# ---- products


def _is_activation(dequantize: gs.Node) -> bool:
    above = producer(dequantize.inputs[0])
    source = dequantize.inputs[0] if above is None else above.inputs[0]
    return dequantize.op == "DequantizeLinear" and not isinstance(source, gs.Constant)


def _product(graph: FusionGraph, node: gs.Node) -> None:
    second = _untransposed(node.inputs[1])
    dequantize, rounding, x = producer(second), None, node.inputs[0]
    if isinstance(x, gs.Variable) and dequantize is not None and _is_activation(dequantize):
        hint = "leave attention's own products as they are (nodes_to_exclude)"
        raise NoMatch(node, "both of what it multiplies is rounded to 8 bits", hint, wanted="a constant weight")
    above = producer(x)
    if above is not None and above.op == "DequantizeLinear":
        x, rounding = _rounding(graph, node, above)
    if dequantize is None or dequantize.op != "DequantizeLinear":
        raise NoMatch(node, f"multiplies by '{second.name}', of floats", wanted="a weight of 8-bit numbers")
    weight = _without_zero(_matrix(graph, dequantize, rounding))
    if rounding is not None:
        # Rows of the matrix as it is stored are output channels where it is transposed on the way, or by the product.
        by_rows = (second is not node.inputs[1]) != bool(node.attrs.get("transB", 0))
        one = np.ptp(weight.scales) == 0
        channels = 0 if by_rows else 1
        if one and weight.axis != channels:
            weight = QuantizedWeight(
                weight.integers, np.full(weight.shape[channels], weight.scales[0]), channels, rounding, weight.zero,
                weight.data_type,
            )  # fmt: skip
        _check_weight(dequantize, weight, channels)
    constant = graph.constant(f"{second.name}_floats", weight)
    if second is not node.inputs[1]:
        constant = graph.transposed(constant)
    graph.replace(node, node.op, [x, constant, *node.inputs[2:]], domain="", **node.attrs)


def _integer_product(graph: FusionGraph, node: gs.Node) -> None:
    """MatMulInteger, the Cast of its sums, and the Mul with both scales."""
    known_attributes.check(node, graph.opset)
    source = node.inputs[1]
    if not isinstance(source, gs.Constant) or len(source.shape) != 2:
        raise NoMatch(node, f"multiplies by '{source.name}'", wanted="a constant matrix")
    cast = _only_user(graph, node, "Cast")
    if cast.attrs["to"] != onnx.TensorProto.FLOAT:
        raise NoMatch(cast, "makes no float32 of the sums", wanted="float32")
    root = _only_user(graph, cast, "Mul")
    scales = next((t for t in root.inputs if t is not cast.outputs[0]), None)
    x, x_scale, x_zero, rounding = _quantised_input(graph, node)
    if _given(node, 2) is not x_zero and not _same(x_zero, _given(node, 2)):
        raise NoMatch(node, "takes off another zero point than was added", wanted="that of its input")
    weight_scale = _weight_scale(root, scales, x_scale)
    zero = _given(node, 3)
    if zero is not None and not isinstance(zero, gs.Constant):
        raise NoMatch(node, f"'{zero.name}' is computed", wanted="a constant zero point")
    number = data_type(source.dtype)
    _check_type(node, number)
    zeros = np.zeros(1, np.int32) if zero is None else np.asarray(zero.values).astype(np.int32).reshape(-1)
    values = np.asarray(weight_scale.values, np.float32).reshape(-1)
    if not np.isfinite(values).all() or (values <= 0).any():
        raise NoMatch(root, f"'{weight_scale.name}' is {values.min():g}", wanted="a scale above 0")
    found = _Scale(number, values, zeros, 1 if values.size > 1 else None)
    weight = _without_zero(_weight(node, source, found, rounding, np.dtype(np.float32)))
    _check_weight(node, weight, 1)
    constant = graph.constant(f"{source.name}_floats", weight)
    graph.replace(root, "MatMul", [x, constant], [cast, node], domain="")


def _quantised_input(graph: FusionGraph, node: gs.Node) -> tuple[gs.Tensor, gs.Tensor, gs.Tensor | None, Rounding]:
    """x, its scale and zero point as tensors of the graph, and how it is rounded."""
    above = producer(node.inputs[0])
    if above is not None and above.op == "DynamicQuantizeLinear":
        known_attributes.check(above, graph.opset)
        return above.inputs[0], above.outputs[1], above.outputs[2], Rounding(INT8, None)
    if above is not None and above.op == "QuantizeLinear":
        found = _scale(graph, above, above.outputs[0])
        if found.scale.size > 1:
            raise NoMatch(above, f"has {found.scale.size} scales for what is multiplied", wanted="one for the tensor")
        return above.inputs[0], above.inputs[1], _given(above, 2), _with_zero(above, found)
    what = "an input" if above is None else above.op
    raise NoMatch(node, f"multiplies 8-bit numbers of {what}", wanted="DynamicQuantizeLinear or QuantizeLinear")


def _weight_scale(root: gs.Node, scales: gs.Tensor | None, x_scale: gs.Tensor) -> gs.Constant:
    """What is left of the factor of a product's sums without x's scale."""
    product = None if scales is None else producer(scales)
    if product is not None and product.op == "Mul":
        for one, other in (product.inputs, product.inputs[::-1]):
            if (one is x_scale or _same(one, x_scale)) and isinstance(other, gs.Constant):
                return other
    raise NoMatch(root, f"scales the sums by '{scales.name if scales is not None else '?'}'", wanted="both scales")


def _only_user(graph: FusionGraph, node: gs.Node, op: str) -> gs.Node:
    (output,) = node.outputs
    if len(output.outputs) != 1 or output.outputs[0].op != op or graph.is_output(output):
        users = ", ".join(user.op for user in output.outputs) or "an output of the graph"
        raise NoMatch(node, f"gives its sums to {users}", wanted=op)
    return output.outputs[0]


def _given(node: gs.Node, index: int) -> gs.Tensor | None:
    tensor = node.inputs[index] if index < len(node.inputs) else None
    return None if tensor is None or tensor.is_empty() else tensor


def _same(one: gs.Tensor | None, other: gs.Tensor | None) -> bool:
    both = isinstance(one, gs.Constant) and isinstance(other, gs.Constant)
    return both and np.array_equal(np.asarray(one.values), np.asarray(other.values))


# ---- look-ups


def _lookup(graph: FusionGraph, node: gs.Node) -> None:
    """DequantizeLinear before or behind a Gather of a table's rows, with a scale for the table or for each row."""
    dequantize, gather = node, producer(node.inputs[0])
    if node.op == "Gather":
        dequantize, gather = gather, node
    if gather.attrs.get("axis", 0) != 0:
        raise NoMatch(gather, f"looks up along axis {gather.attrs['axis']}", wanted="axis 0")
    table, interior = (dequantize if node is gather else gather).inputs[0], [] if node is gather else [gather]
    found = _scale(graph, dequantize, table)
    if found.axis is not None and (node is not gather or found.axis % 2 == 1):
        raise NoMatch(
            dequantize, f"has {found.scale.size} scales for '{table.name}'", wanted="one, or one for each row"
        )
    if found.axis is None:
        found = _Scale(found.type, np.full(table.shape[0], found.scale[0]), found.zero, 0)
    weight = _weight(dequantize, table, found, None, node.outputs[0].dtype)
    if weight.zero and np.ptp(weight.scales):
        raise NoMatch(dequantize, f"'{table.name}' has a zero beside scales of rows", wanted="no zero point")
    constant = graph.constant(f"{table.name}_floats", weight)
    graph.replace(node, "Gather", [constant, gather.inputs[1]], interior, domain="", axis=0)
