"""Sentence encoders: what a sentence-transformers folder says comes after the transformer is in the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from bertfuse.errors import BertfuseError, ExportError
from bertfuse.export import export_model
from bertfuse.export.sentence import SentenceEncoder
from bertfuse.graph_rewrite import fuse
from bertfuse.model_folder.sentence_modules import POOLING_FLAGS, POOLINGS
from tests.tiny_models import HIDDEN, build, inputs, save_checkpoint

ST = "sentence_transformers.models"


def sentence_folder(folder: Path, pooling: dict, *later: str, dense_size: int = 5, activation: str = "Tanh") -> Path:
    """A checkpoint with modules.json: Pooling of that configuration, then the modules named."""
    save_checkpoint(folder, tokenizer=False)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *((f"{i + 2}_{n}", n) for i, n in enumerate(later))]
    rows = [{"idx": i, "name": str(i), "path": path, "type": f"{ST}.{kind}"} for i, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": HIDDEN} | pooling))
    for path, kind in modules:
        if kind == "Dense":
            (folder / path).mkdir()
            config = {
                "in_features": HIDDEN,
                "out_features": dense_size,
                "activation_function": f"torch.nn.{activation}",
            }
            (folder / path / "config.json").write_text(json.dumps(config))
            torch.manual_seed(1)
            weights = {"linear.weight": torch.randn(dense_size, HIDDEN), "linear.bias": torch.randn(dense_size)}
            save_file(weights, folder / path / "model.safetensors")
    return folder


def flags(*modes: str) -> dict:
    """As sentence-transformers up to 5.x writes them; their order in the file says nothing."""
    return {flag: mode in modes for flag, mode in sorted(POOLING_FLAGS.items(), reverse=True)}


def by_hand(tokens: np.ndarray, mask: np.ndarray, mode: str) -> np.ndarray:
    made = []
    for row, seen in zip(tokens, mask, strict=True):
        r = row[seen == 1]
        weights = np.arange(1, len(r) + 1)
        made.append(
            {
                "cls": r[0],
                "max": r.max(0),
                "mean": r.mean(0),
                "mean_sqrt_len_tokens": r.sum(0) / np.sqrt(len(r)),
                "weightedmean": weights @ r / weights.sum(),
                "lasttoken": r[-1],
            }[mode]
        )
    return np.stack(made)


def outputs(path: Path, feed: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tokens, sentence = session.run(["last_hidden_state", "sentence_embedding"], feed)
    return tokens, sentence


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("modes", [*((mode,) for mode in POOLINGS), ("mean", "cls", "lasttoken", "max")])
def test_poolings(modes: tuple[str, ...], normalize: bool, tmp_path: Path) -> None:
    source = sentence_folder(tmp_path / "source", flags(*modes), *(["Normalize"] if normalize else []))
    path = export_model(source, tmp_path / "out", task="sentence-similarity", exporter="torchscript")
    feed = inputs(3, 9)
    tokens, sentence = outputs(path, feed)
    want = np.concatenate([by_hand(tokens, feed["attention_mask"], m) for m in POOLINGS if m in modes], axis=1)
    if normalize:
        want /= np.linalg.norm(want, axis=1, keepdims=True)
    np.testing.assert_allclose(sentence, want, rtol=1e-4, atol=1e-5)


def test_newer_folders_name_their_poolings(tmp_path: Path) -> None:
    modes = ["lasttoken", "cls"]
    source = sentence_folder(tmp_path / "source", {"pooling_mode": modes})
    path = export_model(source, tmp_path / "out", task="sentence-similarity", exporter="torchscript")
    feed = inputs(2, 7)
    tokens, sentence = outputs(path, feed)
    want = np.concatenate([by_hand(tokens, feed["attention_mask"], mode) for mode in modes], axis=1)
    np.testing.assert_allclose(sentence, want, rtol=1e-6)


def test_projection(tmp_path: Path) -> None:
    source = sentence_folder(tmp_path / "source", flags("mean"), "Dense", "Normalize")
    path = export_model(source, tmp_path / "out", task="sentence-similarity", exporter="torchscript")
    feed = inputs(2, 7)
    tokens, sentence = outputs(path, feed)
    torch.manual_seed(1)
    weight, bias = torch.randn(5, HIDDEN).numpy(), torch.randn(5).numpy()
    want = np.tanh(by_hand(tokens, feed["attention_mask"], "mean") @ weight.T + bias)
    np.testing.assert_allclose(sentence, want / np.linalg.norm(want, axis=1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_the_encoder_inside_is_fused(tmp_path: Path) -> None:
    path = export_model(SentenceEncoder(build()), tmp_path, task="sentence-similarity", exporter="torchscript")
    result = fuse(path)
    assert result.misses == [] and result.fused["FusedAttention"] == 2


def _no_modules(folder: Path) -> Path:
    (folder / "modules.json").unlink()
    return folder


def _broken_modules(folder: Path, text: str = "[") -> Path:
    (folder / "modules.json").write_text(text)
    return folder


CONFIG = "config_sentence_transformers.json"


def _settings(folder: Path, name: str, **values: object) -> Path:
    sentence_folder(folder, flags("mean"))
    (folder / name).write_text(json.dumps(values))
    return folder


def _cut_projection(folder: Path) -> Path:
    file = folder / "2_Dense" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: _no_modules(sentence_folder(f, flags("mean"))), "has no modules.json"),
        (lambda f: _broken_modules(sentence_folder(f, flags("mean"))), "modules.json: cannot be read"),
        (lambda f: _broken_modules(sentence_folder(f, flags("mean")), "{}"), "modules.json is not a list of modules"),
        (lambda f: _cut_projection(sentence_folder(f, flags("mean"), "Dense")), "2_Dense/model.safetensors: holds no"),
        (lambda f: sentence_folder(f, flags("mean"), "LSTM"), "has a LSTM module, which cannot be exported"),
        (lambda f: sentence_folder(f, {"pooling_mode": "middle"}), "pooling middle is unknown"),
        (
            lambda f: sentence_folder(f, {"pooling_mode": "cls", "tokens": 2}),
            "1_Pooling/config.json: has tokens, which",
        ),
        (lambda f: sentence_folder(f, flags("mean"), "Dense", activation="Softmax"), "activation Softmax"),
        (lambda f: sentence_folder(f, flags("mean"), "WeightedLayerPooling"), "needs output_hidden_states"),
        (lambda f: sentence_folder(f, flags("mean"), "LayerNorm"), "2_LayerNorm has no model.safetensors"),
        (
            lambda f: _settings(f, "sentence_bert_config.json", transformer_task="fill-mask"),
            "transformer_task is 'fill-",
        ),
        (lambda f: _settings(f, "sentence_bert_config.json", model_args={"revision": "x"}), "model_args: has revision"),
        (lambda f: _settings(f, CONFIG, truncate_dim="x"), "truncate_dim is 'x'"),
        (lambda f: _settings(f, CONFIG, default_prompt_name="q"), "default_prompt_name is 'q', which is none of its"),
        (lambda f: _settings(f, CONFIG, similarity_fn_name="maxsim"), "similarity 'maxsim' is unknown"),
        (lambda f: _settings(f, CONFIG, model_type="SparseAutoEncoder"), "is of a SparseAutoEncoder"),
        (lambda f: _settings(f, CONFIG, whatever=1), "has whatever, which is not known here"),
    ],
)
def test_folders_that_do_not_do(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    source, said = make(tmp_path / "source"), []
    with pytest.raises(BertfuseError, match=message) as caught:
        export_model(source, tmp_path / "out", task="sentence-similarity", progress=said.append)
    assert not [line for line in said if line.startswith("Exporting")]
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_transformer_alone_is_no_sentence_encoder(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="not sentence_embedding, which task sentence-similarity needs"):
        export_model(build(), tmp_path / "out", task="sentence-similarity", exporter="torchscript")


def test_unknown_pooling() -> None:
    with pytest.raises(ExportError, match="choose from cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken"):
        SentenceEncoder(build(), ("median",))
