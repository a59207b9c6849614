"""Quantised models for TensorRT's plugins: what is written, read back bit by bit, and engines of TensorRT for RTX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.graph_rewrite import OPS, fuse_file
from bertfuse.graph_rewrite.fused_nodes import input_of, set_inputs
from bertfuse.graph_rewrite.io import load_model, save_model
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.graph_rewrite.weights import MIN_BYTES
from bertfuse.runtime import InferenceSession
from bertfuse.runtime.ragged_inputs import ragged
from bertfuse.runtime.trt import build_engine
from bertfuse.runtime.trt.model import prepare
from bertfuse.runtime.trt.run import DescribedEngine
from tests.engines import ops_in
from tests.model_coverage.files import feed as drawn
from tests.model_coverage.test_families import exported
from tests.tiny_models import HEADS, build, inputs

FIELDS = ("given_inputs", "weight_type", "result_type")
EIGHT_BITS = {TensorProto.INT8, TensorProto.FLOAT8E4M3FN}
RAGGED_SHAPES = ["input_ids:1:40:400", "token_type_ids:1:40:400", "cu_seqlens:2:5:9", "max_seqlen:1:20:40"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of drawn sizes, in opset 19: the first with 8-bit floats."""
    seed = int(np.random.default_rng().integers(2**31))
    print(f"seed {seed}")
    hidden = HEADS * int(np.random.default_rng(seed).integers(8, 40))
    inner = 4 * -(-MIN_BYTES // (4 * hidden))  # some weights so large that they stay in their file until written
    model = build(seed=seed, hidden_size=hidden, intermediate_size=inner)
    folder = tmp_path_factory.mktemp("source")
    exported = load_model(export_model(model, folder, exporter="torchscript"))
    save_model(onnx.version_converter.convert_version(exported, 19), folder / "model.onnx")
    return folder / "model.onnx"


def quantized(source: Path, folder: Path, dtype: str, padding: str = "keep", **options: object) -> Path:
    fused, target = folder / "fused.onnx", folder / "quantized.onnx"
    assert not fuse_file(source, fused, dtype=dtype, padding=padding).misses
    bertfuse.quantize(fused, target, **{"calibration": inputs(24, 12, seed=5), **options})
    return target


def fused_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.domain == DOMAIN]


def taken(node: onnx.NodeProto, field: str) -> int:
    """A field's value, 0 where the node has none; the node loses it."""
    found = [attribute for attribute in node.attribute if attribute.name == field]
    for attribute in found:
        node.attribute.remove(attribute)
    return found[0].i if found else 0


def read_back(prepared: Path, source: Path, target: Path) -> None:
    """Writes what plugins understand of the file, as ONNX Runtime takes it: inputs in their places, 8 bits in 8 bits.

    Where the inputs of float forms were is taken from `source`, as ranks tell it.
    """
    model = onnx.load(prepared)
    of_8_bits: dict[str, int] = {}
    for node, original in zip(fused_nodes(model), fused_nodes(onnx.load(source)), strict=True):
        spec = OPS[node.op_type]
        given, *types = (taken(node, field) for field in FIELDS)
        for name in ("constant_inputs", "element_type", "plugin_version", "plugin_namespace"):
            taken(node, name)
        if not given:
            assert list(node.input) == [name for name in original.input if name]
            node.input[:] = original.input
            continue
        names = iter(list(node.input))
        places = {tensor.name: next(names) for place, tensor in enumerate(spec.inputs) if given >> place & 1}
        assert next(names, None) is None
        del node.input[:]
        set_inputs(node, spec, places)
        by_variable = dict(zip("WQ", types, strict=True))
        outputs = spec.outputs_of(places)
        assert len(node.output) == len(outputs) and all(node.output)
        tensors = {places.get(tensor.name, ""): tensor for tensor in spec.inputs}
        tensors |= dict(zip(node.output, outputs, strict=True))
        for name, tensor in tensors.items():
            if name and (data_type := by_variable.get(tensor.dtype, 0)):
                assert of_8_bits.setdefault(name, data_type) == data_type
    for tensor in model.graph.initializer:
        if tensor.name in of_8_bits:
            array = numpy_helper.to_array(tensor)
            assert array.dtype == np.int32
            kind = helper.tensor_dtype_to_np_dtype(of_8_bits[tensor.name])
            array = array.reshape(-1).view(kind)[0] if array.ndim == 0 else array.view(kind)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))
    onnx.save(model, target)


