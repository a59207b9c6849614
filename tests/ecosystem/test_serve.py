"""`bertfuse serve` with the clients that people have, and docs/serving.md: its commands and programs are run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil
import pytest

import bertfuse
from tests.checkpoints import texts
from tests.commands import command, started_as_by_a_terminal
from tests.servers import Server, eventually, free_port, served

SENTENCES = ["A man is eating a piece of bread.", "Someone is having a meal.", "Snow fell on the mountains."]
ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
COMMANDS = [line[4:] for line in DOCUMENT.splitlines() if line.startswith("    ")]
Folders = Callable[[str], Path]


def request(url: str, body: Any = None, data: bytes | None = None) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of the answer."""
    sent = data if data is not None else None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, sent, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            status, headers, found = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        status, headers, found = error.code, error.headers, error.read()
    with_json = found and headers.get("content-type", "").startswith("application/json")
    return status, dict(headers), json.loads(found) if with_json else found.decode()


@pytest.fixture(scope="module")
def home(folders: Folders) -> Path:
    for name in ("reranker", "classifier"):
        folders(name)
    return folders("minilm").parent


@contextlib.contextmanager
def of_document(name: str, home: Path, *options: object) -> Iterator[Server]:
    """The server that docs/serving.md starts for that model, with further options, at another port."""
    (line,) = (line for line in COMMANDS if line.startswith(f"bertfuse serve {name} "))
    with served(*shlex.split(line)[2:], *options, folder=home) as started:
        yield started


def curl(address: str, server: Server) -> list[Any]:
    """What the document's curl commands to `address` answer."""
    lines = [line for line in COMMANDS if line.startswith(f"curl http://{address}")]
    assert lines
    lines = [line.replace(f"http://{address}", server.url) for line in lines]
    found = [subprocess.run(["sh", "-c", f"{line} -fsS"], capture_output=True, text=True, check=True) for line in lines]
    return [json.loads(ran.stdout) if ran.stdout.startswith(("[", "{")) else ran.stdout for ran in found]


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with of_document(
        "minilm", home, "--max-texts", 64, "--max-body", 20000, "--replicas", 2, "--http-processes", 2
    ) as started:
        yield started


@pytest.fixture(scope="module")
def encoder(folders: Folders) -> bertfuse.Encoder:
    return bertfuse.Encoder(folders("minilm"))


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_vectors_are_the_encoders(encoding: str | None, client: openai.OpenAI, encoder: bertfuse.Encoder) -> None:
    options = {} if encoding is None else {"encoding_format": encoding}
    made = client.embeddings.create(model="minilm", input=SENTENCES, **options)
    rows = [row.embedding for row in made.data]
    if encoding == "base64":
        import base64

        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    np.testing.assert_allclose(np.array(rows), encoder.encode(SENTENCES), atol=1e-6)
    assert [row.index for row in made.data] == [0, 1, 2] and made.model == "minilm"
    tokens = sum(len(encoder.tokenizer.encode(text).ids) for text in SENTENCES)
    assert made.usage.prompt_tokens == made.usage.total_tokens == tokens


def test_every_kind_of_input(client: openai.OpenAI, encoder: bertfuse.Encoder) -> None:
    want = encoder.encode(SENTENCES)
    ids = [encoder.tokenizer.encode(text, add_special_tokens=index > 0).ids for index, text in enumerate(SENTENCES)]
    for given in (SENTENCES[0], ids[0], ids):
        made = client.embeddings.create(model="minilm", input=given)
        np.testing.assert_allclose([row.embedding for row in made.data], want[: len(made.data)], atol=1e-6)
    short = client.embeddings.create(model="minilm", input=SENTENCES, dimensions=7).data
    np.testing.assert_allclose(
        [row.embedding for row in short], want[:, :7] / np.linalg.norm(want[:, :7], axis=1, keepdims=True), atol=1e-6
    )


def test_many_at_once(client: openai.OpenAI, encoder: bertfuse.Encoder) -> None:
    """Answers come to whom they belong, and requests are answered together."""
    sentences = [f"Sentence {index} of {'very ' * (index % 7)}many." for index in range(60)]
    want = encoder.encode(sentences)

    def ask(start: int) -> list[Any]:
        given = sentences[start : start + 1 + start % 3]
        rows = client.embeddings.create(model="minilm", input=given).data
        return [(start + index, row.embedding) for index, row in enumerate(rows)]

    with ThreadPoolExecutor(16) as pool:
        rows = [row for found in pool.map(ask, range(57)) for row in found]
    for index, row in rows:
        np.testing.assert_allclose(row, want[index], atol=1e-5)


