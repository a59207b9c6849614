"""What `bertfuse serve` finds out of a folder before it starts anything, and its one line for mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import save
from commands import invoke
from tiny_models import sentence_files

from bertfuse.export import export_model
from bertfuse.serving.requests import RequestError
from bertfuse.serving.served import look_at
from bertfuse.serving.tokens import Tokens


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    base = tmp_path_factory.mktemp("served")

    def folder(name: str) -> Path:
        if not (base / name).exists():
            source = save(name, base / f"{name}-source")
            if name == "encoder":
                sentence_files(source, "Normalize")
            export_model(source, base / name, exporter="torchscript")
        return base / name

    return folder


def test_kinds(folders: Callable[[str], Path]) -> None:
    found = {name: look_at(folders(name)).kind for name in ("encoder", "reranker", "classifier")}
    assert found == {"encoder": "embed", "reranker": "rerank", "classifier": "classify"}
    encoder = look_at(folders("encoder"), name="mine", max_length=20)
    assert (encoder.name, encoder.max_input_tokens, encoder.dimension) == ("mine", 20, 32)
    assert encoder.unit_length and encoder.dtype == "float32"
    assert look_at(folders("reranker"), kind="classify").kind == "classify"


def test_mistakes(folders: Callable[[str], Path]) -> None:
    encoder = folders("encoder")
    for arguments, message in (
        (("nowhere",), "nowhere: no such file or folder"),
        ((folders("tagger"),), "is a model for token-classification, which is not served"),
        ((encoder, "--task", "rerank"), "is a model for sentence-similarity with no labels; leave --task out"),
        ((encoder, "--task", "sing"), "--task sing: choose from auto, embed, rerank, classify"),
        ((encoder, "--max-length", "90"), "takes 40 tokens at most"),
        ((encoder, "--timeout", "nan"), "--timeout nan: give seconds"),
        ((encoder, "--replicas", "3", "--max-replicas", "2"), "--max-replicas 2 is less than --replicas 3"),
    ):
        result = invoke("serve", *arguments, code=2)
        assert message in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


def test_ids_are_taken_only_where_they_are_a_texts(folders: Callable[[str], Path]) -> None:
    tokens = Tokens(look_at(folders("encoder")).path)
    assert tokens.count(["anna walks", ("anna", "walks")]) == [5, 6]
    ids = tokens._tokenizer.encode("anna walking to the river").ids
    for given in (ids, ids[1:-1]):
        if "[UNK]" not in tokens._tokenizer.decode(given, skip_special_tokens=False):
            assert tokens.count([tokens.text(given, "input[0]")]) == [len(ids)]
    for given in ([5, 3, 2], [999], [-1]):  # special tokens inside, and none of the vocabulary
        with pytest.raises(RequestError):
            tokens.text(given, "input[0]")