def check_bits(model: Path, padding: str, given: dict[str, np.ndarray] | None = None) -> None:
    """What is written for the plugins, read back, gives the model's own answers."""
    written, read = (model.with_name(f"{name}.onnx") for name in ("for_trt", "read"))
    prepared = prepare(model, written, plugins=True, strongly_typed=True)
    graph = onnx.load(written).graph
    assert not {t.data_type for t in graph.initializer} & EIGHT_BITS
    assert {t.name for t in graph.initializer} <= {name for node in graph.node for name in node.input}
    assert not {node.op_type for node in graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    read_back(written, model, read)
    feed = given or inputs(3, 17, seed=1)
    feed = ragged(feed) if padding == "ragged" else feed
    sessions = [InferenceSession(file) for file in (model, read)]
    assert all(session.uses_library for session in sessions)
    wanted, got = ([np.asarray(y) for y in session.run(None, feed)] for session in sessions)
    assert [y.tobytes() for y in got] == [y.tobytes() for y in wanted] and np.isfinite(wanted[0]).all()
    assert sum(prepared.ops.values()) == len(prepared.nodes)
    # An engine exposes what has the file's own values.
    assert prepared.tensors and not {name for name in prepared.tensors if name.endswith("_in_8_bits")}


@pytest.mark.parametrize(
    ("padding", "options"),
    [
        *((padding, {"results": results}) for padding in ("keep", "remove") for results in (True, False)),
        ("keep", {"activations": "tensor"}),
        *((padding, {"calibration": None}) for padding in ("remove", "ragged")),
    ],
)
@pytest.mark.parametrize(("to", "dtype"), [("int8", "fp32"), ("int8", "fp16"), ("fp8", "fp32"), ("fp8", "fp16")])
def test_the_file_holds_the_model_bit_by_bit(
    to: str, dtype: str, padding: str, options: dict[str, object], source: Path, tmp_path: Path
) -> None:
    check_bits(quantized(source, tmp_path, dtype, padding, to=to, **options), padding)


@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_rounded_residuals(dtype: str, padding: str, source: Path, tmp_path: Path) -> None:
    """In float32 operators of floats round them: TensorRT's QuantizeLinear has no scales by column of an activation.

    In half precision norms hand them on in 8 bits.
    """
    model = quantized(source, tmp_path, dtype, padding, residual=True)
    assert ("QuantizeLinear" in {node.op_type for node in onnx.load(model).graph.node}) == (dtype == "fp32")
    check_bits(model, padding)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_an_older_parser_is_told_all_types(dtype: str, source: Path, tmp_path: Path) -> None:
    model = quantized(source, tmp_path, dtype, to="fp8", results=True)
    prepared = prepare(model, tmp_path / "m.onnx", plugins=True, older_parser=True)
    written = onnx.load(tmp_path / "m.onnx")
    assert max(entry.version for entry in written.opset_import) <= 17
    number = TensorProto.FLOAT if dtype == "fp32" else TensorProto.FLOAT16
    results = 0
    for node in fused_nodes(written):
        spec = OPS[node.op_type]
        given = taken(node, "given_inputs")
        if given == 0:
            continue
        assert taken(node, "element_type") == number
        assert taken(node, "constant_inputs") & ~given == 0 and given < 2**31
        present = {tensor.name for place, tensor in enumerate(spec.inputs) if given >> place & 1}
        wanted = {"T": number, "Q": TensorProto.INT32, "S": TensorProto.FLOAT}
        for tensor, name in zip(spec.outputs_of(present), node.output, strict=True):
            assert prepared.types[name] == wanted[tensor.dtype]
            results += tensor.dtype == "Q"
    assert results >= 4


@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
@pytest.mark.parametrize(("to", "dtype"), [("int8", "fp32"), ("int8", "fp16"), ("fp8", "fp16")])
def test_engines(to: str, dtype: str, padding: str, source: Path, tmp_path: Path) -> None:
    """TensorRT's own parser and builder take it: every fused op is a plugin's layer, and keeps its fields."""
    options = {"calibration": None} if padding == "ragged" else {"results": True, "residual": to == "int8"}
    model = quantized(source, tmp_path, dtype, padding, to=to, **options)
    shapes = RAGGED_SHAPES if padding == "ragged" else []
    report = build_engine(model, tmp_path / "m.plan", backend="rtx", shapes=shapes, expose=True)
    assert report.plugins is not None and report.plugins["layers"] == ops_in(model) == report.fused
    assert report.weights == to and report.types == f"{report.precision} with {to} weights"
    assert DescribedEngine(tmp_path / "m.plan").quantized  # so that `compare` judges it by the cosine
    plan = (tmp_path / "m.plan").read_bytes()
    assert b"given_inputs" in plan and b"weight_type" in plan
    # Of half-precision models norms write in 8 bits unless told otherwise, and need no calibration for that.
    assert (b"result_type" in plan) == (padding != "ragged" or dtype == "fp16")


@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize("family", ["modernbert", "vit"])
def test_engines_of_families(family: str, padding: str, tmp_path: Path) -> None:
    """The same of gates and residual norms."""
    path = tmp_path / "model.onnx"
    save_model(onnx.version_converter.convert_version(load_model(exported(family, "torchscript", "sdpa")), 19), path)
    calibration = drawn(InferenceSession(path), 4, 9)
    model = quantized(path, tmp_path, "fp16", padding, to="fp8", calibration=calibration)
    report = build_engine(model, tmp_path / "m.plan", backend="rtx", expose=True)
    assert report.plugins is not None and report.plugins["layers"] == ops_in(model) == report.fused
    halves = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in calibration.items()}
    check_bits(model, padding, halves)