def test_bad_requests(client: openai.OpenAI, server: Server) -> None:
    """A 4xx with one sentence each."""
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"input": ""}, 400, "input[0] is an empty string."),
        ({"input": []}, 400, "input is empty: give at least one text."),
        ({"input": ["a", 3]}, 400, "input[1] is a number, not a string."),
        ({"input": "a", "dimensions": 385}, 400, "dimensions is 385: give a whole number from 1 to 384."),
        ({"input": "a", "encoding_format": "hex"}, 400, 'encoding_format is "hex": choose float or base64.'),
        ({"input": ["a"] * 65}, 413, "input has 65 texts: 64 are taken at most."),
        (
            {"input": "a " * 500},
            413,
            "input[0] has 502 tokens, and the model takes 256: shorten it, or truncate.",
        ),
        ({"input": [10**9]}, 400, "input[0] has the token id 1000000000: the model's vocabulary has 30522."),
        ({"input": "a " * 20000}, 413, "The body is larger than 20000 bytes."),
    ]
    for body, status, sentence in cases:
        with pytest.raises(openai.APIStatusError) as raised:
            client.embeddings.create(model="minilm", **body)
        assert (raised.value.status_code, raised.value.body["message"]) == (status, sentence)
    status, _, found = request(f"{server.url}/v1/embeddings", data=b"{")
    assert status == 400 and found["error"]["message"].startswith("The body is not JSON")
    status, _, found = request(f"{server.url}/rerank", {"query": "a", "texts": ["b"]})
    assert status == 404 and found["error"] == "minilm does not answer /rerank: it answers /v1/embeddings."


def test_truncation_on_request(server: Server, encoder: bertfuse.Encoder) -> None:
    text = "word " * 400
    status, _, found = request(f"{server.url}/v1/embeddings", {"input": text, "truncate": True})
    assert status == 200 and found["usage"]["prompt_tokens"] == 256
    np.testing.assert_allclose(found["data"][0]["embedding"], encoder.encode(text), atol=1e-6)


def test_health_info_metrics(server: Server, client: openai.OpenAI) -> None:
    assert request(f"{server.url}/health")[0] == 200
    info = request(f"{server.url}/info")[2]
    assert info["model_id"] == "minilm" and info["max_input_length"] == 256 and "embedding" in info["model_type"]
    assert [model.id for model in client.models.list()] == ["minilm"]

    def answered() -> float:
        lines = request(f"{server.url}/metrics")[2].splitlines()
        name = 'bertfuse_requests_total{endpoint="/v1/embeddings",status="200"} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = answered()
    client.embeddings.create(model="minilm", input=SENTENCES)
    assert eventually(lambda: answered() >= before + 1)  # a front counts behind its answer


def test_reranker(home: Path, folders: Folders) -> None:
    """As text-embeddings-inference answers; the document's server cuts long texts, a request may ask for that not."""
    reranker = bertfuse.Reranker(folders("reranker"))
    query, documents = "see a house", [*texts(12, seed=21, longest=15), "walk " * 60]
    with of_document("reranker", home) as server:
        (shown,) = curl("127.0.0.1:8001", server)
        assert [row["text"] for row in shown] == [
            row["text"] for row in reranker.rank("who eats?", ["anna eats", "peter walks"], return_documents=True)
        ]
        for raw in (False, True):
            body = {"query": query, "texts": documents, "raw_scores": raw}
            status, _, found = request(f"{server.url}/rerank", body)
            options = {"activation_fn": lambda logits: logits} if raw else {}
            want = reranker.rank(query, documents, **options)
            assert status == 200 and [set(row) for row in found] == [{"index", "score"}] * 13
            np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in want], atol=1e-5)
            assert sorted(row["index"] for row in found) == list(range(13))
        body = {"query": query, "texts": documents, "truncate": False}
        status, _, found = request(f"{server.url}/rerank", body)
        assert status == 413 and found["error_type"] == "Validation"
        assert found["error"] == "texts[12] has 66 tokens, and the model takes 40: shorten it, or truncate."
        status, _, found = request(f"{server.url}/v1/embeddings", {"input": "a"})
        assert status == 404 and found["error"]["type"] == "not_found_error"


