"""A fused model with 8-bit weights: the ops' optional scales are filled in, and their bodies written anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertfuse.errors import FusionError

from . import functions
from .dialect.quantized import FLOAT8, INT8
from .eight_bit import weight_of as _weight_of
from .fused_nodes import fused_nodes, input_of, set_inputs
from .ops import OPS
from .quantized_residuals import restore_residuals
from .quantized_results import ResultScale, write_results
from .spec import DOMAIN, DTYPE_VARIABLES, QUANTIZED_KEY, OpSpec, TensorSpec
from .weight_rounding import Compensation, rounded, row_scales
from .weights import Weight

TYPES = {"int8": INT8, "fp8": FLOAT8}
# The first opset with 8-bit floats, which an op's body casts to.
_FLOAT8_OPSET = 19

# Operators of quantised models that other tools write.
_FOREIGN = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention", "QGemm", "MatMulNBits", "DynamicQuantizeLSTM"),
)


@dataclass(frozen=True)
class Layer:
    """A fused node with a weight [N, K], or a table of words [V, H], that can be quantised.

    `name` is the node's, `x` the tensor that it multiplies ("" for a table), `node` its place in the graph, `residual`
    the tensor that it adds ("" for none). `parts` are the weights side by side in it, 3 of Q, K and V, 2 of a gate; 0
    of a table. `writer` is the fused op that x comes from ("": another).
    """

    name: str
    op: str
    node: int
    weight: str
    x: str
    shape: tuple[int, int]
    residual: str = ""
    parts: int = 1
    writer: str = ""


@dataclass(frozen=True)
class RoundedWeight:
    """A weight [N, K] in 8 bits: its rows' scales, float32 [N], and what loads the numbers."""

    scales: np.ndarray
    load: Callable[[], np.ndarray]

    def sums(self) -> np.ndarray:
        """int64 [N]: the sum of each row's numbers."""
        return self.load().sum(axis=1, dtype=np.int64)


@dataclass(frozen=True)
class LayerScales:
    """How a layer is quantised: its weight, what x's columns are multiplied with, and one scale for x, or None: one per
    row.

    With `residual_scale`, float32 [N], the layer's residual is rounded, too: each column to multiples of its own, or as
    the op before has written it for a product (restore_residuals()).
    `written` is what an op without whole rows writes x with, where results are written in 8 bits.
    """

    weight: RoundedWeight
    smooth: np.ndarray | None = None
    x_scale: float | None = None
    residual_scale: np.ndarray | None = None
    written: ResultScale | None = None


def foreign_operators(model: onnx.ModelProto) -> list[str]:
    """Operators of other tools' quantisation in the graph, sorted."""
    return sorted({node.op_type for node in model.graph.node if node.op_type in _FOREIGN and node.domain != DOMAIN})


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether one of the fused nodes has a quantised weight."""
    return any(_given(node, "W") for node in fused_nodes(model))


def say_what_is(model: onnx.ModelProto) -> None:
    """Write into the metadata of a model with quantised weights what they are."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    weights = {types.get(_weight_name(n)) for n in fused_nodes(model)}
    kind = next((name for name in ("fp8", "int8") if TYPES[name] in weights), None)
    if kind is not None:
        metadata = {entry.key: entry.value for entry in model.metadata_props} | {QUANTIZED_KEY: kind}
        helper.set_model_props(model, metadata)


@dataclass(frozen=True)
class QuantizedWeights:
    """How many of a fused model's nodes with a weight have it quantised, and to what ("int8")."""

    kind: str
    count: int
    total: int

    def __str__(self) -> str:
        return f"{self.count} of {self.total} fused weights are {self.kind}"


def quantized_weights(model: onnx.ModelProto) -> QuantizedWeights | None:
    """None where the model has none."""
    weighted = [node for node in fused_nodes(model) if _weight_of(OPS[node.op_type]) is not None]
    count = sum(_given(node, "W") for node in weighted)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return QuantizedWeights(metadata.get(QUANTIZED_KEY, "quantised"), count, len(weighted)) if count else None