def changed(model: Path, change: Callable[[onnx.ModelProto, onnx.NodeProto], None], op: str) -> Path:
    """The model with a change to its first node of that op."""
    loaded = load_model(model)
    change(loaded, next(node for node in loaded.graph.node if node.op_type == op))
    target = model.with_name("changed.onnx")
    save_model(loaded, target)
    return target


def test_outputs_without_a_name_get_one(source: Path, tmp_path: Path) -> None:
    model = quantized(source, tmp_path, "fp16", results=True)

    def forget_scales(loaded: onnx.ModelProto, node: onnx.NodeProto) -> None:
        (reader,) = (other for other in fused_nodes(loaded) if node.output[1] in other.input)
        set_inputs(reader, OPS[reader.op_type], {"x_quantized": "", "x_row_scale": "", "x_compensation": ""})
        del node.output[2:]
        node.output[1] = ""

    prepare(changed(model, forget_scales, "FusedGemmGelu"), tmp_path / "m.onnx", plugins=True)
    node = next(node for node in onnx.load(tmp_path / "m.onnx").graph.node if node.op_type == "FusedGemmGelu")
    assert list(node.output[1:]) == [f"{node.output[0]}/y_quantized", f"{node.output[0]}/y_scale"]


def test_what_is_refused(source: Path, tmp_path: Path) -> None:
    model = quantized(source, tmp_path, "fp16", results=True)
    with pytest.raises(BertfuseError, match="quantised weights take the TensorRT plugins: leave --no-plugins out"):
        prepare(model, tmp_path / "m.onnx", plugins=False)

    def refused(match: str, op: str, change: Callable[[onnx.ModelProto, onnx.NodeProto], None]) -> None:
        with pytest.raises(BertfuseError, match=match) as caught:
            prepare(changed(model, change, op), tmp_path / "m.onnx", plugins=True)
        assert "\n" not in str(caught.value) and not (tmp_path / "m.onnx").exists()

    def take_columns(loaded: onnx.ModelProto, node: onnx.NodeProto) -> None:
        weight = next(t for t in loaded.graph.initializer if t.name == input_of(node, OPS[node.op_type], "weight"))
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[:, :-1], weight.name))

    def compute_weight(loaded: onnx.ModelProto, node: onnx.NodeProto) -> None:
        loaded.graph.node.insert(0, helper.make_node("Identity", [node.input[1]], ["computed"]))
        node.input[1] = "computed"

    def give_a_zero(loaded: onnx.ModelProto, node: onnx.NodeProto) -> None:
        spec = OPS[node.op_type]
        for name, value in (("x_scale", np.float32(1)), ("x_zero", np.int32(3))):
            loaded.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
            set_inputs(node, spec, {name: name})

    def write_other_type(loaded: onnx.ModelProto, node: onnx.NodeProto) -> None:
        loaded.graph.initializer.append(helper.make_tensor("other", TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True))
        set_inputs(node, OPS[node.op_type], {"y_zero_point": "other"})

    def put_out(loaded: onnx.ModelProto, node: onnx.NodeProto) -> None:
        loaded.graph.output.append(helper.make_tensor_value_info(node.output[1], TensorProto.INT8, None))

    def read_elsewhere(loaded: onnx.ModelProto, node: onnx.NodeProto) -> None:
        loaded.graph.node.append(helper.make_node("Identity", [node.output[1]], ["read"], name="reader"))

    refused(r"FusedGemmGelu '.*': weight '.*' has \d+ columns, which 4 does not divide", "FusedGemmGelu", take_columns)
    refused("weight 'computed' is neither an 8-bit initialiser nor a fused op's", "FusedGemmGelu", compute_weight)
    refused(r"no CUDA kernel takes activations with a zero point \(x_zero\)", "FusedGemm", give_a_zero)
    refused("x_quantized '.*' is of another 8-bit type than the weight", "FusedAttention", write_other_type)
    refused("output '.*' is a result in 8 bits; leave it out", "EmbedLayerNorm", put_out)
    refused("Identity 'reader' reads '.*', a result in 8 bits", "EmbedLayerNorm", read_elsewhere)
