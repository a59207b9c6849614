"""A checkpoint without ONNX files is exported and fused when first used, and found again."""

from __future__ import annotations

import io
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from tests.checkpoints import save, texts
from tests.tiny_models import sentence_files


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_checkpoint_is_made_ready_once(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save("encoder", tmp_path / "source")
    sentence_files(source, "Normalize")
    before = sorted(source.rglob("*"))
    given = texts(30, seed=41)
    with caplog.at_level(logging.WARNING, "bertfuse"):
        encoder = bertfuse.Encoder(source, device="cpu")
    assert f"{source}: exported and fused (float32, without padding) into {cache}" in caplog.text
    assert encoder.ragged and encoder.outputs == ["sentence_embedding"]
    found = encoder.encode(given)
    export_model(source, tmp_path / "exported", exporter="torchscript")
    np.testing.assert_allclose(found, bertfuse.Encoder(tmp_path / "exported").encode(given), atol=2e-6)
    assert sorted(source.rglob("*")) == before and len(list(cache.iterdir())) == 1

    with monkeypatch.context() as patch:
        patch.setattr("bertfuse.inference.prepare._make", None)
        np.testing.assert_array_equal(bertfuse.Encoder(source, device="cpu").encode(given), found)
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    assert np.abs(bertfuse.Encoder(source, device="cpu").encode(given) - found).max() > 0.01
    assert len(list(cache.iterdir())) == 2


def test_on_a_terminal_it_says_what_it_is_at(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save("encoder", tmp_path / "source")
    monkeypatch.setattr("sys.stderr", Terminal())
    bertfuse.Encoder(source, device="cpu")
    shown = sys.stderr.getvalue()
    assert "Exporting with dynamo" in shown, shown  # what takes less than the screen's turn may not be seen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_head_is_kept(cache: Path, tmp_path: Path) -> None:
    source = save("classifier", tmp_path / "source")
    export_model(source, tmp_path / "exported", exporter="torchscript")
    given = texts(5, seed=42)
    found = bertfuse.Classifier(source, device="cpu")(given, top_k=None)
    want = bertfuse.Classifier(tmp_path / "exported")(given, top_k=None)
    assert [[row["label"] for row in rows] for rows in found] == [[row["label"] for row in rows] for rows in want]


def test_nothing_is_left_of_a_failure(cache: Path, tmp_path: Path) -> None:
    source = save("encoder", tmp_path / "source")
    sentence_files(source, "Normalize")
    (source / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BertfuseError, match="cannot load it"):
        bertfuse.Encoder(source, device="cpu")
    assert list(cache.iterdir()) == []


def test_float32_outputs_of_a_half_precision_model(tmp_path: Path) -> None:
    """What is done for a GPU, here by the op bodies."""
    from bertfuse.graph_rewrite import fuse_file
    from bertfuse.graph_rewrite.outputs import give_float32, keep_outputs

    source = save("encoder", tmp_path / "source")
    sentence_files(source, "Normalize")
    exported = export_model(source, tmp_path / "exported", exporter="torchscript")
    given = texts(9, seed=43)
    want = bertfuse.Encoder(tmp_path / "exported", device="cpu").encode(given)
    keep_outputs(exported, ["sentence_embedding"])
    fuse_file(exported, exported.with_name("half.onnx"), dtype="fp16", padding="ragged")
    give_float32(exported.with_name("half.onnx"))
    encoder = bertfuse.Encoder(exported.with_name("half.onnx"), device="cpu")
    assert [(value.name, value.type) for value in encoder.session.get_outputs()] == [
        ("sentence_embedding", "tensor(float)")
    ]
    assert (encoder.encode(given) * want).sum(axis=1).min() > 0.999


def test_what_computes_something_else_is_not_kept(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertfuse import optimization

    source = save("classifier", tmp_path / "source")
    right, calls = optimization.fuse_file, []

    def broken(original: Path, fused: Path, options: Any, *rest: Any) -> Any:
        calls.append(options.padding)
        made = right(original, fused, options, *rest)
        if options.padding in wrong:
            model = onnx.load(fused)
            for tensor in model.graph.initializer:
                if tensor.data_type == onnx.TensorProto.FLOAT:
                    off = onnx.numpy_helper.to_array(tensor) * np.float32(1.01)
                    tensor.CopyFrom(onnx.numpy_helper.from_array(off, tensor.name))
            onnx.save(model, fused)
        return made

    monkeypatch.setattr(optimization, "fuse_file", broken)
    wrong = ["ragged"]
    assert not bertfuse.Classifier(source, device="cpu").ragged
    assert calls == ["ragged", "keep"]
    shutil.rmtree(cache)
    wrong = ["ragged", "keep"]
    with pytest.raises(BertfuseError, match="computes something else \\(logits differs\\)"):
        bertfuse.Classifier(source, device="cpu")
    assert list(cache.iterdir()) == []
