"""Contenders that cannot be made say why in one line, and none is measured on less work than the others."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from bertfuse.graph_rewrite import fuse_file
from bertfuse.measuring.contenders import _optimize, optimizer_contender, pytorch_contender
from tests.tiny_models import exported, inputs


def test_without_torch_its_contender_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported().parent
    monkeypatch.setitem(sys.modules, "torch", None)
    made = pytorch_contender(folder, {}, "cpu", None)
    assert made.run is None and "needs torch: pip install 'bertfuse[export]'" in made.absent


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """A sentence encoder's folder before and after fusion, without sentence-transformers' files."""
    path = exported("sentence-similarity", "dynamo")
    for name in ("model.onnx", "config.json"):
        shutil.copy(path.with_name(name), tmp_path)
    fuse_file(path, tmp_path / "model.fused.onnx")
    return tmp_path


def test_sentence_encoders_are_not_measured_without_their_pooling(sentences: Path, tmp_path: Path) -> None:
    metadata = {"bertfuse.task": "sentence-similarity"}
    (tmp_path / "scratch").mkdir()
    made = [
        pytorch_contender(sentences, metadata, "cpu", None),
        optimizer_contender(sentences, metadata, "cpu", None, tmp_path / "scratch"),
    ]
    for contender in made:
        assert contender.run is None and "has no modules.json, so the pooling" in contender.absent


def test_the_optimizer_prints_nothing(sentences: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its own words would come before the document of --json."""
    from onnxruntime.transformers import optimizer

    optimizer.optimize_model(str(sentences / "model.onnx"), "bert", num_heads=4, hidden_size=32, opt_level=0)
    assert "shape inference" in capfd.readouterr().out  # or this test says nothing
    _optimize(sentences / "model.onnx", tmp_path / "optimized.onnx", 4, 32, False)
    assert capfd.readouterr().out == ""


def test_sentence_encoders_are_measured_with_their_pooling(sentences: Path) -> None:
    """PyTorch's model gives the sentence vectors that the file gives, from weights of its own."""
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (sentences / "modules.json").write_text(json.dumps(modules))
    (sentences / "1_Pooling").mkdir()
    (sentences / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    made = pytorch_contender(sentences, {"bertfuse.task": "sentence-similarity"}, "cpu", None)
    assert made.run is not None, made.absent
    result = made.run(inputs(2, 5))
    assert result["sentence_embedding"].equal(result["last_hidden_state"][:, 0])
