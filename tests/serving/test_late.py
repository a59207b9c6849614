"""Late interaction behind the routes: Encoder's vectors of tokens, Reranker's scores, one sentence for what is not."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertfuse
from bertfuse.optimization import optimize
from bertfuse.serving import answers
from bertfuse.serving.look import look_at
from bertfuse.serving.served import ModelOptions
from bertfuse.serving.triton.repository import Options, write_repository
from tests import made_once
from tests.checkpoints import texts
from tests.corpora import model_folder
from tests.inference.test_multi_vector import late
from tests.serving.in_process import Here, here

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def folders() -> Callable[[str], Path]:
    def folder(name: str) -> Path:
        def make(target: Path) -> None:
            source = late(target.with_name(f"{target.name}-source"), attend=name == "pylate", pylate=name == "pylate")
            padding = "ragged" if name == "packed" else "keep"
            assert optimize(source, target, bertfuse.FuseOptions(padding=padding), exporter="torchscript").passed

        return made_once(f"late/{name}", make)

    return folder


@pytest.fixture(scope="module", params=["late", "pylate"])
def server(request: Any, folders: Callable[[str], Path]) -> Iterator[tuple[Here, bertfuse.MultiVectorEncoder]]:
    folder = folders(request.param)
    with here(folder, model_folder("encoder"), model_folder("reranker")) as made:
        yield made, bertfuse.MultiVectorEncoder(folder, device="cpu")


@pytest.fixture(scope="module")
def alone(folders: Callable[[str], Path]) -> Iterator[Here]:
    with here(folders("late")) as made:
        yield made


GIVEN = [*texts(20, seed=8, longest=12), "house . river , .", ". ,", "the"]


def close(found: Any, want: list[np.ndarray]) -> None:
    assert [len(rows) for rows in found] == [len(rows) for rows in want]
    for rows, wanted in zip(found, want, strict=True):
        np.testing.assert_allclose(np.array(rows, np.float32).reshape(wanted.shape), wanted, **CLOSE)


def test_vectors(server: tuple[Here, bertfuse.MultiVectorEncoder]) -> None:
    ask, encoder = server
    queries, documents = encoder.encode_query(GIVEN), encoder.encode_document(GIVEN)
    assert len(documents[-2]) < len(encoder.encode(GIVEN[-2], prompt="a ", task="query")), "some words have no vector"
    for asked, want in (
        ({}, documents),
        ({"prompt_name": "document"}, documents),
        ({"prompt_name": "query", "truncate": True}, queries),
        ({"input_type": "query", "truncate": True}, queries),
    ):
        status, found = ask("/embed_all", {"inputs": GIVEN, "model": ask.front.models[0].served.name} | asked)
        assert status == 200, found
        close(found, want)
        status, found = ask("/v1/multi-vector", {"input": GIVEN} | asked)
        assert status == 200 and [row["index"] for row in found["data"]] == list(range(len(GIVEN)))
        close([row["embeddings"] for row in found["data"]], want)
    body = {"input": [{"text": text} for text in GIVEN], "embedding_type": "base64", "dimensions": 5}
    found = ask("/v1/multi-vector", body)[1]
    rows = [[np.frombuffer(base64.b64decode(vector), "<f4") for vector in row["embeddings"]] for row in found["data"]]
    close(rows, encoder.encode_document(GIVEN, truncate_dim=5, normalize_embeddings=True))
    tokens = sum(len(encoder.reader("document").tokenizer.encode(encoder.prompts["document"] + t)) for t in GIVEN)
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_scores(server: tuple[Here, bertfuse.MultiVectorEncoder], monkeypatch: pytest.MonkeyPatch) -> None:
    ask, encoder = server
    name = ask.front.models[0].served.name
    want = bertfuse.Reranker(encoder.folder, device="cpu").rank("see a house", GIVEN)
    for scored in (answers.SCORED, 30, 1):
        monkeypatch.setattr(answers, "SCORED", scored)
        body = {"query": "see a house", "texts": GIVEN, "return_text": True, "model": name}
        status, found = ask("/rerank", body)
        assert status == 200, found
        np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in want], **CLOSE)
        assert all(row["text"] == GIVEN[row["index"]] for row in found)
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        found = ask(path, {"query": "see a house", "documents": GIVEN, "top_n": 3, "model": name})[1]["results"]
        scores = [row["relevance_score"] for row in found]
        np.testing.assert_allclose(scores, [row["score"] for row in want[:3]], **CLOSE)


def test_in_company(server: tuple[Here, bertfuse.MultiVectorEncoder]) -> None:
    """Queries and documents of several requests, computed together: each has its own vectors."""
    ask, encoder = server
    want = {"query": encoder.encode_query(GIVEN), "document": encoder.encode_document(GIVEN)}
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source = random.Random(seed)
    asked = [(source.choice(tuple(want)), source.sample(range(len(GIVEN)), source.randint(1, 5))) for _ in range(60)]

    async def several() -> list[Any]:
        bodies = [{"inputs": [GIVEN[row] for row in rows], "input_type": task} for task, rows in asked]
        return await asyncio.gather(*(ask.ask("/embed_all", body | {"truncate": True}) for body in bodies))

    for (task, rows), (status, found) in zip(asked, ask.loop.run_until_complete(several()), strict=True):
        assert status == 200
        close(found, [want[task][row] for row in rows])


def test_what_it_is(server: tuple[Here, bertfuse.MultiVectorEncoder]) -> None:
    ask, _ = server
    name = ask.front.models[0].served.name
    models = {row["id"]: row["capabilities"] for row in ask("/v1/models")[1]["data"]}
    assert models == {name: ["embed_all", "rerank"], "encoder": ["embed"], "reranker": ["rerank"]}
    info = ask("/info")[1]
    assert (info["model_type"], info["capabilities"]) == ({"embedding": {}}, ["embed_all", "rerank"])
    assert info["max_input_length"] == 20
    assert {"/embed_all", "/v1/multi-vector", "/rerank"} <= set(ask("/openapi.json")[1]["paths"])
    (tokens,) = ask("/tokenize", {"inputs": "anna walks " * 30})[1]
    assert len(tokens) == 92 and ask("/decode", {"ids": [t["id"] for t in tokens[:4]]})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/v1/embeddings", {"input": "a"}, 404, "late does not answer /v1/embeddings: it answers /embed_all"),
        ("/v1/embeddings", {"input": "a", "modality": "image"}, 404, "late does not answer /v1/embeddings"),
        ("/embed", {"inputs": "a"}, 404, "does not answer /embed"),
        ("/v1/multi-vector", {"input": "a", "input_type": "passage"}, 400, "neither query nor document"),
        ("/v1/multi-vector", {"input": "a", "input_type": []}, 400, "neither query nor document"),
        ("/v1/multi-vector", {"input": [{"image": "a"}]}, 400, "input[0] is null, not a string"),
        ("/v1/multi-vector", {"input": "a", "embedding_type": "binary"}, 400, "choose float or base64"),
        ("/v1/multi-vector", {"input": "a", "dimensions": 17}, 400, "a whole number from 1 to 16"),
        ("/v1/multi-vector", {"input": "a", "prompt_name": "song"}, 400, "no prompt 'song'"),
        ("/embed_all", {"inputs": "house " * 30}, 413, "inputs[0] has 33 tokens, and the model takes 20"),
        ("/embed_all", {"inputs": "house " * 20, "prompt_name": "query"}, 413, "and the model takes 12"),
        ("/rerank", {"query": "house " * 20, "texts": ["a"]}, 413, "query[0] has 23 tokens"),
        ("/rerank", {"query": "a", "texts": []}, 400, "texts is empty"),
    ],
)
def test_refused(path: str, body: Any, status: int, sentence: str, alone: Here) -> None:
    got, found = alone(path, body)
    message = found["error"]["message"] if path.startswith("/v1") else found["error"]
    assert got == status and sentence in message and message.endswith("."), found


def test_a_model_without_padding_takes_no_such_queries(folders: Callable[[str], Path]) -> None:
    folder = folders("packed")
    with here(folder) as ask:
        close(ask("/embed_all", {"inputs": GIVEN})[1], bertfuse.Encoder(folder, device="cpu").encode_document(GIVEN))
        for path, body in (
            ("/embed_all", {"inputs": "a", "prompt_name": "query"}),
            ("/rerank", {"query": "a", "texts": ["b"]}),
        ):
            status, found = ask(path, body)
            assert status == 404 and "optimize it with --padding keep" in found["error"]


def test_lengths(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """--max-length is a document's."""
    options = ModelOptions(str(folders("late")), max_length=10)
    with here(options) as ask:
        status, found = ask("/embed_all", {"inputs": "house " * 30})
        assert status == 413 and "has 33 tokens, and the model takes 10" in found["error"]
        (rows,) = ask("/embed_all", {"inputs": "house " * 30, "truncate": True})[1]
        assert len(rows) == 10
        (rows,) = ask("/embed_all", {"inputs": "house " * 30, "truncate": True, "prompt_name": "query"})[1]
        assert len(rows) == 12
    served = look_at(folders("late"), max_length=10)
    assert (served.kind, served.max_input_tokens, served.dimension, served.takes_queries) == ("late", 10, 16, True)
    with pytest.raises(bertfuse.BertfuseError, match="takes 20 tokens of a document at most"):
        look_at(folders("late"), max_length=30)
    with pytest.raises(bertfuse.BertfuseError, match="Triton gets vectors, scores and labels of texts alone"):
        write_repository(served, tmp_path, options=Options())
    with pytest.raises(bertfuse.BertfuseError, match=r"--task embed: .* leave --task out"):
        look_at(folders("late"), kind="embed")
