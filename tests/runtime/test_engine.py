"""Engines of TensorRT for RTX, built on any machine: what became of every fused op, and what is written beside them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from bertfuse.errors import BertfuseError, RuntimeLibraryError
from bertfuse.graph_rewrite.ops import FAMILY_OPS, MODEL_OPS, OPS
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.measuring.compare import compare_models
from bertfuse.runtime import library_path
from bertfuse.runtime.trt import backend as backends
from bertfuse.runtime.trt import build, build_engine, load_backend
from bertfuse.runtime.trt.model import prepare
from tests.engines import NAMES, fused, ops_in, original


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def bert(folder: Path) -> Path:
    return fused("bert", folder)


def test_every_op_is_in_one_of_the_models(folder: Path) -> None:
    models = {name: ops_in(fused(name, folder)) for name in NAMES}
    assert set().union(*models.values()) == set(MODEL_OPS) - set(FAMILY_OPS)
    assert models["minilm"]["FusedAttention"] == 6 and models["minilm"]["FusedGemmLayerNorm"] == 12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_engines_with_and_without_plugins(name: str, dtype: str, folder: Path) -> None:
    """Every fused op is a plugin layer, or none is; for two compute capabilities each."""
    model = fused(name, folder, dtype)
    ops = ops_in(model)
    assert {function.name for function in onnx.load(model).functions} == set(
        ops
    )  # the plugins win although the op bodies are there
    sizes = set()
    for capability in ("8.9", "12.0"):
        plan = folder / f"{name}-{dtype}-{capability}.plan"
        report = build_engine(model, plan, backend="rtx", compute_capabilities=[capability])
        assert report.plugins is not None and report.plugins["layers"] == ops == report.fused
        assert sum(layer.kind == "PLUGIN_V3" for layer in report.layers) == sum(ops.values())
        assert report.compute_capabilities == [capability]
        assert plan.stat().st_size == report.plan_bytes
        bodies = build_engine(model, plan, backend="rtx", compute_capabilities=[capability], plugins=False)
        assert bodies.plugins is None and bodies.fused == ops
        assert not any(layer.kind.startswith("PLUGIN") for layer in bodies.layers)
        assert {"MATRIX_MULTIPLY", "SOFTMAX", "NORMALIZATION"} <= set(bodies.kinds)
        assert bodies.precision == report.precision == {"fp32": "float32", "fp16": "float16"}[dtype]
        sizes.add(bodies.plan_bytes)
    if name == "minilm":
        # Without a second copy of the weights, and in the type that they are given in.
        assert max(sizes) < 1.1 * model.stat().st_size


def test_one_engine_for_several_gpus_and_the_portable_one(bert: Path, folder: Path) -> None:
    several = build_engine(bert, folder / "several.plan", backend="rtx", compute_capabilities=["86", "sm_89", "8.6"])
    assert several.compute_capabilities == ["8.6", "8.9"]
    build_engine(bert, folder / "portable.plan", backend="rtx")
    described = json.loads((folder / "portable.plan.json").read_text())
    assert described["compute_capabilities"] == ["8.0", "8.6", "8.9", "12.x"]


def test_bfloat16(folder: Path) -> None:
    model = fused("bert", folder, "bf16")
    report = build_engine(model, folder / "bf16.plan", backend="rtx")
    assert report.precision == "bfloat16" and report.plugins is not None and report.plugins["layers"] == ops_in(model)
    assert report.outputs["logits"]["dtype"] == "bf16"


def test_description_beside_the_plan(bert: Path, folder: Path) -> None:
    plan = folder / "described.plan"
    report = build_engine(bert, plan, shapes=["1x1:2x8:4x40"], workspace=1 << 28, backend="rtx")
    description = json.loads((folder / "described.plan.json").read_text())
    assert description == json.loads(json.dumps(report.to_dict()))
    assert description["backend"] == "rtx" and description["version"] == load_backend("rtx").version
    assert description["plan_sha256"] == hashlib.sha256(plan.read_bytes()).hexdigest()
    library = library_path("tensorrt")
    assert description["plugins"]["library"] == str(library)
    assert description["plugins"]["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest()
    names = {"input_ids", "attention_mask", "token_type_ids"}
    assert description["shapes"] == {name: {"min": [1, 1], "opt": [2, 8], "max": [4, 40]} for name in names}
    assert {entry["dtype"] for entry in description["inputs"].values()} == {"int64"}


@pytest.mark.parametrize("functions", [True, False])
@pytest.mark.parametrize(("dtype", "largest"), [("fp32", 1e-5), ("fp16", 2e-2)])
def test_op_bodies_for_tensorrt_compute_the_same(
    functions: bool, dtype: str, largest: float, folder: Path, tmp_path: Path
) -> None:
    """The file for --no-plugins is standard ONNX: ONNX Runtime computes with it what the original does."""
    target = tmp_path / "bodies.onnx"
    source = fused("bert", tmp_path, dtype, functions)
    prepared = prepare(source, target, plugins=False)
    model = onnx.load(target)
    assert prepared.nodes == {} and prepared.ops == ops_in(source) and not model.functions
    assert all(node.domain in ("", "ai.onnx") for node in model.graph.node)
    (entry,) = compare_models(original("bert"), target, library="never").outputs
    # Sums in another order; in half precision each of five rounded products a layer, on logits up to 10.
    assert 0 <= entry.absolute < largest * 10 and entry.relative < largest and entry.cosine > 0.9999
    products = [node for node in model.graph.node if node.op_type == "MatMul"]
    casts = {name: node for node in model.graph.node if node.op_type == "Cast" for name in node.output}
    if dtype == "fp16":
        # Tensor cores need both factors in half precision: each comes from a cast to it, or was never anything else.
        wide = [
            node.name
            for node in products
            for name in node.input
            if name in casts and onnx.helper.get_node_attr_value(casts[name], "to") == onnx.TensorProto.FLOAT
        ]
        assert len(products) >= 12 and wide == []


def test_the_onnx_file_for_trtexec(bert: Path, tmp_path: Path) -> None:
    build_engine(bert, tmp_path / "m.plan", backend="rtx", save_onnx=tmp_path / "m.trt.onnx")
    nodes = [node for node in onnx.load(tmp_path / "m.trt.onnx").graph.node if node.domain == DOMAIN]
    assert len(nodes) == sum(ops_in(bert).values()) and all("" not in node.input for node in nodes)
    # A network of trtexec's may convert weights: then they are written while it runs.
    assert not any(attribute.name == "constant_inputs" for node in nodes for attribute in node.attribute)


def test_plugins_are_told_which_inputs_are_constant(bert: Path, tmp_path: Path) -> None:
    prepare(bert, tmp_path / "m.onnx", plugins=True, strongly_typed=True)
    model = onnx.load(tmp_path / "m.onnx")
    initializers = {tensor.name for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.domain == DOMAIN and node.op_type.startswith("FusedGemm")]
    assert nodes
    for node in nodes:
        bits = onnx.helper.get_node_attr_value(node, "constant_inputs")
        spec = OPS[node.op_type]
        # No input is missing between others here, so places are the op's own.
        assert [bool(bits >> place & 1) for place in range(len(node.input))] == [
            name in initializers for name in node.input
        ]
        assert all(bits >> i & 1 for i, t in enumerate(spec.inputs) if t.constant and i < len(node.input)), node.name


def test_the_engine_keeps_what_is_constant(bert: Path, tmp_path: Path) -> None:
    build_engine(bert, tmp_path / "m.plan", backend="rtx")
    assert b"constant_inputs" in (tmp_path / "m.plan").read_bytes()


SCRIPT = """
import sys
if "first" in sys.argv:
    import tensorrt_rtx_bindings
