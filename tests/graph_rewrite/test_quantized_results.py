"""Quantised models whose ops write what the next product reads in 8 bits: which do, and that answers stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, version_converter

import bertfuse
from bertfuse.analysis.model_calls import model_calls
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.fused_nodes import fused_nodes, input_of, set_inputs
from bertfuse.graph_rewrite.io import load_model, save_model
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.quantized_results import write_results
from tests.commands import invoke
from tests.corpora import model_folder
from tests.model_coverage.files import feed
from tests.model_coverage.test_families import exported
from tests.tiny_models import inputs


def _made(tmp_path: Path, dtype: str, to: str, padding: str = "keep") -> tuple[Path, Path, dict[str, np.ndarray]]:
    """The same quantised model in both forms, and a feed."""
    source = tmp_path / "model.onnx"
    save_model(
        version_converter.convert_version(load_model(model_folder("encoder") / "onnx" / "model.onnx"), 19), source
    )
    fused = tmp_path / "fused.onnx"
    fuse_file(source, fused, dtype=dtype, padding=padding)
    feeds = inputs(6, 12, seed=1)
    feeds["input_ids"] %= 27
    feeds = {v.name: feeds[v.name] for v in bertfuse.InferenceSession(fused).get_inputs()}
    files = [tmp_path / "plain.onnx", tmp_path / "results.onnx"]
    for file, results in zip(files, (False, True), strict=True):
        bertfuse.quantize(fused, file, to=to, calibration=feeds, results=results)
    return files[0], files[1], feeds


def _readers(model: onnx.ModelProto) -> tuple[int, int, int]:
    """Ops that write in 8 bits; products that read what another one wrote; that round x themselves."""
    writers = read = rounded = 0
    for node in model.graph.node:
        if node.op_type not in OPS or node.domain != "bertfuse":
            continue
        spec = OPS[node.op_type]
        writers += len(node.output) > len(spec.outputs)
        names = dict(zip((tensor.name for tensor in spec.inputs), node.input, strict=False))
        read += bool(names.get("x_quantized"))
        rounded += bool(names.get("weight_scale")) and not names.get("x_quantized")
        assert not names.get("x_quantized") or not (names.get("x_smooth") or names.get("x_scale"))
    return writers, read, rounded


@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_half_precision_models_write_results_unless_told_otherwise(dtype: str, padding: str, tmp_path: Path) -> None:
    plain, results, feeds = _made(tmp_path, dtype, "int8", padding)
    bertfuse.quantize(tmp_path / "fused.onnx", tmp_path / "default.onnx", calibration=feeds)
    wanted = results if dtype == "fp16" else plain
    assert _readers(onnx.load(tmp_path / "default.onnx")) == _readers(onnx.load(wanted))
    assert _readers(onnx.load(results)) != _readers(onnx.load(plain))


def _far(one: np.ndarray, other: np.ndarray) -> float:
    """1 less the cosine."""
    one, other = np.float64(one), np.float64(other)
    return 1 - (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.mark.parametrize("to", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_both_forms_are_as_exact(dtype: str, to: str, tmp_path: Path) -> None:
    """By the library and by op bodies, beside the float model's answers."""
    plain, results, feed = _made(tmp_path, dtype, to)
    layers = 2
    writers, read, rounded = _readers(onnx.load(results))
    assert _readers(onnx.load(plain))[:2] == (0, 0)
    # QKV and the feed-forward's first product read LayerNorm's rows, attention's projection its context, and the
    # feed-forward's second product GELU's rows.
    assert (writers, read) == (4 * layers, 4 * layers), (read, rounded)
    right = bertfuse.InferenceSession(tmp_path / "fused.onnx").run(None, feed)
    for library in ("always", "never"):
        rows, tensors = (bertfuse.InferenceSession(file, library=library).run(None, feed) for file in (plain, results))
        for one, row, tensor in zip(right, rows, tensors, strict=True):
            assert _far(tensor, one) < 1.5 * _far(row, one) + 1e-3, (library, _far(tensor, one), _far(row, one))


def test_by_row_the_numbers_are_the_same(tmp_path: Path) -> None:
    """Where what reads attention and GELU stays in float, each row that is written has a scale of its own."""
    _, _, feed = _made(tmp_path, "fp32", "int8")
    fused = tmp_path / "fused.onnx"
    answers = []
    for results in (False, True):
        file = tmp_path / f"{results}.onnx"
        layers = bertfuse.quantize(fused, file, calibration=feed).layers
        kept = [layer.name for layer in layers if layer.op == "FusedGemmLayerNorm"]
        bertfuse.quantize(fused, file, calibration=feed, results=results, keep=kept)
        answers.append(bertfuse.InferenceSession(file).run(None, feed))
    assert len(kept) == 4 and _readers(onnx.load(file))[0] == 4, kept
    for one, other in zip(*answers, strict=True):
        assert _far(one, other) < 1e-4


