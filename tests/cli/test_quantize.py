"""bertfuse quantize: what it writes and prints, and one line for everything that it cannot use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, version_converter

import bertfuse
from bertfuse.graph_rewrite.fused_nodes import input_of
from bertfuse.graph_rewrite.io import load_model, save_model
from bertfuse.graph_rewrite.ops import OPS
from tests.checkpoints import texts
from tests.commands import invoke
from tests.corpora import model_folder


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fused") / "encoder"
    assert invoke("fuse", str(model_folder("encoder")), "-o", str(folder)).exit_code == 0
    return folder


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts(24, seed=3)))
    return file


def refused(*arguments: object) -> str:
    (line,) = invoke("quantize", *arguments, code=2).stderr.strip().splitlines()[-1:]
    assert line.startswith("bertfuse: ")
    return line


def test_a_folder(fused: Path, lines: Path, tmp_path: Path) -> None:
    """Weights of int8, a third of the size, answers as near as the judgement says, by the library and by op bodies."""
    target = tmp_path / "int8"
    found = invoke("quantize", str(fused), "-o", str(target), "--calibration", str(lines), "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    # The checkpoint's large random weights make much of a rounding; tests/test_quantization.py has real ones.
    assert report["judgement"]["cosine_least"] > 0.9 and report["judgement"]["count"] == 12
    assert not any(layer["kept"] for layer in report["layers"])
    model = target / "onnx" / "model.onnx"
    types = {t.name: t.data_type for t in onnx.load(model).graph.initializer if len(t.dims) == 2 and t.dims[0] > 1}
    assert onnx.TensorProto.INT8 in types.values()
    given = texts(9, seed=4)
    vectors = [bertfuse.Encoder(str(folder)).encode(given) for folder in (fused, target)]
    cosines = (vectors[0] * vectors[1]).sum(axis=1) / np.prod([np.linalg.norm(v, axis=1) for v in vectors], axis=0)
    assert cosines.min() > 0.9
    bodies = bertfuse.InferenceSession(model, library="never")
    with_library = bertfuse.InferenceSession(model)
    assert with_library.uses_library
    feed = {value.name: np.ones((2, 7), np.int64) for value in bodies.get_inputs()}
    for got, want in zip(with_library.run(None, feed), bodies.run(None, feed), strict=True):
        assert (got * want).sum() > 0.99 * np.linalg.norm(got) * np.linalg.norm(want)


def test_what_it_prints(fused: Path, lines: Path, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    found = invoke("quantize", str(fused), "-o", str(target), "--calibration", str(lines), "--keep", "EmbedLayerNorm")
    assert found.exit_code == 0, found.output
    for text in ("asked to be kept", "quantised", "by row", "12 texts", "cosine", "rank correlation", "neighbours"):
        assert text in found.stdout
    assert "int8" not in refused(target, "-o", tmp_path / "again.onnx").replace(str(target), "")
    explained = invoke("explain", str(target))
    assert "quantised weights take the TensorRT plugins" in _engine_of(target, tmp_path)
    assert explained.exit_code == 0 and "holds bertfuse ops already" in explained.output


def test_float8(fused: Path, lines: Path, tmp_path: Path) -> None:
    """Products of fp8, words of int8, by the library as by op bodies."""
    source, target = tmp_path / "encoder", tmp_path / "fp8.onnx"
    shutil.copytree(model_folder("encoder"), source)
    model = load_model(source / "onnx" / "model.onnx")
    save_model(version_converter.convert_version(model, 19), source / "onnx" / "model.onnx")
    found = bertfuse.quantize(source, target, to="fp8", calibration=lines)
    assert found.judgement.cosine_least > 0.7  # three bits of mantissa, and the checkpoint's large random weights
    assert all(layer.error < 0.1 for layer in found.layers)
    types = {t.data_type for t in onnx.load(target).graph.initializer if len(t.dims) == 2 and t.dims[0] > 1}
    assert {onnx.TensorProto.INT8, onnx.TensorProto.FLOAT8E4M3FN} <= types
    bodies, with_library = bertfuse.InferenceSession(target, library="never"), bertfuse.InferenceSession(target)
    assert with_library.uses_library
    feed = {value.name: np.ones((2, 7), np.int64) for value in bodies.get_inputs()}
    for got, want in zip(with_library.run(None, feed), bodies.run(None, feed), strict=True):
        assert (got * want).sum() > 0.99 * np.linalg.norm(got) * np.linalg.norm(want)


def test_compare(fused: Path, lines: Path, tmp_path: Path) -> None:
    """By the cosine, not by float32's tolerances; of texts also as users see it. A wrong scale differs."""
    target = tmp_path / "int8"
    invoke("quantize", fused, "-o", target, "--calibration", lines)
    two = [part for text in texts(3, seed=9) for part in ("--text", text)]
    found = json.loads(invoke("compare", fused, target, *two, "--json").stdout)
    assert found["passed"] and found["judgement"]["cosine_least"] > 0.9
    model = load_model(target / "onnx" / "model.onnx")
    scale = next(t for t in model.graph.initializer if t.name.endswith("int8_scale"))
    scale.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(scale), scale.name))
    save_model(model, tmp_path / "wrong.onnx")
    assert "a cosine of" in invoke("compare", fused, tmp_path / "wrong.onnx", code=1).stdout


