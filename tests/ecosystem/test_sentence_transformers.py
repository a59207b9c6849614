"""SentenceTransformer and CrossEncoder on optimized folders, and bertfuse's own classes, against PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import texts
from sentence_transformers import CrossEncoder, SentenceTransformer, models

import bertfuse

Folders = Callable[[str], Path]
SENTENCES = ["A man is eating a piece of bread.", "  Ünïcode, and  spaces ", "", "word " * 600, "!", "Short."]
# float32 sums in another order; vectors of length 1.
ATOL = 2e-6
# Logits of large random weights reach 10.
ATOL_SCORES = 1e-4


def test_minilm_by_sentence_transformers(sources: Folders, folders: Folders, caplog: pytest.LogCaptureFixture) -> None:
    reference = SentenceTransformer(str(sources("minilm")), device="cpu")
    with caplog.at_level(logging.WARNING):
        model = SentenceTransformer(str(folders("minilm")), backend="onnx")
    assert not [record for record in caplog.records if "ONNX" in record.getMessage()]  # one file, none exported
    assert model.max_seq_length == reference.max_seq_length == 256
    want, got = reference.encode(SENTENCES), model.encode(SENTENCES)
    np.testing.assert_allclose(got, want, atol=ATOL)
    # As tools misread a folder without sentence-transformers' files: this test can fail.
    wrong = models.Transformer(str(sources("minilm")), max_seq_length=512)
    other = SentenceTransformer(modules=[wrong, models.Pooling(384, pooling_mode="cls")], device="cpu")
    assert np.abs(other.encode(SENTENCES) - want).max() > 0.01


def test_minilm_by_bertfuse(sources: Folders, folders: Folders) -> None:
    reference = SentenceTransformer(str(sources("minilm")), device="cpu")
    encoder = bertfuse.Encoder(folders("minilm"))
    want = reference.encode(SENTENCES)
    np.testing.assert_allclose(encoder.encode(SENTENCES), want, atol=ATOL)
    np.testing.assert_allclose(encoder.encode(SENTENCES[0]), want[0], atol=ATOL)
    for options in ({"batch_size": 2}, {"prompt": "query: "}, {"truncate_dim": 7, "normalize_embeddings": True}):
        kept = dict(options)
        theirs = SentenceTransformer(str(sources("minilm")), device="cpu", truncate_dim=kept.pop("truncate_dim", None))
        np.testing.assert_allclose(encoder.encode(SENTENCES, **options), theirs.encode(SENTENCES, **kept), atol=4e-6)


@pytest.mark.parametrize(
    ("pooling", "normalize"), [("cls", False), ("max", True), ("mean", True), ("mean_sqrt_len_tokens", False)]
)
def test_other_poolings_prompts_and_lengths(pooling: str, normalize: bool, sources: Folders, tmp_path: Path) -> None:
    from commands import said

    transformer = models.Transformer(str(sources("encoder")), max_seq_length=12)
    modules: list[Any] = [transformer, models.Pooling(32, pooling_mode=pooling)]
    if normalize:
        modules.append(models.Normalize())
    prompts = {"query": "the talk: ", "document": ""}
    saved = SentenceTransformer(modules=modules, device="cpu", prompts=prompts, default_prompt_name="query")
    saved.save(str(tmp_path / "source"))
    said("optimize", tmp_path / "source", "-o", tmp_path / "out", "--exporter", "torchscript")
    reference = SentenceTransformer(str(tmp_path / "source"), device="cpu")
    model = SentenceTransformer(str(tmp_path / "out"), backend="onnx")
    encoder = bertfuse.Encoder(tmp_path / "out")
    assert model.max_seq_length == encoder.max_seq_length == 12
    given = texts(40, seed=3)
    for options in ({}, {"prompt_name": "document"}, {"prompt": "blue "}):
        want = reference.encode(given, **options)
        # Not normalised, vectors are as long as 10.
        np.testing.assert_allclose(model.encode(given, **options), want, atol=2e-5, rtol=1e-5)
        np.testing.assert_allclose(encoder.encode(given, **options), want, atol=2e-5, rtol=1e-5)
    assert np.abs(reference.encode(given) - reference.encode(given, prompt_name="document")).max() > 1e-2


@pytest.mark.parametrize("name", ["reranker", "pairs"])
def test_cross_encoders(name: str, sources: Folders, folders: Folders) -> None:
    pairs = list(zip(texts(30, seed=1), texts(30, seed=2, longest=50), strict=True))
    reference = CrossEncoder(str(sources(name)), device="cpu")
    model = CrossEncoder(str(folders(name)), backend="onnx")
    ours = bertfuse.Reranker(folders(name))
    want = reference.predict(pairs)
    np.testing.assert_allclose(model.predict(pairs), want, atol=ATOL_SCORES)
    np.testing.assert_allclose(ours.predict(pairs), want, atol=ATOL_SCORES)
    np.testing.assert_allclose(ours.predict(pairs[0]), want[0], atol=ATOL_SCORES)
    softmax = {"apply_softmax": True}
    np.testing.assert_allclose(ours.predict(pairs, **softmax), reference.predict(pairs, **softmax), atol=ATOL_SCORES)
    if name == "pairs":
        return
    query, documents = pairs[0][0], [document for _, document in pairs]
    theirs = reference.rank(query, documents, top_k=7, return_documents=True)
    mine = ours.rank(query, documents, top_k=7, return_documents=True)
    assert [row["corpus_id"] for row in mine] == [row["corpus_id"] for row in theirs]
    assert [row["text"] for row in mine] == [row["text"] for row in theirs] and set(mine[0]) == set(theirs[0])
    np.testing.assert_allclose([row["score"] for row in mine], [row["score"] for row in theirs], atol=ATOL_SCORES)
