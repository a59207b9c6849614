"""What `bertfuse serve` finds out of a folder before it starts anything, and its one line for mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bertfuse.serving.checks import RequestError
from bertfuse.serving.look import look_at
from bertfuse.serving.tokens import Tokenised, Tokenizer
from tests.commands import invoke
from tests.corpora import model_folder


@pytest.fixture(scope="module")
def folders() -> Callable[[str], Path]:
    return model_folder


def test_kinds(folders: Callable[[str], Path]) -> None:
    found = {name: look_at(folders(name)).kind for name in ("encoder", "reranker", "classifier")}
    assert found == {"encoder": "embed", "reranker": "rerank", "classifier": "classify"}
    encoder = look_at(folders("encoder"), name="mine", max_length=20)
    assert (encoder.name, encoder.max_input_tokens, encoder.dimension) == ("mine", 20, 32)
    assert encoder.unit_length and encoder.dtype == "float32"
    assert look_at(folders("reranker"), kind="classify").kind == "classify"


def test_mistakes(folders: Callable[[str], Path], tmp_path: Path) -> None:
    encoder, no_key = folders("encoder"), tmp_path / "no.pem"
    no_key.write_text("no key")
    for arguments, message in (
        (("nowhere",), "nowhere: no such file or folder"),
        ((folders("tagger"),), "is a model for token-classification, which is not served"),
        ((encoder, "--task", "rerank"), "is a model for sentence-similarity with no labels; leave --task out"),
        ((encoder, "--task", "sing"), "--task sing: choose from auto, embed, rerank, classify"),
        ((encoder, "--max-length", "90"), "takes 40 tokens at most"),
        ((encoder, "--timeout", "nan"), "--timeout nan: give seconds"),
        ((encoder, "--max-replicas", "2"), "--max-replicas 2 goes with --ray"),
        ((encoder, encoder), "two models are named encoder"),
        ((encoder, "--port", "12345", "--grpc-port", "12345"), "--grpc-port 12345: is --port's number, too"),
        ((encoder, "--ray", "local", "--memory", "9"), "--memory: with --ray the cluster limits its processes"),
        ((encoder, "--warm", "a"), "--warm a: write numbers of tokens"),
        ((encoder, "--tls-key", "key.pem"), "--tls-certificate and --tls-key go together"),
        ((encoder, "--tls-key", no_key, "--tls-certificate", no_key), "are not a certificate and its key"),
        ((encoder, "--tls-key", no_key, "--tls-certificate", "nowhere.pem"), "nowhere.pem: no such file"),
    ):
        result = invoke("serve", *arguments, code=2)
        assert message in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


def test_tokens(folders: Callable[[str], Path]) -> None:
    """Those of the tokenizer, cut or refused; ids are taken only where they are a text's."""
    tokens = Tokenizer(look_at(folders("encoder")).path, 8)

    def made(*texts: str | tuple[str, str], truncate: bool = True) -> Tokenised:
        return asyncio.run(tokens(texts, truncate, "input"))

    found = made("anna walks", ("anna", "walks"))
    assert found.lengths.tolist() == [5, 6] and found.type_ids is not None
    assert found.type_ids.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1] and made("anna").type_ids is None
    many = [f"anna {'walks ' * (index % 9)}berlin" for index in range(300)]  # in threads, a slice each
    parts = [made(text) for text in many]
    together = made(*many)
    assert together.ids.tolist() == [i for part in parts for i in part.ids.tolist()]
    assert together.lengths.max() == 8
    with pytest.raises(RequestError, match=r"input\[2\] has 22 tokens, and the model takes 8"):
        made("anna", "peter", "anna " * 20, truncate=False)
    ids = tokens._whole.encode("anna walking to the river").ids
    for given in (ids, ids[1:-1]):
        if "[UNK]" not in tokens.decode(given, False):
            assert made(tokens.text(given, "input[0]")).total == min(len(ids), 8)
    for given in ([5, 3, 2], [999], [-1]):  # special tokens inside, and none of the vocabulary
        with pytest.raises(RequestError):
            tokens.text(given, "input[0]")
