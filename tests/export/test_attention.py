"""Models without sdpa are exported with eager attention, unless one is asked for by name."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import transformers

import bertfuse
from bertfuse.errors import ExportError
from bertfuse.export import export_model
from tests.checkpoints import tokenizer


def mpnet(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.MPNetConfig(vocab_size=60, max_position_embeddings=52, pad_token_id=0, **sizes)
    transformers.MPNetModel(config).eval().save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def attention(path: Path) -> str:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}["bertfuse.attention"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_without_sdpa_it_is_eager(in_memory: bool, tmp_path: Path) -> None:
    source = mpnet(tmp_path / "source")
    model = transformers.MPNetModel.from_pretrained(source) if in_memory else source
    path = export_model(model, tmp_path / "auto", exporter="torchscript")
    assert attention(path) == "eager"
    with pytest.raises(ExportError, match=r"sdpa|scaled_dot_product"):
        export_model(model, tmp_path / "sdpa", exporter="torchscript", attention="sdpa")
    assert not (tmp_path / "sdpa").exists()


def test_an_encoder_of_such_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    assert bertfuse.Encoder(mpnet(tmp_path / "source")).encode(["a house"]).shape == (1, 32)