from bertfuse.runtime.trt import load_backend, load_plugins
backend = load_backend("rtx")
if "plugins" in sys.argv:
    load_plugins(backend)
trt = backend.trt
builder = trt.Builder(backend.log)
network = builder.create_network(0)
parser = trt.OnnxParser(network, backend.log)
assert parser.parse_from_file(sys.argv[1]), backend.log.errors
print(sum(network.get_layer(i).type == trt.LayerType.PLUGIN_V3 for i in range(network.num_layers)))
"""


def parsed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_fused_file_goes_into_the_parser_as_it_is(name: str, folder: Path) -> None:
    """As trtexec reads it, functions and all: the plugins where their library is loaded, else the functions."""
    model = fused(name, folder, "fp16")
    assert {function.name for function in onnx.load(model).functions} == set(ops_in(model))
    ran = parsed(model, "plugins")
    assert ran.returncode == 0 and int(ran.stdout) == sum(ops_in(model).values()) > 7, ran.stderr
    ran = parsed(model)
    assert ran.returncode == 0 and int(ran.stdout) == 0, ran.stderr


def test_loaded_too_early_is_an_error_not_the_end_of_the_process(bert: Path) -> None:
    ran = parsed(bert, "plugins", "first")
    assert ran.returncode == 1 and "TensorRT for RTX was imported before bertfuse" in ran.stderr.splitlines()[-1]


def refused(match: str, target: Path, *arguments: Any, **options: Any) -> None:
    """The build is refused with that line, and neither writes nor damages anything."""
    target.write_bytes(b"old")
    with pytest.raises(BertfuseError, match=match) as caught:
        build_engine(*arguments, target, **{"backend": "rtx", **options})
    assert "\n" not in str(caught.value)
    assert [file.name for file in target.parent.iterdir()] == [target.name] and target.read_bytes() == b"old"


def test_bodies_in_place_of_plugins_are_refused(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TensorRT before 10.7 makes of functions: a network that works, without one of our kernels in it."""
    monkeypatch.setattr(build, "prepare", lambda source, target, *_, **__: _claiming_plugins(source, target))
    refused(r"made no plugin layer of .*\(EmbedLayerNorm\).* and \d+ more", tmp_path / "m.plan", bert)


