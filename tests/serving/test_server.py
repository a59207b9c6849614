"""`bertfuse serve` end to end: every route, several models, keys, bad bodies, and processes killed under load."""

from __future__ import annotations

import base64
import http.client
import json
import random
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import bertfuse
from tests.checkpoints import texts
from tests.corpora import model_folder
from tests.servers import Server, eventually, free_port, served

pytestmark = pytest.mark.slow
LOAD_TEST = Path(__file__).with_name("load_test.py")
KEY = "a-secret"


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    return {name: model_folder(name) for name in ("encoder", "reranker", "classifier", "masks")}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    models = [folders["encoder"], f"rank={folders['reranker']}", folders["classifier"]]
    options = ["--api-key", KEY, "--cors-origin", "https://a.example", "--http-processes", "2"]
    with served(models[0], *models[1:], *options, "--log-level", "info", "--log-format", "json") as started:
        yield started


def ask(
    server: Server, path: str, body: Any = None, key: str | None = KEY, **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON (or text) of the answer; `body` is JSON, or bytes that are sent as they are."""
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    given = headers | ({"Authorization": f"Bearer {key}"} if key else {})
    connection.request("GET" if sent is None else "POST", path, sent, given)
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    is_json = found and answer.headers.get("content-type", "").startswith("application/json")
    return answer.status, dict(answer.headers), json.loads(found) if is_json else found.decode()


def test_vectors(server: Server, folders: dict[str, Path]) -> None:
    """Those of Encoder, to the bit where the batch is the same."""
    given = texts(70, seed=3)
    want = bertfuse.Encoder(folders["encoder"], device="cpu").encode(given)
    for size in (1, 70):
        body = {"input": given[:size], "encoding_format": "base64", "model": "encoder"}
        status, _, found = ask(server, "/v1/embeddings", body)
        assert status == 200
        rows = np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in found["data"]])
        if size == 70:
            np.testing.assert_array_equal(rows, want)
        np.testing.assert_allclose(rows, want[:size], atol=1e-6)
        plain = ask(server, "/embed", {"inputs": given[:size]})[2]
        np.testing.assert_array_equal(np.array(plain, np.float32), rows)
    short = np.array(ask(server, "/embed", {"inputs": given[:3], "dimensions": 5})[2])
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)


def test_vectors_in_company(server: Server, folders: dict[str, Path]) -> None:
    """Of a text computed with others of other requests: those of the text alone, but for last bits."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")
    source, given = random.Random(seed), texts(60, seed=7)
    encoder = bertfuse.Encoder(folders["encoder"], device="cpu")
    want = np.concatenate([encoder.encode([text]) for text in given])
    # Of the largest number in a vector: MiniLM's differ by three, between a batch of one and of sixty.
    bits = 4 * np.spacing(np.abs(want).max(axis=1, keepdims=True))

    def differ(rows: list[int]) -> bool:
        body = {"input": [given[row] for row in rows], "encoding_format": "base64"}
        found = ask(server, "/v1/embeddings", body)[2]["data"]
        vectors = np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in found])
        return bool((np.abs(vectors - want[rows]) > bits[rows]).any())

    asked = [source.sample(range(60), source.choice((1, 1, 3, 30))) for _ in range(60)]
    with ThreadPoolExecutor(12) as pool:
        assert not any(pool.map(differ, asked))


def test_routes_of_text_embeddings_inference(server: Server, folders: dict[str, Path]) -> None:
    encoder = bertfuse.Encoder(folders["encoder"], device="cpu")
    given = texts(5, seed=4)
    body = {"inputs": {"source_sentence": given[0], "sentences": given[1:]}}
    cosines = encoder.similarity(encoder.encode(given[:1]), encoder.encode(given[1:]))[0]
    np.testing.assert_allclose(ask(server, "/similarity", body)[2], cosines, atol=1e-5)
    status, _, rows = ask(server, "/embed_all", {"inputs": given})
    want = encoder.encode(given, output_value="token_embeddings")
    assert status == 200 and [len(row) for row in rows] == [len(row) for row in want]
    for row, wanted in zip(rows, want, strict=True):
        np.testing.assert_allclose(np.array(row), wanted, atol=1e-4)
    (tokens,) = ask(server, "/tokenize", {"inputs": "anna walks"})[2]
    assert [token["text"] for token in tokens] == ["[CLS]", "anna", "walk", "s", "[SEP]"]
    assert ask(server, "/decode", {"ids": [token["id"] for token in tokens]})[2] == ["anna walks"]


