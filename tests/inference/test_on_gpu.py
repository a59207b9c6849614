"""A checkpoint on a GPU: made ready in float16, several batches at once, and a corpus file."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertfuse
from bertfuse.inference.devices import gpu_count
from tests.checkpoints import save, texts
from tests.commands import said
from tests.corpora import write_rows, written
from tests.tiny_models import sentence_files

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_count(), reason="there is no GPU here")]


def test_vectors_and_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    source = save("encoder", tmp_path / "source")
    sentence_files(source, "Normalize")
    given = texts(3000, seed=71)
    want = bertfuse.Encoder(source, device="cpu").encode(given)
    encoder = bertfuse.Encoder(source)
    assert encoder.session.get_providers()[0] == "CUDAExecutionProvider" and encoder.runs > 1
    for size in (None, 300):
        found = encoder.encode(given, batch_size=size)
        assert (found * want).sum(axis=1).min() > 0.999
    path = write_rows(tmp_path / "c.txt", [{"text": text} for text in given])
    arguments = ("embed", path, "--model", source, "-o", tmp_path / "out", "--format", "npy", "--shard-rows", "700")
    said(*arguments, "--devices", "all")
    ids, columns = written(tmp_path / "out")
    assert ids == list(range(3000))
    assert (columns["embedding"] * want).sum(axis=1).min() > 0.999