def test_classifier(home: Path, folders: Folders) -> None:
    classifier = bertfuse.Classifier(folders("classifier"))
    given = texts(8, seed=22)
    with of_document("classifier", home) as server:
        alone, raw = curl("127.0.0.1:8002", server)
        assert [row["label"] for row in alone] == [row["label"] for row in classifier("anna walks", top_k=None)]
        assert len(raw) == 2 and len(raw[0]) == 3
        for path in ("classify", "predict"):
            status, _, found = request(f"{server.url}/{path}", {"inputs": [[text] for text in given]})
            assert status == 200
            for row, want in zip(found, classifier(given, top_k=None), strict=True):
                assert [entry["label"] for entry in row] == [entry["label"] for entry in want]
                np.testing.assert_allclose([e["score"] for e in row], [e["score"] for e in want], atol=1e-5)
        status, _, found = request(f"{server.url}/classify", {"inputs": []})
        assert (status, found["error_type"]) == (400, "Empty")
        assert "classifier" in request(f"{server.url}/info")[2]["model_type"]


def test_on_a_cluster_that_is_there_already(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application comes and goes; the cluster stays. Both know a token, as Ray wants it."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # of the cluster, where nobody else sets it
    code = (
        "import ray, sys\n"
        "found = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)\n"
        "print(found.address_info['gcs_address'], flush=True)\n"
        "sys.stdin.readline()\n"
        "print(ray.get(ray.remote(lambda: 6).remote()))"
    )
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **options) as cluster:
        assert cluster.stdin and cluster.stdout
        with served(folders("reranker"), "--ray", cluster.stdout.readline().strip()) as server:
            status, _, found = request(f"{server.url}/rerank", {"query": "a", "texts": ["the house", "berlin"]})
            assert status == 200 and len(found) == 2
            assert server.stop() == 0, "".join(server.said)
        assert cluster.communicate("\n")[0].splitlines()[-1] == "6"


def test_interrupted_on_ray(folders: Folders) -> None:
    """Ctrl-C, of the whole group as terminals do it: a line, and nothing that Ray started is left.

    The server answers a moment before it takes the signal over. Until then it is interrupted, from then on it stops.
    """
    port = free_port()
    process = started_as_by_a_terminal(command("serve", folders("reranker"), "--ray", "local", "--port", port))
    try:
        asked = {"query": "a", "texts": ["the house"]}
        assert eventually(lambda: process.poll() is not None or _answers(f"http://127.0.0.1:{port}/rerank", asked), 300)
        started = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
        os.killpg(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode in (0, 130) and said == "", errors
    stopping = "Stopping: new requests are refused, those in work are answered"
    last = "bertfuse: interrupted" if process.returncode else stopping
    assert errors.strip().splitlines()[-1] == last and "Traceback" not in errors, errors
    assert len(started) > 2 and eventually(lambda: not any(map(psutil.pid_exists, started)), 30)


def _answers(url: str, body: Any) -> bool:
    with contextlib.suppress(OSError):
        return request(url, body)[0] == 200
    return False


def test_the_documents_program(server: Server, encoder: bertfuse.Encoder) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:8000", server.url), names)
    np.testing.assert_allclose(names["vectors"], encoder.encode(SENTENCES[:2]), atol=1e-6)
    curl("127.0.0.1:8000", server)


def test_a_killed_engine_loses_nothing(server: Server) -> None:
    """The load test of the document, for two seconds: every request is answered, and rightly."""
    (line,) = (line for line in COMMANDS if "load_test.py" in line)
    command = shlex.split(line.replace("http://127.0.0.1:8000", server.url))
    short = ["--clients", "8", "--seconds", "4", "--texts", "48", "--kill", str(server.process.pid), "--json"]
    ran = subprocess.run([sys.executable, *command[1:], *short], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (load,) = json.loads(ran.stdout)
    assert load["killed"] == 1 and load["requests"] >= 8 and load["lost"] == {} and load["wrong"] == 0


def test_mistakes_are_one_line(folders: Folders) -> None:
    port = free_port()
    import socket

    with socket.create_server(("127.0.0.1", port)):
        for arguments, message in (
            ((folders("minilm"), "--port", port), f"bertfuse: 127.0.0.1:{port} cannot be listened on"),
            ((folders("minilm"), "--ray", "127.0.0.1:1"), "bertfuse: --ray 127.0.0.1:1: nothing answers there"),
            ((folders("tagger"),), "is a model for token-classification, which is not served"),
        ):
            command = [sys.executable, "-m", "bertfuse.cli", "serve", *map(str, arguments)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1 and message in ran.stderr, ran.stderr