def test_least_cosine(fused: Path, lines: Path, tmp_path: Path) -> None:
    """Some layers stay in float, and the answers are as near as asked."""
    target = tmp_path / "int8.onnx"
    free = bertfuse.quantize(fused, target, calibration=lines)
    wanted = 1 - (1 - free.judgement.cosine_least) / 2
    found = bertfuse.quantize(fused, target, calibration=lines, min_cosine=wanted)
    kept = [layer for layer in found.layers if layer.kept]
    assert kept and found.judgement.cosine_least >= wanted > free.judgement.cosine_least
    worst = min(layer.error for layer in kept)
    assert all(layer.error <= worst for layer in found.layers if not layer.kept)


def test_an_unfused_model_is_fused(tmp_path: Path) -> None:
    found = bertfuse.quantize(model_folder("encoder"), tmp_path / "int8.onnx")
    assert found.judgement is None and any("without calibration data" in line for line in found.messages)
    assert any(node.domain == "bertfuse" for node in onnx.load(found.model).graph.node)


def test_arrays_and_one_scale_for_a_tensor(fused: Path, tmp_path: Path) -> None:
    arrays = tmp_path / "inputs.npz"
    rng = np.random.default_rng(1)
    ids, mask = rng.integers(5, 20, (40, 9)), np.ones((40, 9), np.int64)
    np.savez(arrays, input_ids=ids, attention_mask=mask, token_type_ids=np.zeros_like(ids))
    found = bertfuse.quantize(fused, tmp_path / "int8.onnx", calibration=arrays, activations="tensor")
    products = [layer for layer in found.layers if layer.op != "EmbedLayerNorm"]
    assert all(layer.x_scale > 0 for layer in products) and found.judgement.cosine_least > 0.9