def test_rerankers_and_classifiers(server: Server, folders: dict[str, Path]) -> None:
    reranker = bertfuse.Reranker(folders["reranker"], device="cpu")
    documents = texts(9, seed=5, longest=12)
    want = reranker.rank("see a house", documents)
    status, _, found = ask(server, "/rerank", {"query": "see a house", "texts": documents, "return_text": True})
    assert status == 200 and [row["text"] for row in found] == [documents[row["corpus_id"]] for row in want]
    np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in want], atol=1e-5)
    for path in ("/v1/rerank", "/rerank"):
        found = ask(server, path, {"query": "see a house", "documents": documents, "top_n": 3, "model": "rank"})[2]
        assert [row["index"] for row in found["results"]] == [row["corpus_id"] for row in want[:3]]
    classifier = bertfuse.Classifier(folders["classifier"], device="cpu")
    found = ask(server, "/predict", {"inputs": [[text] for text in documents]})[2]
    for row, wanted in zip(found, classifier(documents, top_k=None), strict=True):
        assert [entry["label"] for entry in row] == [entry["label"] for entry in wanted]


def test_models_keys_and_headers(server: Server) -> None:
    assert [model["id"] for model in ask(server, "/v1/models")[2]["data"]] == ["encoder", "rank", "classifier"]
    status, _, found = ask(server, "/v1/embeddings", {"input": "a", "model": "nobody"})
    assert status == 404 and "There is no model 'nobody': encoder, rank, classifier" in found["error"]["message"]
    assert ask(server, "/v1/embeddings", {"input": "a", "model": "rank"})[0] == 404
    status, _, found = ask(server, "/v1/nothing", {})
    assert status == 404 and found["error"]["message"].startswith("There is no route /v1/nothing")
    status, headers, found = ask(server, "/embed")
    assert (status, headers["allow"], found["error_type"]) == (405, "POST", "Validation")
    for key in (None, "wrong"):
        assert ask(server, "/v1/embeddings", {"input": "a"}, key)[0] == ask(server, "/info", None, key)[0] == 401
    for path in ("/health", "/docs", "/openapi.json", "/metrics"):
        assert ask(server, path, None, None)[0] == 200
    page = ask(server, "/docs")[2]
    assert "/v1/rerank" in page and "/embed_sparse" not in page and not re.search(r"(src|href)=.?(https?:)?//", page)
    headers = ask(server, "/embed", {"inputs": "anna"}, **{"X-Request-Id": "mine-1", "Origin": "https://a.example"})[1]
    assert headers["x-request-id"] == "mine-1" and headers["access-control-allow-origin"] == "https://a.example"

    def is_logged() -> bool:
        lines = [json.loads(line) for line in list(server.said) if line.startswith("{")]
        return any(line.get("request") == "mine-1" and line["tokens"] == 3 for line in lines)

    assert eventually(is_logged)
    counts = ask(server, "/metrics")[2]
    assert 'te_request_count_total{method="embed"}' in counts
    sizes = dict(re.findall(r'bertfuse_resident_bytes{process="(\w+)"} (\S+)', counts))
    assert set(sizes) == {"supervisor", "engine", "front"} and all(float(size) > 1e7 for size in sizes.values())


def test_bad_bodies_are_refused_in_one_sentence(server: Server) -> None:
    for body, status in (
        (b"{", 400),
        (b'{"input": NaN}', 400),
        (b'{"input": "\xff"}', 400),
        (b'{"input":' + b"[" * 100_000, 400),
        (json.dumps({"input": "a" * 9_000_000}).encode(), 413),
        (json.dumps({"input": ["a"] * 2049}).encode(), 413),
    ):
        found = ask(server, "/v1/embeddings", body)
        assert found[0] == status and found[2]["error"]["message"].endswith("."), found
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=120) as connection:  # a head without an end
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection(address, timeout=120) as connection:  # as large as it says, and not sent
        head = f"POST /embed HTTP/1.1\r\nauthorization: Bearer {KEY}\r\ncontent-length: 100000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_clients_that_mean_no_good(folders: dict[str, Path]) -> None:
    """Others are answered, with more connections left open than the server takes, and its memory stays."""
    with served(folders["encoder"], "--max-connections", 64) as server:
        command = [sys.executable, LOAD_TEST.with_name("hostile.py"), server.url, server.process.pid, "--quick"]
        command += ["--connections", 256, "--growth", 50]
        ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        body = {"inputs": ["anna walks to the river " * 30] * 2048, "truncate": True}
        status, _, found = ask(server, "/embed_all", body, None)
        assert status == 413 and "vectors of 65536 are given at most" in found["error"]


