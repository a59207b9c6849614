"""A fused file in the form that TensorRT takes: every op a plugin node, or every op in standard operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, inliner

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS, functions
from bertfuse.graph_rewrite.dialect.standard_ops import FunctionBody
from bertfuse.graph_rewrite.io import open_model, write
from bertfuse.graph_rewrite.quantization import is_quantized
from bertfuse.graph_rewrite.spec import DOMAIN, DTYPE_VARIABLES, NODE_MARKERS, QUANTIZED_KEY
from bertfuse.graph_rewrite.weights import Weight

from . import dynamic_axes, eight_bits, rounded_residuals
from .older_parser import element_types, fit

_FLOATS = DTYPE_VARIABLES["T"].values()

# Plugins' fields. Bit i of the first says that the op's input i is an initializer: TensorRT tells a plugin of none. The
# second is the floating-point type (ONNX's number) of the layer's tensors, which TensorRT then does not choose.
CONSTANT_INPUTS, ELEMENT_TYPE = "constant_inputs", "element_type"


class HalfProducts(FunctionBody):
    """Bodies for float16 and bfloat16 models in which matrix products keep the model's type.

    ONNX Runtime runs the ordinary bodies, float32 throughout; TensorRT would run their products without tensor cores,
    and keep every weight as float32. Bias, GELU, softmax and LayerNorm stay float32 here, too.
    """

    def __init__(self, opset: int, data_type: int) -> None:
        super().__init__(opset)
        self._data_type = data_type
        self._half: dict[str, str] = {}

    def emit(self, op, inputs, outputs=1, **attributes):
        if self._data_type == TensorProto.FLOAT:
            return super().emit(op, inputs, outputs, **attributes)
        if op == "MatMul":
            return self._widened("MatMul", [self._halved(name) for name in inputs])
        if op in ("Gather", "Transpose") and inputs[0] in self._half:  # what only moves values moves half of them
            return self._widened(op, [self._half[inputs[0]], *inputs[1:]], **attributes)
        made = super().emit(op, inputs, outputs, **attributes)
        if op == "Cast" and attributes["to"] == TensorProto.FLOAT:
            self._half[made] = inputs[0]
        return made

    def _halved(self, name: str) -> str:
        return self._half.get(name) or super().emit("Cast", [name], to=self._data_type)

    def _widened(self, op: str, inputs: list[str], **attributes: Any) -> str:
        return self.emit("Cast", [super().emit(op, inputs, **attributes)], to=TensorProto.FLOAT)


@dataclass(frozen=True)
class Prepared:
    """What `prepare` wrote.

    nodes     fused node's name -> op; empty where the op bodies were written out
    ops       how often each op is in the fused file
    tensors   what the fused ops put out
    inputs    graph input -> its axes: sizes, names of dynamic axes, None for an axis without either
    longest   rows of the position table: the longest sequence; None where there is none
    precision element type of the fused ops ("float16"), without any of most of the model's weights
    task      what export said the model is for, "" where it did not
    types     tensor -> its TensorProto.DataType; empty but for an older parser
    weights   "int8" or "fp8" where some are quantised, else ""
    """

    nodes: dict[str, str]
    ops: dict[str, int]
    tensors: tuple[str, ...]
    inputs: dict[str, tuple[int | str | None, ...]]
    longest: int | None
    precision: str
    task: str
    types: Mapping[str, int] = field(default_factory=dict)
    weights: str = ""


def prepare(
    source: str | Path,
    target: str | Path,
    plugins: bool,
    strongly_typed: bool = False,
    older_parser: bool = False,
    layer_normalization: bool = True,
) -> Prepared:
    """Writes the fused model `source` to `target` in the form that TensorRT's parser takes.

    plugins  True: fused nodes as plugin nodes: without functions (TensorRT before 10.7 prefers them to plugins), absent
             optional inputs left out (the parser has no plugin layer with an input missing), each node with a name of
             its own. False: the op bodies inlined, also of a file that was written without functions.

             Tensors of 8 bits become int32 (eight_bits.py).

    strongly_typed  the network will be, so that initializers reach plugins as they are: each node then says which of
             its inputs are some, and kernels read these while the layer before still runs. Otherwise a layer that
             converts them may stand between, and its results are no constants.

    older_parser  it is TensorRT 8's or 9's, which knows opset 17. Networks are not strongly typed there: each plugin
             node says its element type, which its weights have already, and so may say which inputs are initializers.

    layer_normalization  such a parser knows this operator (8.5's does not).

    Raises FusionError for a file that cannot be read, BertfuseError for ops that this version does not know, and for
    quantised forms that it has no layers for.
    """
    model, weights = open_model(source)
    fused = [node for node in model.graph.node if node.domain == DOMAIN]
    unknown = sorted({node.op_type for node in fused} - set(OPS))
    if unknown:
        raise BertfuseError(f"{source}: op {unknown[0]!r} is unknown to this version: fuse the model again")
    if not plugins:
        _refuse_quantized(source, model)
        _refuse_packed(source, fused)
    data_types = _data_types(fused, model, weights)
    ops = Counter(node.op_type for node in fused)
    tensors = tuple(name for node in fused for name in node.output if name and name not in eight_bits.unwritten(node))
    longest = _longest(model, fused)
    others = [function for function in model.functions if function.domain != DOMAIN]
    del model.functions[:]
    model.functions.extend(others)
    for node in fused:
        node.overload = ""
    nodes = {}
    if plugins:
        eight_bits.check_kernels(source, fused)
        if is_quantized(model):
            rounded_residuals.write_out(model)
            fused = [node for node in model.graph.node if node.domain == DOMAIN]
        forms = eight_bits.as_int32(source, model, weights, fused)
        initializers = {tensor.name for tensor in model.graph.initializer} | set(weights)
        told = strongly_typed or older_parser
        constants = initializers - {value.name for value in model.graph.input} if told else set()
        nodes = _as_plugins(model, fused, constants, data_types if older_parser else {}, forms)
    else:
        functions.attach(model, data_types, HalfProducts)
    if model.functions:
        # By us: the parser refuses a function's call that leaves an optional input out, and knows no overloads.
        model = inliner.inline_local_functions(model)
    dynamic_axes.fit(model)
    inferred: dict[str, int] = {}
    if older_parser:
        inferred = element_types(model, weights, data_types)
        model = fit(model, inferred, layer_normalization)
    types = Counter(data_types.values()) or Counter(weight.data_type for weight in weights.values())
    precision = onnx.helper.tensor_dtype_to_np_dtype(types.most_common(1)[0][0]).name if types else "float32"
    inputs = {value.name: _axes(value) for value in model.graph.input}
    said = {entry.key: entry.value for entry in model.metadata_props}
    task, quantized = said.get("bertfuse.task", ""), said.get(QUANTIZED_KEY, "")
    write(model, weights, target)
    counts = {name: ops[name] for name in OPS if ops[name]}
    return Prepared(nodes, counts, tensors, inputs, longest, precision, task, inferred, quantized)


def _refuse_packed(source: str | Path, fused: list[onnx.NodeProto]) -> None:
    """Raises BertfuseError for packed rows: in op bodies their number is a shape that hangs on the data."""
    for node in fused:
        packed = [t for t, name in zip(OPS[node.op_type].inputs, node.input, strict=False) if name and t.dtype == "C"]
        if packed or any(t.dtype == "C" for t in OPS[node.op_type].outputs):
            raise BertfuseError(
                f"{source}: packed rows take the TensorRT plugins ({node.op_type} {node.name!r}): leave --no-plugins"
                " out, or fuse the model with --padding keep"
            )


def _refuse_quantized(source: str | Path, model: onnx.ModelProto) -> None:
    if is_quantized(model):
        raise BertfuseError(
            f"{source}: quantised weights take the TensorRT plugins: leave --no-plugins out, or give the float model"
        )


def _as_plugins(
    model: onnx.ModelProto,
    fused: list[onnx.NodeProto],
    constants: set[str],
    element_types: Mapping[str, int],
    forms: Mapping[str, Mapping[str, int]],
) -> dict[str, str]:
    names = Counter(node.name for node in model.graph.node)
    nodes = {}
    for index, node in enumerate(fused):
        if not node.name or names[node.name] > 1:
            node.name = f"{DOMAIN}_{index}_{node.op_type}"
        constant = sum(1 << place for place, name in enumerate(node.input) if name in constants)
        given = [name for name in node.input if name]
        del node.input[:]
        node.input.extend(given)
        markers = NODE_MARKERS | ({CONSTANT_INPUTS: constant} if constant else {})
        if node.output[0] in element_types and any(tensor.is_float for tensor in OPS[node.op_type].inputs):
            markers = markers | {ELEMENT_TYPE: element_types[node.output[0]]}
        markers = markers | forms.get(node.output[0], {})
        kept = [attribute for attribute in node.attribute if attribute.name not in markers]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in markers.items())
        nodes[node.name] = node.op_type
    return nodes


def _data_types(fused: list[onnx.NodeProto], model: onnx.ModelProto, weights: Mapping[str, Weight]) -> dict[str, int]:
    """The float type of each fused node, by its first output: that of its constants, else what is declared of its
    tensors, or that of the fused node which its input comes from.
    """
    constant = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    constant |= {name: weight.data_type for name, weight in weights.items()}
    declared = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    known = {value.name: value.type.tensor_type.elem_type for value in declared}
    found: dict[str, int] = {}
    for node in fused:
        floats = [
            name
            for t, name in zip(OPS[node.op_type].inputs, node.input, strict=False)
            if t.is_float and not t.quantized
        ]
        candidates = [
            *(constant.get(name) for name in floats),
            *(known.get(name) for name in (*floats, *node.output[:1])),
            *(found.get(name) for name in floats),
        ]
        found[node.output[0]] = next((kind for kind in candidates if kind in _FLOATS), TensorProto.FLOAT)
    return found


def _longest(model: onnx.ModelProto, fused: list[onnx.NodeProto]) -> int | None:
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if len(tensor.dims) == 2}
    table = OPS["EmbedLayerNorm"].input_index("position_table")
    sizes = [rows.get(node.input[table]) for node in fused if node.op_type == "EmbedLayerNorm"]
    return min((int(size) for size in sizes if size), default=None)


def _axes(value: onnx.ValueInfoProto) -> tuple[int | str | None, ...]:
    return tuple(
        axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None
        for axis in value.type.tensor_type.shape.dim
    )
