"""SentenceTransformer and CrossEncoder on optimized folders, and bertfuse's own classes, against PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, models

import bertfuse
from tests.checkpoints import texts

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


@pytest.mark.parametrize("padding", ["keep", "ragged"])
def test_arguments_of_encode(padding: str, sources: Folders, folders: Folders, tmp_path: Path) -> None:
    """Unusual but legal texts, and every argument that both have."""
    from tests.commands import said

    folder = folders("minilm")
    if padding != "keep":
        said("fuse", folder, "-o", tmp_path / "out", "--padding", padding)
        folder = tmp_path / "out"
    reference, encoder = SentenceTransformer(str(sources("minilm")), device="cpu"), bertfuse.Encoder(folder)
    given = ["", " ", "\t\n", "🙂" * 700, "日本語 テキスト", "a\x00b\x07\u200b", "word " * 5000, "same", "same", "İ ﬁ"]
    want = reference.encode(given)
    for same in (np.array(given), tuple(given), (text for text in given)):
        np.testing.assert_allclose(encoder.encode(same), want, atol=ATOL)
    positional = encoder.encode(given, None, None, 8, False, "sentence_embedding", "float32", True, False, None, True)
    np.testing.assert_allclose(positional, want, atol=ATOL)
    tensor = encoder.encode(given, convert_to_tensor=True, device="cpu")
    assert isinstance(tensor, torch.Tensor) and encoder.encode("a", convert_to_tensor=True).shape == (384,)
    np.testing.assert_allclose(tensor, want, atol=ATOL)
    np.testing.assert_allclose(encoder.similarity(tensor, want[:3]), reference.similarity(want, want[:3]), atol=1e-5)
    rows = encoder.encode(given, output_value="token_embeddings")
    for ours, theirs in zip(rows, reference.encode(given, output_value="token_embeddings"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for precision in ("int8", "uint8", "binary", "ubinary"):
        ours, theirs = encoder.encode(given, precision=precision), reference.encode(given, precision=precision)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        # A number at the border of two steps may fall into either.
        assert (ours != theirs).mean() < 0.02
        assert encoder.encode("a", precision=precision).shape == reference.encode("a", precision=precision).shape
    encoder.max_seq_length = reference.max_seq_length = 5
    np.testing.assert_allclose(encoder.encode(given), reference.encode(given), atol=ATOL)
    short = bertfuse.Encoder(folder, truncate_dim=9, prompts={"query": "find: "}, max_seq_length=30)
    theirs = SentenceTransformer(str(sources("minilm")), device="cpu", truncate_dim=9, prompts={"query": "find: "})
    theirs.max_seq_length = 30
    np.testing.assert_allclose(short.encode_query(given), theirs.encode_query(given), atol=ATOL)
    assert short.get_sentence_embedding_dimension() == theirs.get_sentence_embedding_dimension() == 9


@pytest.mark.parametrize(
    ("pooling", "normalize"), [("cls", False), ("max", True), ("mean", True), ("mean_sqrt_len_tokens", False)]
)
def test_other_poolings_prompts_and_lengths(pooling: str, normalize: bool, sources: Folders, tmp_path: Path) -> None:
    from tests.commands import said

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
    for arguments in (
        {"activation_fn": torch.nn.Identity()},
        {"activation_fn": torch.nn.Softmax(dim=-1)},
        {"activation_fn": torch.tanh},
        {"batch_size": 2, "show_progress_bar": False},
        {"convert_to_tensor": True},
    ):
        np.testing.assert_allclose(
            ours.predict((pair for pair in pairs), **arguments), reference.predict(pairs, **arguments), atol=ATOL_SCORES
        )
    assert isinstance(ours.predict(pairs, convert_to_tensor=True), torch.Tensor)
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