@pytest.mark.parametrize("weight_scales", ["channel", "tensor"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_residual(dtype: str, weight_scales: str, lines: Path, tmp_path: Path) -> None:
    """Residuals are rounded once for all that add them, and weights may have one scale; by op bodies and the library.

    In half precision they are what the op before has written in 8 bits for products.
    """
    fused = tmp_path / "fused"
    invoke("fuse", model_folder("encoder"), "-o", fused, "--dtype", dtype)
    target = tmp_path / "int8"
    options = ("--residual", "--weight-scales", weight_scales, "--json")
    report = json.loads(invoke("quantize", fused, "-o", target, "--calibration", lines, *options).stdout)
    assert report["judgement"]["cosine_least"] > 0.8
    products = [layer for layer in report["layers"] if layer["op"] != "EmbedLayerNorm"]
    several = {layer["op"] for layer in products if layer["scale_least"] != layer["scale_most"]}
    if weight_scales == "tensor":
        assert several <= {"FusedGemm"}, several  # Q, K and V have a scale each
    else:
        assert several == {layer["op"] for layer in products}
    graph = onnx.load(target / "onnx" / "model.onnx").graph
    pairs = [node.output[0] for node in graph.node if node.op_type == "QuantizeLinear"]
    norms = [node for node in graph.node if node.op_type == "FusedGemmLayerNorm"]
    read, numbers = (
        [input_of(node, OPS[node.op_type], name) for node in norms] for name in ("residual", "residual_quantized")
    )
    if dtype == "fp32":
        assert len(pairs) == len(read) == len(set(read)) and all(name.endswith("_int8_restored") for name in read)
    else:
        assert not pairs and numbers == [f"{name}_in_8_bits" for name in read]
    bodies = bertfuse.InferenceSession(target / "onnx" / "model.onnx", library="never")
    with_library = bertfuse.InferenceSession(target / "onnx" / "model.onnx")
    feed = {value.name: np.ones((2, 7), np.int64) for value in bodies.get_inputs()}
    for got, want in zip(with_library.run(None, feed), bodies.run(None, feed), strict=True):
        got, want = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
        assert got @ want > 0.98 * np.linalg.norm(got) * np.linalg.norm(want)


def test_bad_input(fused: Path, lines: Path, tmp_path: Path) -> None:
    target, file = tmp_path / "int8.onnx", tmp_path / "some.txt"
    assert "takes calibration data" in refused(fused, "-o", target, "--min-cosine", 0.99)
    assert "takes calibration data" in refused(fused, "-o", target, "--activations", "tensor")
    assert "takes calibration data" in refused(fused, "-o", target, "--residual")
    assert "not to fp8" in refused(fused, "-o", target, "--residual", "--to", "fp8", "--calibration", lines)
    assert "one for a weight is of int8" in refused(fused, "-o", target, "--weight-scales", "tensor", "--to", "fp8")
    assert "are unknown" in refused(fused, "-o", target, "--weight-scales", "row")
    assert "takes 19: export it with --opset 19" in refused(fused, "-o", target, "--to", "fp8")
    assert "is unknown" in refused(fused, "-o", target, "--to", "int4")
    assert "are unknown" in refused(fused, "-o", target, "--activations", "layer")
    assert "no layer 'attention'" in refused(fused, "-o", target, "--keep", "attention")
    assert "between 0 and 1" in refused(fused, "-o", target, "--calibration", lines, "--min-cosine", 2)
    assert "no such file" in refused(tmp_path / "none", "-o", target).lower()
    assert "cannot be read" in refused(fused, "-o", target, "--calibration", tmp_path / "none.txt")
    file.write_text("\n \n")
    assert "holds no text" in refused(fused, "-o", target, "--calibration", file)
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refused(fused, "-o", target, "--calibration", file)
    np.savez(tmp_path / "empty.npz", **{n: np.zeros((0, 4), np.int64) for n in _names(fused)})
    assert "holds no rows" in refused(fused, "-o", target, "--calibration", tmp_path / "empty.npz")
    every = [part for layer in _layers(fused) for part in ("--keep", layer)]
    assert "no layer is left" in refused(fused, "-o", target, *every)
    assert not target.exists()


def test_models_that_are_refused(fused: Path, lines: Path, tmp_path: Path) -> None:
    """Quantised already, by us and by ONNX Runtime; NaN in a weight; nothing that can be fused."""
    from onnxruntime.quantization import quantize_dynamic

    target = tmp_path / "int8.onnx"
    bertfuse.quantize(fused, target)
    assert "is quantised already" in refused(target, "-o", tmp_path / "again.onnx")
    theirs = tmp_path / "theirs.onnx"
    quantize_dynamic(model_folder("encoder") / "onnx" / "model.onnx", theirs)
    assert "quantised by another tool (DequantizeLinear, Dyn" in refused(theirs, "-o", tmp_path / "again.onnx")
    model = load_model(fused / "onnx" / "model.onnx")
    weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
    values = numpy_helper.to_array(weight).copy()
    values[0, 0] = np.nan
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    broken = tmp_path / "broken.onnx"
    save_model(model, broken)
    assert "holds NaN" in refused(broken, "-o", target, "--overwrite")
    graph = onnx.helper.make_graph([], "none", [], [])
    save_model(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), broken)
    assert "can be fused" in refused(broken, "-o", target, "--overwrite")


def test_activations_that_are_always_zero(fused: Path, lines: Path, tmp_path: Path) -> None:
    """No scale follows from them for a tensor; with a scale for each row they are quantised as 0."""
    folder = tmp_path / "zero"
    shutil.copytree(fused, folder)
    model = load_model(folder / "onnx" / "model.onnx")
    embed = next(node for node in model.graph.node if node.op_type == "EmbedLayerNorm")
    for tensor in model.graph.initializer:
        if tensor.name in embed.input[3:5]:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    save_model(model, folder / "onnx" / "model.onnx")
    options = ("--calibration", lines, "--activations", "tensor")
    assert "its input is 0 for all calibration data" in refused(folder, "-o", tmp_path / "a.onnx", *options)
    found = bertfuse.quantize(folder, tmp_path / "b.onnx", calibration=lines)
    assert np.isfinite([layer.error for layer in found.layers]).all()


def _engine_of(model: Path, folder: Path) -> str:
    from bertfuse.runtime.trt.model import prepare

    with pytest.raises(bertfuse.BertfuseError) as error:
        prepare(model, folder / "for_trt.onnx", plugins=False)
    return str(error.value)


def _layers(fused: Path) -> list[str]:
    from bertfuse.graph_rewrite.io import open_model
    from bertfuse.graph_rewrite.quantization import find_layers

    return [layer.name for layer in find_layers(*open_model(fused / "onnx" / "model.onnx"))]


def _names(fused: Path) -> list[str]:
    return [value.name for value in bertfuse.InferenceSession(fused / "onnx" / "model.onnx").get_inputs()]
