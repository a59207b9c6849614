"""Models that ONNX Runtime's optimizer has been through before: basic is no matter, extended is said."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.attentions import HIDDEN, Attention, attend
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds

Level = onnxruntime.GraphOptimizationLevel


def layer(batch: int | str) -> onnx.ModelProto:
    b = Builder(opset=17)
    x, mask = b.input("x", (batch, 5, HIDDEN)), b.ids("attention_mask", (batch, 5))
    y = b.linear(attend(b, x, Attention(), mask), HIDDEN, HIDDEN)
    y = b.layer_norm(b.op("Add", y, x), HIDDEN)
    inner = b.linear(b.gelu(b.linear(y, HIDDEN, 32)), 32, HIDDEN)
    b.output(b.layer_norm(b.op("Add", inner, y), HIDDEN))
    return b.model()


def optimized(model: onnx.ModelProto, level: Level, folder: Path) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


@pytest.mark.parametrize("batch", ["B", 2])
def test_basic(batch: int | str, tmp_path: Path) -> None:
    """With known sizes it turns MatMul and Add into Reshape, Gemm and Reshape."""
    model = layer(batch)
    changed = optimized(model, Level.ORT_ENABLE_BASIC, tmp_path)
    assert any(node.op_type == "Gemm" for node in changed.graph.node) == (batch == 2)
    result = fuse(changed)
    assert result.fused == {"FusedAttention": 1, "FusedGemmLayerNorm": 2, "FusedGemmGelu": 1}
    assert result.misses == [] and result.messages == []
    assert_agree(model, result.model, feeds(model), 2e-5)


@pytest.mark.parametrize("batch", ["B", 2])
def test_extended(batch: int | str, tmp_path: Path) -> None:
    """Nothing breaks, and the user is told why little is left."""
    model = layer(batch)
    result = fuse(optimized(model, Level.ORT_ENABLE_EXTENDED, tmp_path))
    assert "ONNX Runtime's optimizer was here" in result.messages[0]
    assert_agree(model, result.model, feeds(model), 2e-5)