def test_integers_of_gelu_fill_their_range(tmp_path: Path) -> None:
    """GELU's least result is -0.17, so that 0 is one of the least integers; products take off what that adds."""
    _, results, _ = _made(tmp_path, "fp16", "int8")
    model = onnx.load(results)
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    def given(node: onnx.NodeProto, name: str) -> np.ndarray | None:
        return arrays.get(input_of(node, OPS[node.op_type], name))

    writers = [node for node in model.graph.node if node.op_type == "FusedGemmGelu"]
    assert len(writers) == 2
    for writer in writers:
        zero = given(writer, "y_zero_point")
        assert zero is not None and -128 <= zero < -60, zero
        (reader,) = (node for node in model.graph.node if writer.output[1] in node.input)
        weight, compensation = given(reader, "weight"), given(reader, "x_compensation")
        assert weight is not None and compensation is not None
        assert np.array_equal(compensation, weight.sum(axis=1, dtype=np.int64) * int(zero))


@pytest.mark.parametrize("to", ["fp8", "int8"])
@pytest.mark.parametrize("activations", ["token", "tensor"])
def test_norms_write_by_the_scale_that_products_have(to: str, activations: str, tmp_path: Path) -> None:
    """Each row's own, or with `activations` "tensor" what calibration has found."""
    _, _, feeds = _made(tmp_path, "fp16", to)
    file = tmp_path / "model.onnx"
    made = bertfuse.quantize(tmp_path / "fused.onnx", file, to=to, calibration=feeds, activations=activations)
    assert made.judgement.cosine_mean > 0.98
    model = onnx.load(file)
    norms = [node for node in fused_nodes(model) if node.op_type == "FusedGemmLayerNorm"]
    writing = [node for node in norms if len(node.output) > 1]
    assert (len(norms), len(writing)) == (4, 3)  # the last one's result is the model's
    for node in writing:
        assert bool(input_of(node, OPS[node.op_type], "y_tensor_scale")) == (activations == "tensor")


@pytest.mark.parametrize("second", [None, 1.5, 0.25])
def test_a_norm_has_the_scale_of_those_that_read_it(second: float | None) -> None:
    """And those that have another one, or none, round it for themselves."""
    norm, product = OPS["FusedGemmLayerNorm"], OPS["FusedGemm"]
    scales = {"first": 0.25, "second": second}
    nodes = [helper.make_node("FusedGemmLayerNorm", [], ["y"], domain="bertfuse")]
    set_inputs(nodes[0], norm, {name: name for name in ("x", "weight", "bias", "residual", "gamma", "beta")})
    constants = [onnx.numpy_helper.from_array(np.ones((8, 8), np.int8), "numbers")]
    for name, scale in scales.items():
        reader = helper.make_node("FusedGemm", [], [name], domain="bertfuse")
        given = {"x": "y", "weight": "numbers", "weight_scale": "scales"}
        if scale is not None:
            constants.append(onnx.numpy_helper.from_array(np.float32(scale), f"{name}_x_scale"))
            given["x_scale"] = f"{name}_x_scale"
        set_inputs(reader, product, given)
        nodes.append(reader)
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], constants))
    assert write_results(model, {}, lambda name: np.zeros(8)) == 1
    writer, *readers = model.graph.node
    found = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert found[input_of(writer, norm, "y_tensor_scale")] == 0.25
    alike = second == 0.25
    assert [bool(input_of(reader, product, "x_quantized")) for reader in readers] == [True, alike]
    own = "second_x_scale" if second is not None and not alike else ""
    assert [input_of(reader, product, "x_scale") for reader in readers] == ["", own]


def test_its_calls_are_known(tmp_path: Path) -> None:
    """What explain and tune read of a file: every fused node's shapes, the outputs in 8 bits among them."""
    _, results, _ = _made(tmp_path, "fp16", "fp8")
    counts = {}
    for op, call, count in model_calls(results, 2, 9):
        counts[op, call.num_outputs] = counts.get((op, call.num_outputs), 0) + count
    assert counts["FusedGemmGelu", 3] == 2 and counts["FusedGemm", 1] == 2, counts
    assert "fused weights are fp8" in invoke("explain", str(results)).output