@pytest.mark.parametrize("kind", ["engine", "front"])
def test_a_killed_process_loses_nothing(kind: str, folders: dict[str, Path]) -> None:
    with served(folders["encoder"], "--http-processes", "2") as server:
        command = [
            sys.executable,
            LOAD_TEST,
            server.url,
            "--clients",
            "8",
            "--seconds",
            "4",
            "--texts",
            "48",
            "--words",
            "6",
        ]
        command += ["--kill", server.process.pid, "--process", kind, "--json"]
        ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        (load,) = json.loads(ran.stdout)
        assert load["killed"] == 1 and load["requests"] >= 8 and load["lost"] == {} and load["wrong"] == 0
        if kind == "engine":
            assert load["retried"] == {}, "an engine's death is not seen from outside"
        line = f"the {kind} process was ended by signal 9"
        assert eventually(lambda: any(line in said for said in list(server.said)))


def test_nothing_outlives_a_killed_server(folders: dict[str, Path]) -> None:
    with served(folders["encoder"]) as server:
        children = psutil.Process(server.process.pid).children()
        assert len(children) == 2
        server.process.kill()
        _, alive = psutil.wait_procs(children, 120)
        assert not alive


def test_a_full_queue_is_429_and_a_stop_answers_what_is_in_work(folders: dict[str, Path]) -> None:
    options = ("--max-queued", 1, "--max-batch-tokens", 32, "--threads", 1)
    with served(folders["encoder"], *options) as server:
        long = {"input": ["anna walks to the river " * 5] * 2000}
        found: list[tuple[int, dict[str, str], Any]] = []
        threads = [threading.Thread(target=lambda: found.append(ask(server, "/v1/embeddings", long))) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: any(entry[0] == 429 for entry in list(found)))
        refused = [entry for entry in found if entry[0] == 429]
        assert refused and refused[0][1]["retry-after"] == "1"
        assert server.stop() == 0
        for thread in threads:
            thread.join()
        assert {status for status, _, _ in found} == {200, 429}
    assert [line for line in server.said if not line.startswith(("Serving", "Stopping"))] == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_https(folders: dict[str, Path], tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key]
    command += ["-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(list(map(str, command)), capture_output=True, check=True)
    with served(folders["encoder"], "--tls-certificate", certificate, "--tls-key", key, grpc=True) as server:
        trusting = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection(server.url.removeprefix("http://"), timeout=120, context=trusting)
        connection.request("POST", "/embed", json.dumps({"inputs": "anna"}))
        assert connection.getresponse().status == 200
        connection.close()
        grpc = pytest.importorskip("grpc")
        trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(server.grpc, trusted) as channel:
            info = channel.unary_unary("/tei.v1.Info/Info")(b"")
        assert b"encoder" in info


def test_memory(folders: dict[str, Path]) -> None:
    """Each model's share is told; an engine that takes more than it may does not start, in one line."""
    models = [folders["encoder"], f"rank={folders['reranker']}"]
    with served(*models, "--memory", 8000, "--warm", "8,64") as server:
        told = ask(server, "/info", key=None)[2]["models"]
        assert [model["model_id"] for model in told] == ["encoder", "rank"]
        assert all(0 <= model["resident_bytes"] < 8000 << 20 for model in told) and told[0]["resident_bytes"]
        assert ask(server, "/rerank", {"query": "a", "texts": ["b"]}, None)[0] == 200
    command = [sys.executable, "-m", "bertfuse.cli", "serve", *models, "--memory", 9, "--port", free_port()]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1, ran.stderr
    assert re.match(r"bertfuse: --memory 9: an engine takes \d+ MiB \(encoder \d+, rank \d+\); serve fewer", ran.stderr)


def test_word_weights(folders: dict[str, Path]) -> None:
    with served(folders["masks"], "--task", "sparse") as server:
        rows = ask(server, "/embed_sparse", {"inputs": texts(3, seed=6)})[2]
        assert len(rows) == 3 and all(entry["value"] > 0 for row in rows for entry in row)