def find_layers(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> list[Layer]:
    """What can be quantised, in order of the graph.

    Raises FusionError for a model that is not fused, is quantised already, or that another tool has quantised.
    """
    if is_quantized(model):
        raise FusionError("is quantised already; give the model from before")
    theirs = foreign_operators(model)
    if theirs:
        raise FusionError(f"is quantised by another tool ({', '.join(theirs)}); give the float model that it came from")
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    found, names = [], set()
    packed = {n.input[0]: OPS[n.op_type] for n in fused_nodes(model) if OPS[n.op_type].inputs[0].name == "qkv"}
    writers = {n.output[0]: n.op_type for n in fused_nodes(model)}
    for place, node in enumerate(model.graph.node):
        if node.domain != DOMAIN or node.op_type not in OPS:
            continue
        spec = OPS[node.op_type]
        weight = _weight_name(node)
        if not weight or len(shapes.get(weight, ())) != 2 or 0 in shapes[weight]:
            continue
        name = node.name or node.output[0]
        name = name if name not in names else node.output[0]
        names.add(name)
        x = node.input[0] if spec.inputs[0].name == "x" else ""
        residual = input_of(node, spec, "residual")
        parts, writer = _parts(x, node, packed), writers.get(x, "")
        found.append(Layer(name, node.op_type, place, weight, x, shapes[weight], residual, parts, writer))
    if not found:
        raise FusionError("holds no fused layer with a weight; run bertfuse fuse or optimize on the float model first")
    return found


def _parts(x: str, node: onnx.NodeProto, packed: Mapping[str, OpSpec]) -> int:
    """How many weights lie in the node's; `packed` are the ops that read tensors of Q, K and V side by side."""
    if not x:
        return 0
    reader = packed.get(node.output[0])
    if reader is not None and reader.inputs[0].axes[-1] == "3*H":
        return 3
    return 2 if node.op_type == "FusedGatedGemm" else 1


def load_weight(model: onnx.ModelProto, weights: Mapping[str, Weight], layer: Layer) -> np.ndarray:
    """A layer's weight in float32. Raises FusionError where it holds NaN or an infinity."""
    if layer.weight in weights:
        array = np.asarray(weights[layer.weight].load())
    else:
        array = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == layer.weight))
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise FusionError(f"initialiser '{layer.weight}' holds NaN or an infinity; there is no scale for that")
    return array


def check_type(model: onnx.ModelProto, to: str) -> None:
    """Raises FusionError where the model's opset does not have the type."""
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if TYPES[to] == FLOAT8 and opset < _FLOAT8_OPSET:
        raise FusionError(f"has opset {opset}, and fp8 takes {_FLOAT8_OPSET}: export it with --opset {_FLOAT8_OPSET}")


def is_half(model: onnx.ModelProto) -> bool:
    """Whether all fused nodes with a weight have floats of 16 bits."""
    types = _element_types(model)
    weighted = [node for node in fused_nodes(model) if _weight_name(node)]
    return all(types[node.output[0]] != TensorProto.FLOAT for node in weighted)


def type_of(layer: Layer, to: str = "int8") -> int:
    """What its weight becomes. Tables of words are read, not multiplied: integers keep more of them in 8 bits."""
    return TYPES[to] if layer.x else INT8


def round_weight(
    weight: np.ndarray,
    data_type: int,
    smooth: np.ndarray | None = None,
    parts: int = 0,
    moments: np.ndarray | None = None,
) -> RoundedWeight:
    """A weight [N, K], each column divided by `smooth` before. `parts` as row_scales() takes them. With `moments`
    [K, K] of x (before it is smoothed) errors of columns make up for each other (weight_rounding.py).
    """
    if smooth is not None:
        weight = weight / smooth[None, :]
        moments = None if moments is None else moments * np.outer(smooth, smooth)
    compensation = Compensation.of(moments)
    scales = row_scales(weight, data_type, parts, compensation)
    return RoundedWeight(scales, lambda: rounded(weight, scales, data_type, compensation))


def quantize(
    model: onnx.ModelProto,
    weights: Mapping[str, Weight],
    layers: Sequence[Layer],
    scales: Mapping[str, LayerScales],
    to: str = "int8",
    results: bool = False,
) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """A copy of a fused skeleton, with its weights, in which the layers that `scales` names are quantised.

    A weight that two layers share (word embeddings and the vocabulary's product) is written once for each smoothing and
    type. With `results` the ops before products write in 8 bits what these read (write_results()). In half precision
    residuals that are to be rounded are then those numbers (restore_residuals()); else operators round them. Raises
    FusionError as check_type() does.
    """
    check_type(model, to)
    made, kept = onnx.ModelProto(), dict(weights)
    made.CopyFrom(model)
    types = _element_types(model)
    written: dict[str, RoundedWeight] = {}
    for layer in layers:
        if layer.name not in scales:
            continue
        node, spec, chosen = made.graph.node[layer.node], OPS[layer.op], scales[layer.name]
        data_type = type_of(layer, to)
        kind = next(name for name, number in TYPES.items() if number == data_type)
        stem = f"{layer.weight}_{kind}" + (f"_of_{layer.name}" if chosen.smooth is not None else "")
        if stem not in written:
            written[stem] = chosen.weight
            kept[stem] = Weight(data_type, layer.shape, chosen.weight.load)
            made.graph.initializer.add(name=stem, data_type=data_type, dims=layer.shape)
            made.graph.initializer.append(numpy_helper.from_array(chosen.weight.scales, f"{stem}_scale"))
        names = {_weight_of(spec).name: stem, _scales_of(spec).name: f"{stem}_scale"}
        if chosen.smooth is not None:
            names["x_smooth"] = f"{stem}_smooth"
            smooth = chosen.smooth.astype(np.float32)[None, :]
            made.graph.initializer.append(numpy_helper.from_array(smooth, names["x_smooth"]))
        if chosen.x_scale is not None:
            names["x_scale"] = f"{stem}_x_scale"
            made.graph.initializer.append(numpy_helper.from_array(np.float32(chosen.x_scale), names["x_scale"]))
        set_inputs(node, spec, names)
    restores = results and is_half(model)
    if not restores:
        _round_residuals(made, types, layers, scales)
    if results:
        chosen = {layer.x: scales[layer.name].written for layer in layers if layer.name in scales and layer.x}
        by_tensor = {x: scale for x, scale in chosen.items() if scale is not None}
        write_results(made, by_tensor, lambda weight: written[weight].sums())
    if restores:
        rounded = (layer for layer in layers if layer.name in scales and scales[layer.name].residual_scale is not None)
        restore_residuals(made, {made.graph.node[layer.node].output[0] for layer in rounded})
    drop_unused(made, kept)
    metadata = {entry.key: entry.value for entry in made.metadata_props} | {QUANTIZED_KEY: to}
    helper.set_model_props(made, metadata)
    if made.functions:
        ours = [function for function in made.functions if function.domain == DOMAIN]
        for function in ours:
            made.functions.remove(function)
        for node in fused_nodes(made):
            node.ClearField("overload")
        functions.attach(made, types)
    return made, kept