def _claiming_plugins(source: Path, target: Path) -> Any:
    claimed = prepare(source, target, plugins=True)
    prepare(source, target, plugins=False)
    return claimed


def test_libraries_that_do_not_do(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "m.plan"
    monkeypatch.setattr(build, "has_creator", lambda backend, op, *_: op != "FusedAttention")
    refused("has no plugin for FusedAttention; .*--no-plugins", plan, bert)
    monkeypatch.undo()
    monkeypatch.setenv("BERTFUSE_TRT_LIBRARY", str(library_path("onnxruntime")))
    refused("libbertfuse_ort.so: .* does not load it", plan, bert)
    monkeypatch.setenv("BERTFUSE_TRT_LIBRARY", "/absent.so")
    refused("/absent.so: no such library; BERTFUSE_TRT_LIBRARY", plan, bert)
    build_engine(bert, plan, backend="rtx", plugins=False)  # needs none


def test_options_that_do_not_do(bert: Path, tmp_path: Path) -> None:
    plan = tmp_path / "m.plan"
    refused(
        "compute capability 9.0: TensorRT for RTX .* builds for 7.5, 8.0,", plan, bert, compute_capabilities=["9.0"]
    )
    refused(
        r"compute capability 7\.5: the plugins' kernels begin with 8\.0; build with --no-plugins",
        plan,
        bert,
        compute_capabilities=["7.5"],
    )
    refused("is read; name another file to write", plan, bert, save_onnx=bert)
    before = bert.read_bytes()
    with pytest.raises(BertfuseError, match="is read; name another file to write"):
        build_engine(bert, bert.parent / "." / bert.name, backend="rtx")
    assert bert.read_bytes() == before
    for text in ("new", "8²", "8", "8.99.0"):
        refused(f"--compute-capability '{text}': write major.minor", plan, bert, compute_capabilities=[text])
    refused("--timing-cache: TensorRT for RTX", plan, bert, timing_cache=tmp_path / "cache")
    refused("a larger --workspace may do", plan, bert, workspace=1024)
    refused("backend 'trt' is unknown", plan, bert, backend="trt")
    refused("no such file", plan, tmp_path / "absent.onnx")
    refused("--shapes 1x2: write input:min:opt:max", plan, bert, shapes=["1x2"])


def test_a_model_that_tensorrt_does_not_take(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("StringNormalizer", ["x"], ["y"], name="odd")
    graph = onnx.helper.make_graph([node], "g", [value("x", onnx.TensorProto.STRING, [2])], [value("y", 8, [2])])
    folder = tmp_path / "inner"
    folder.mkdir()
    path = tmp_path / "odd.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    refused(f"{path}: .*TensorRT for RTX", folder / "m.plan", path)


def test_backends_that_are_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_backend().name in backends.BACKENDS
    found = backends.importlib.util.find_spec
    monkeypatch.setattr(
        backends.importlib.util, "find_spec", lambda name: None if name.startswith("tensorrt") else found(name)
    )
    with pytest.raises(RuntimeLibraryError, match=r"TensorRT is not installed: pip install 'bertfuse\[tensorrt\]'"):
        load_backend("tensorrt")
    with pytest.raises(RuntimeLibraryError, match=r"neither .* nor .*bertfuse\[tensorrt\]' or .*bertfuse\[rtx\]'"):
        load_backend()
    monkeypatch.undo()
    old = dataclasses.replace(backends._KINDS["rtx"], minimum=(99, 0))
    monkeypatch.setitem(backends._KINDS, "rtx", old)
    backends._load.cache_clear()
    with pytest.raises(RuntimeLibraryError, match=r"TensorRT for RTX 1\.\S+ is too old: 99\.0"):
        load_backend("rtx")