def test_packed(tmp_path: Path) -> None:
    plain, results, feed = _made(tmp_path, "fp32", "int8", padding="remove")
    assert _readers(onnx.load(results))[0] == 8
    want, got = (bertfuse.InferenceSession(file).run(None, feed) for file in (plain, results))
    for one, other in zip(want, got, strict=True):
        assert _far(one, other) < 2e-3


def test_packed_models_are_calibrated_as_padded_ones(tmp_path: Path) -> None:
    """By real rows alone: what lies behind them is not written at all."""
    rng = np.random.default_rng()
    ids, mask = rng.integers(5, 20, (12, 16)), np.ones((12, 16), np.int64)
    for row, length in enumerate(rng.integers(1, 16, 11), 1):
        mask[row, length:] = 0
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    errors = []
    for padding in ("keep", "remove"):
        fused = tmp_path / f"{padding}.onnx"
        assert not fuse_file(model_folder("encoder") / "onnx" / "model.onnx", fused, padding=padding).misses
        found = bertfuse.quantize(fused, tmp_path / f"{padding}.int8.onnx", calibration=feed)
        errors.append([layer.error for layer in found.layers])
    np.testing.assert_allclose(*errors, rtol=1e-3)


def test_variants_of_attention_write_too(tmp_path: Path) -> None:
    """MPNet's, with a bias by distance."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.MPNetConfig(**sizes, vocab_size=100, max_position_embeddings=64)
    transformers.MPNetModel(config).save_pretrained(tmp_path / "checkpoint")
    bertfuse.optimize(str(tmp_path / "checkpoint"), tmp_path / "folder", task="feature-extraction", dtype="fp16")
    fused, results = tmp_path / "folder" / "onnx" / "model.onnx", tmp_path / "fp8.onnx"
    ids = np.random.default_rng().integers(3, 100, (8, 24))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    bertfuse.quantize(fused, results, to="fp8", calibration=feed)
    outputs = [len(node.output) for node in onnx.load(results).graph.node if node.op_type == "FusedAttentionVariant"]
    assert outputs == [3, 3]
    for one, other in zip(*(bertfuse.InferenceSession(file).run(None, feed) for file in (fused, results)), strict=True):
        assert _far(one, other) < 0.02


@pytest.mark.parametrize(("padding", "to"), [("keep", "fp8"), ("remove", "fp8"), ("remove", "int8")])
@pytest.mark.parametrize("family", ["modernbert", "nomic-bert", "eurobert", "esm", "qwen3", "gemma3", "vit"])
def test_families_are_quantised_whole(family: str, padding: str, to: str, tmp_path: Path) -> None:
    """Every fused weight, and what fused ops write for a product, of gates in fp8 alone, is in 8 bits."""
    source, fused, target = (tmp_path / f"{name}.onnx" for name in ("source", "fused", "quantised"))
    save_model(version_converter.convert_version(load_model(exported(family, "torchscript", "sdpa")), 19), source)
    fuse_file(source, fused, dtype="fp16", padding=padding)
    made = bertfuse.quantize(fused, target, to=to, calibration=feed(bertfuse.InferenceSession(source), 4, 9))
    assert made.judgement.cosine_mean > 0.99
    model = load_model(target)
    writers = {name: node.op_type for node in fused_nodes(model) for name in node.output}
    for node in fused_nodes(model):
        spec = OPS[node.op_type]
        assert not input_of(node, spec, "weight") or input_of(node, spec, "weight_scale"), node.op_type
        rounds = input_of(node, spec, "weight_scale") and not input_of(node, spec, "x_quantized")
        writer = writers.get(input_of(node, spec, "x"))
        # RMSNorm of the embeddings, of which there is one, and a pooler's one row of each text.
        others = (None, "FusedRMSNorm", "FirstTokens", *(["FusedGatedGemm"] if to == "int8" else []))
        assert not rounds or writer in others, f"{node.op_type} of {writer}"


def test_packed_residuals_are_calibrated_by_real_rows(tmp_path: Path) -> None:
    """Those that no product reads, too: the sums that a pre-norm block hands on."""
    seed = int(np.random.default_rng().integers(2**31))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    mask = np.int64(np.arange(40) < random.integers(2, 12, (16, 1)))
    feeds = {"input_ids": random.integers(5, 90, mask.shape), "attention_mask": mask}
    least = {}
    for padding in ("keep", "remove"):
        fused, target = (tmp_path / f"{padding}.{name}.onnx" for name in ("fused", "int8"))
        fuse_file(exported("qwen3", "torchscript", "sdpa"), fused, padding=padding)
        made = bertfuse.quantize(fused, target, residual=True, calibration=feeds)
        least[padding] = made.judgement.cosine_least
    assert least["remove"] > least["keep"] - 2e-3, least
