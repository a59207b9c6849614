"""bge-m3: vectors of sentences, weights of words and vectors of tokens from one pass, as FlagEmbedding defines them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.inference.maxsim import maxsim
from bertfuse.optimization import optimize
from tests.checkpoints import texts, tokenizer
from tests.sentence_modules import pooling, sentence_folder

CLOSE = {"atol": 5e-5, "rtol": 1e-4}


def m3(folder: Path, seed: int) -> Path:
    sentence_folder(folder, pooling("cls"), ("Normalize", {}), seed=seed)
    for name, size in (("sparse", 1), ("colbert", 24)):
        torch.save(torch.nn.Linear(32, size).state_dict(), folder / f"{name}_linear.pt")
    return folder


@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
def test_all_from_one_pass(padding: str, tmp_path: Path) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    source = m3(tmp_path / "source", seed)
    made = optimize(source, tmp_path / "out", bertfuse.FuseOptions(padding=padding), exporter="torchscript")
    assert made.passed, made.not_compared
    given = [*texts(12, seed=seed), "", "house " * 60]
    encoder = bertfuse.Encoder(tmp_path / "out")
    found = encoder.encode_all(given)
    np.testing.assert_allclose(found["dense_vecs"], encoder.encode(given), **CLOSE)
    model, words = transformers.AutoModel.from_pretrained(source).eval(), tokenizer()
    words.enable_truncation(40)
    layers = {name: torch.load(source / f"{name}_linear.pt") for name in ("sparse", "colbert")}
    for row, text in enumerate(given):
        ids = words.encode(text).ids
        with torch.inference_mode():
            rows = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            weights, vectors = (rows @ layer["weight"].T + layer["bias"] for layer in layers.values())
        dense = torch.nn.functional.normalize(rows[0], dim=-1).numpy()
        np.testing.assert_allclose(found["dense_vecs"][row], dense, **CLOSE)
        want = torch.nn.functional.normalize(vectors[1:], dim=-1).numpy()
        np.testing.assert_allclose(found["colbert_vecs"][row], want, **CLOSE)
        lexical: dict[int, float] = {}
        for token, weight in zip(ids, weights.relu()[:, 0].tolist(), strict=True):
            if words.id_to_token(token) not in ("[CLS]", "[SEP]", "[PAD]", "[UNK]") and weight > 0:
                lexical[token] = max(weight, lexical.get(token, 0))
        dense_words = np.zeros(words.get_vocab_size(), np.float32)
        dense_words[list(lexical)] = list(lexical.values())
        np.testing.assert_allclose(found["lexical_weights"].to_dense()[row], dense_words, **CLOSE)
    assert found["lexical_weights"].dot(found["lexical_weights"]).shape == (len(given),) * 2
    assert maxsim(found["colbert_vecs"], found["colbert_vecs"], mean=True).shape == (len(given),) * 2
    for precision, dtype in (("int8", np.int8), ("ubinary", np.uint8)):
        assert encoder.encode(given, precision=precision).dtype == dtype
    np.testing.assert_allclose(encoder.encode(given, truncate_dim=7), found["dense_vecs"][:, :7], **CLOSE)


def test_a_checkpoint_that_nobody_optimized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    source, given = m3(tmp_path / "source", 3), texts(4, seed=3)
    encoder = bertfuse.Encoder(source)
    assert encoder.outputs == ["sentence_embedding"]
    found = encoder.encode_all(given)
    np.testing.assert_allclose(found["dense_vecs"], encoder.encode(given), **CLOSE)


def test_another_model_has_none(tmp_path: Path) -> None:
    source = m3(tmp_path / "source", 3)
    (source / "sparse_linear.pt").unlink()
    assert optimize(source, tmp_path / "out", exporter="torchscript").passed
    with pytest.raises(BertfuseError, match="has no output sparse_vecs"):
        bertfuse.Encoder(tmp_path / "out").encode_all(["a"])


def test_a_layer_that_is_none(tmp_path: Path) -> None:
    source = m3(tmp_path / "source", 3)
    (source / "sparse_linear.pt").write_bytes(b"no layer")
    with pytest.raises(BertfuseError, match=r"sparse_linear\.pt: holds no linear layer"):
        optimize(source, tmp_path / "out")
