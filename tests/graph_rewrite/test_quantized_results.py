"""Quantised models whose ops write what the next product reads in 8 bits: which do, and that answers stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import version_converter

import bertfuse
from bertfuse.analysis.model_calls import model_calls
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.io import load_model, save_model
from bertfuse.graph_rewrite.ops import OPS
from tests.commands import invoke
from tests.corpora import model_folder
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


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_half_precision_models_write_results_unless_told_otherwise(dtype: str, tmp_path: Path) -> None:
    plain, results, feeds = _made(tmp_path, dtype, "int8")
    bertfuse.quantize(tmp_path / "fused.onnx", tmp_path / "default.onnx", calibration=feeds)
    wanted = results if dtype == "fp16" else plain
    assert _readers(onnx.load(tmp_path / "default.onnx")) == _readers(onnx.load(wanted))
    assert _readers(onnx.load(results)) != _readers(onnx.load(plain))


@pytest.mark.parametrize("to", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_both_forms_answer_alike(dtype: str, to: str, tmp_path: Path) -> None:
    """By the library and by op bodies. Where every row has its own scale the numbers are the same."""
    plain, results, feed = _made(tmp_path, dtype, to)
    layers = 2
    writers, read, rounded = _readers(onnx.load(results))
    assert _readers(onnx.load(plain))[:2] == (0, 0)
    # QKV and the feed-forward's first product read LayerNorm's rows, in fp8 its second one GELU's.
    assert (writers, read) == ((3 * layers, 3 * layers) if to == "fp8" else (2 * layers, 2 * layers)), (read, rounded)
    for library in ("always", "never"):
        want, got = (bertfuse.InferenceSession(file, library=library).run(None, feed) for file in (plain, results))
        for one, other in zip(map(np.float64, want), map(np.float64, got), strict=True):
            cosine = (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)
            assert cosine > (0.99 if to == "fp8" else 0.9999), (library, cosine)


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
    assert _readers(onnx.load(results))[0] == 4
    want, got = (bertfuse.InferenceSession(file).run(None, feed) for file in (plain, results))
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose(other, one, atol=2e-3)
