"""`bertfuse serve` of late interaction and of a checkpoint of CLIP, over HTTP and gRPC, in its processes."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import bertfuse
from bertfuse.optimization import optimize
from tests import ROOT
from tests.checkpoints import texts
from tests.inference.test_multi_vector import late
from tests.servers import served
from tests.vision_models import pictures, save

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow


def ask(url: str, body: Any = None) -> Any:
    sent = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, sent), timeout=120) as answer:
        found = answer.read()
    return json.loads(found) if found[:1] in (b"{", b"[") else found.decode()


def test_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    assert optimize(late(tmp_path / "late-source"), tmp_path / "late", exporter="torchscript").passed
    clip = save("clip", tmp_path / "clip")
    given, images = texts(8, seed=2, longest=8), pictures(5, np.random.default_rng(3))
    files = [io.BytesIO() for _ in images]
    for file, image in zip(files, images, strict=True):
        image.save(file, "PNG")
    uris = [f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}" for file in files]
    with served(tmp_path / "late", f"pictures={clip}", "--memory", 8000, grpc=True) as server:
        encoder, towers = bertfuse.Encoder(tmp_path / "late", device="cpu"), bertfuse.Encoder(clip, device="cpu")
        rows = ask(f"{server.url}/embed_all", {"inputs": given, "prompt_name": "query", "truncate": True})
        for row, want in zip(rows, encoder.encode_query(given), strict=True):
            np.testing.assert_allclose(row, want, atol=1e-5)
        ranked = bertfuse.Reranker(tmp_path / "late", device="cpu").rank("see a house", given)
        found = ask(f"{server.url}/rerank", {"query": "see a house", "texts": given})
        np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in ranked], atol=1e-4)
        for body, want in (
            ({"input": uris, "modality": "image"}, towers.encode(images)),
            ({"input": ["w5 w6", "w7"]}, towers.encode(["w5 w6", "w7"])),
        ):
            found = ask(f"{server.url}/v1/embeddings", body | {"model": "pictures"})["data"]
            np.testing.assert_allclose([row["embedding"] for row in found], want, atol=1e-5)
        _of_the_document("8005", server.url)
        _of_the_document("8006", server.url)
        _over_grpc(server.grpc, encoder, given)
        models = {row["id"]: row["capabilities"] for row in ask(f"{server.url}/v1/models")["data"]}
        assert models == {"late": ["embed_all", "rerank"], "pictures": ["embed", "image_embed"]}
        sizes = dict(re.findall(r'bertfuse_resident_bytes{process="(\w+)"} (\S+)', ask(f"{server.url}/metrics")))
        assert {"supervisor", "engine", "front", "picture"} <= set(sizes)
        children = psutil.Process(server.process.pid).children(recursive=True)
        (reader,) = (child for child in children if "bertfuse.serving.picture_process" in child.cmdline())
        reader.kill()
        assert len(ask(f"{server.url}/v1/embeddings", {"input": uris, "modality": "image"})["data"]) == len(uris)
        assert any("Serving late, pictures at" in line for line in server.said)
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) >= 3
        server.process.kill()
        _, alive = psutil.wait_procs(children, 120)
        assert not alive


def _of_the_document(port: str, url: str) -> None:
    """What docs/serving.md shows is answered."""
    shown = [shlex.split(line) for line in PAGE.splitlines() if line.startswith(f"    curl http://127.0.0.1:{port}")]
    assert len(shown) > 1
    for _, address, _, body in shown:
        assert ask(address.replace(f"http://127.0.0.1:{port}", url), json.loads(body))


def _over_grpc(address: str, encoder: Any, given: list[str]) -> None:
    grpc = pytest.importorskip("grpc")
    from bertfuse.serving.rpc.messages import TEI

    with grpc.insecure_channel(address) as channel:

        def call(method: str, request: Any, answer: Any) -> Any:
            return answer.FromString(channel.unary_unary(f"/tei.v1.{method}")(request.SerializeToString(), timeout=120))

        for name in ("query", "document"):
            request = TEI.EmbedAllRequest(inputs=given[0], truncate=True, prompt_name=name)
            found = call("Embed/EmbedAll", request, TEI.EmbedAllResponse).token_embeddings
            want = getattr(encoder, f"encode_{name}")(given[0])
            np.testing.assert_allclose([list(row.embeddings) for row in found], want, atol=1e-5)
        request = TEI.RerankRequest(query="see a house", texts=given, truncate=True)
        found = call("Rerank/Rerank", request, TEI.RerankResponse).ranks
        pairs = list(zip(given, reversed(given), strict=True))  # of a stream each pair may have its own query
        requests = [TEI.RerankStreamRequest(query=a, text=b, truncate=True).SerializeToString() for a, b in pairs]
        answer = channel.stream_unary("/tei.v1.Rerank/RerankStream")(iter(requests), timeout=120)
        scores = encoder.similarity_pairwise(encoder.encode_query(given), encoder.encode_document(given[::-1]))
        ranks = {rank.index: rank.score for rank in TEI.RerankResponse.FromString(answer).ranks}
        np.testing.assert_allclose([ranks[at] for at in range(len(given))], scores, atol=1e-4)
        want = encoder.similarity(encoder.encode_query(["see a house"]), encoder.encode_document(given))[0]
        np.testing.assert_allclose([row.score for row in found], np.sort(want)[::-1], atol=1e-4)