def _round_residuals(
    model: onnx.ModelProto, types: Mapping[str, int], layers: Sequence[Layer], scales: Mapping[str, LayerScales]
) -> None:
    """Put QuantizeLinear and DequantizeLinear before the residuals that are to be rounded."""
    asked = {layer.node: layer for layer in layers if layer.name in scales and layer.residual}
    done: set[str] = set()
    nodes: list[onnx.NodeProto] = []
    for place, node in enumerate(model.graph.node):
        layer = asked.get(place)
        scale = None if layer is None else scales[layer.name].residual_scale
        if scale is not None:
            spec, stem = OPS[layer.op], f"{layer.residual}_int8"
            if stem not in done:
                done.add(stem)
                nodes += _pair(model, layer.residual, stem, scale, types[node.output[0]])
            node.input[spec.input_index("residual")] = f"{stem}_restored"
        nodes.append(node)
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(made)


def _pair(model: onnx.ModelProto, tensor: str, stem: str, scale: np.ndarray, data_type: int) -> list[onnx.NodeProto]:
    """The nodes that round a tensor to `stem` and give it back as `stem`_restored; in float32, as opset 13 has them."""
    names = [f"{stem}_scale", f"{stem}_zero"]
    model.graph.initializer.append(numpy_helper.from_array(scale.astype(np.float32), names[0]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(scale.shape, np.int8), names[1]))
    casts = data_type != TensorProto.FLOAT
    first, last = (f"{stem}_float", f"{stem}_rounded") if casts else (tensor, f"{stem}_restored")
    made = [
        helper.make_node("QuantizeLinear", [first, *names], [stem], f"{stem}/QuantizeLinear", axis=-1),
        helper.make_node("DequantizeLinear", [stem, *names], [last], f"{stem}/DequantizeLinear", axis=-1),
    ]
    if not casts:
        return made
    before = helper.make_node("Cast", [tensor], [first], f"{stem}/Cast", to=TensorProto.FLOAT)
    after = helper.make_node("Cast", [last], [f"{stem}_restored"], f"{stem}/Cast_back", to=data_type)
    return [before, *made, after]


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    """The float type of each fused node, by its first output: that of its constants, which have one type."""
    floats = DTYPE_VARIABLES["T"].values()
    declared = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in declared}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    found = {}
    for node in fused_nodes(model):
        names = [name for t, name in zip(OPS[node.op_type].inputs, node.input, strict=False) if t.is_float and name]
        given = [types[name] for name in (*names, *node.output) if types.get(name) in floats]
        found[node.output[0]] = given[0] if given else TensorProto.FLOAT
    return found


def _weight_name(node: onnx.NodeProto) -> str:
    spec = OPS[node.op_type]
    return "" if _weight_of(spec) is None else input_of(node, spec, _weight_of(spec).name)


def _scales_of(spec: OpSpec) -> TensorSpec:
    return next(tensor for tensor in spec.inputs if tensor.scales == _weight_of(spec).name)


def _given(node: onnx.NodeProto, variable: str) -> bool:
    """Whether the scales of the node's tensor of that dtype variable are given."""
    spec = OPS[node.op_type]
    scaled = {tensor.name for tensor in spec.inputs if tensor.dtype == variable}
    return any(input_of(node, spec, tensor.name) for tensor in spec.inputs if tensor.scales in scaled)


def drop_unused(model: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Initialisers that nothing reads, unless they are inputs; in place."""
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    for node in model.graph.node:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                used |= {name for inner in graph.node for name in inner.input}  # bodies read the graph around them
    inputs = {value.name for value in model.graph.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used | inputs]
    for tensor in model.graph.initializer:
        if tensor.name not in used | inputs:
            weights.pop(tensor.name, None)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
