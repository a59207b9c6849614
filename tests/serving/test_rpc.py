"""gRPC as text-embeddings-inference's clients speak it: stubs that protoc makes of the .proto, against a server."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertfuse
from tests.checkpoints import texts
from tests.corpora import model_folder
from tests.servers import Server, eventually, served

grpc = pytest.importorskip("grpc")
protoc = pytest.importorskip("grpc_tools.protoc")

pytestmark = pytest.mark.slow
SOURCE = Path(bertfuse.__file__).parent / "serving" / "rpc"
KEY = (("authorization", "Bearer a-secret"),)


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The modules of messages and of stubs."""
    folder = tmp_path_factory.mktemp("stubs")
    options = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", f"-I{SOURCE}", *options, str(SOURCE / "tei.proto")]) == 0
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("tei_pb2"), importlib.import_module("tei_pb2_grpc")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    return {name: model_folder(name) for name in ("encoder", "reranker", "classifier", "masks")}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    models = [folders["encoder"], f"rank={folders['reranker']}", folders["classifier"]]
    with served(models[0], *models[1:], "--api-key", "a-secret", "--http-processes", 2, grpc=True) as started:
        yield started


@pytest.fixture
def channel(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as made:
        yield made


def refused(call: Callable[[], object]) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code(), raised.value.details()


def test_compiled_definition_is_that_of_the_source(tmp_path: Path) -> None:
    """Make it anew: python -m grpc_tools.protoc -I. --descriptor_set_out=tei.binpb tei.proto"""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    made = tmp_path / "tei.binpb"
    assert protoc.main(["protoc", f"-I{SOURCE}", f"--descriptor_set_out={made}", str(SOURCE / "tei.proto")]) == 0
    there = FileDescriptorSet.FromString((SOURCE / "tei.binpb").read_bytes())
    assert there == FileDescriptorSet.FromString(made.read_bytes())


def test_embed(stubs: tuple[Any, Any], channel: Any, folders: dict[str, Path]) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    tei, made = stubs
    embed, given = made.EmbedStub(channel), texts(80, seed=seed)
    encoder = bertfuse.Encoder(folders["encoder"], device="cpu")
    want = encoder.encode(given)
    answer = embed.Embed(tei.EmbedRequest(inputs=given[0], truncate=True), metadata=KEY)
    np.testing.assert_allclose(answer.embeddings, want[0], atol=1e-6)
    assert answer.metadata.compute_chars == len(given[0])
    assert answer.metadata.compute_tokens == len(encoder.tokenizer.encode(given[0]).ids)
    assert answer.metadata.total_time_ns >= answer.metadata.inference_time_ns > 0
    short = embed.Embed(
        tei.EmbedRequest(inputs=given[0], truncate=True, dimensions=5, normalize=False), metadata=KEY
    ).embeddings
    np.testing.assert_allclose(short, want[0, :5] / np.linalg.norm(want[0, :5]), atol=1e-6)
    stream = embed.EmbedStream((tei.EmbedRequest(inputs=text, truncate=True) for text in given), metadata=KEY)
    np.testing.assert_allclose([found.embeddings for found in stream], want, atol=1e-6)
    rows = encoder.encode(given[:3], output_value="token_embeddings")
    stream = embed.EmbedAllStream((tei.EmbedAllRequest(inputs=text, truncate=True) for text in given[:3]), metadata=KEY)
    for found, row in zip(stream, rows, strict=True):
        np.testing.assert_allclose([token.embeddings for token in found.token_embeddings], row, atol=1e-4)


def test_scores_and_labels(stubs: tuple[Any, Any], channel: Any, folders: dict[str, Path]) -> None:
    tei, made = stubs
    given, query = texts(9, seed=5, longest=12), "see a house"
    want = bertfuse.Reranker(folders["reranker"], device="cpu").rank(query, given)
    rerank = made.RerankStub(channel)
    whole = rerank.Rerank(tei.RerankRequest(query=query, texts=given, return_text=True), metadata=KEY)
    parts = (tei.RerankStreamRequest(query=query, text=text) for text in given)
    streamed = rerank.RerankStream(parts, metadata=KEY)
    for found in (whole, streamed):
        assert [rank.index for rank in found.ranks] == [row["corpus_id"] for row in want]
        np.testing.assert_allclose([rank.score for rank in found.ranks], [row["score"] for row in want], atol=1e-5)
    assert [rank.text for rank in whole.ranks] == [given[row["corpus_id"]] for row in want]
    assert not any(rank.HasField("text") for rank in streamed.ranks)
    classifier, predict = bertfuse.Classifier(folders["classifier"], device="cpu"), made.PredictStub(channel)
    stream = predict.PredictStream((tei.PredictRequest(inputs=text) for text in given), metadata=KEY)
    for found, row in zip(stream, classifier(given, top_k=None), strict=True):
        assert [entry.label for entry in found.predictions] == [entry["label"] for entry in row]
        np.testing.assert_allclose([e.score for e in found.predictions], [e["score"] for e in row], atol=1e-5)
    pair = predict.PredictPair(tei.PredictPairRequest(inputs=given[:2], raw_scores=True), metadata=KEY)
    (streamed,) = predict.PredictPairStream(
        iter([tei.PredictPairRequest(inputs=given[:2], raw_scores=True)]), metadata=KEY
    )
    assert pair.predictions == streamed.predictions and len(pair.predictions) == 3


def test_tokens_and_what_is_served(stubs: tuple[Any, Any], channel: Any) -> None:
    tei, made = stubs
    tokenize = made.TokenizeStub(channel)
    found = tokenize.Tokenize(tei.EncodeRequest(inputs="anna walks", add_special_tokens=True), metadata=KEY).tokens
    assert [token.text for token in found] == ["[CLS]", "anna", "walk", "s", "[SEP]"]
    assert [(token.start, token.stop) for token in found if not token.special] == [(0, 4), (5, 9), (9, 10)]
    assert not found[0].HasField("start")
    ids = [token.id for token in found]
    assert tokenize.Decode(tei.DecodeRequest(ids=ids, skip_special_tokens=True), metadata=KEY).text == "anna walks"
    stream = tokenize.DecodeStream((tei.DecodeRequest(ids=ids[1:2]) for _ in range(3)), metadata=KEY)
    assert [answer.text for answer in stream] == ["anna"] * 3
    stream = tokenize.TokenizeStream((tei.EncodeRequest(inputs="anna") for _ in range(3)), metadata=KEY)
    assert [[token.text for token in answer.tokens] for answer in stream] == [["anna"]] * 3
    info = made.InfoStub(channel)
    first = info.Info(tei.InfoRequest(), metadata=KEY)
    assert (first.model_id, first.model_type, first.model_dtype) == ("encoder", tei.MODEL_TYPE_EMBEDDING, "float32")
    other = info.Info(tei.InfoRequest(), metadata=(*KEY, ("model", "rank")))
    assert (other.model_id, other.model_type) == ("rank", tei.MODEL_TYPE_RERANKER)


def test_word_weights(stubs: tuple[Any, Any], folders: dict[str, Path]) -> None:
    tei, made = stubs
    with (
        served(folders["masks"], "--task", "sparse", grpc=True) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        embed = made.EmbedStub(channel)
        one = embed.EmbedSparse(tei.EmbedSparseRequest(inputs="anna walks"))
        (other,) = embed.EmbedSparseStream(iter([tei.EmbedSparseRequest(inputs="anna walks")]))
        assert one.sparse_embeddings == other.sparse_embeddings
        assert one.sparse_embeddings and all(entry.value > 0 for entry in one.sparse_embeddings)


def test_refusals(stubs: tuple[Any, Any], channel: Any) -> None:
    tei, made = stubs
    embed, rerank = made.EmbedStub(channel), made.RerankStub(channel)
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    left = tei.TRUNCATION_DIRECTION_LEFT
    for request, metadata, code, message in (
        (tei.EmbedRequest(inputs="a"), (), grpc.StatusCode.UNAUTHENTICATED, "The API key is missing or wrong"),
        (tei.EmbedRequest(inputs=""), KEY, invalid, "inputs[0] is an empty string."),
        (tei.EmbedRequest(inputs="a", dimensions=99), KEY, invalid, "dimensions is 99: give a whole number from 1 to"),
        (tei.EmbedRequest(inputs="a", prompt_name="p"), KEY, invalid, "The model has no prompt 'p'"),
        (tei.EmbedRequest(inputs="anna " * 99), KEY, invalid, "inputs[0] has 101 tokens, and the model takes 40"),
        (tei.EmbedRequest(inputs="a", truncation_direction=left), KEY, invalid, "texts are cut on the right only"),
        (tei.EmbedRequest(inputs="a" * 9_000_000), KEY, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    ):
        found, told = refused(lambda r=request, m=metadata: embed.Embed(r, metadata=m))
        assert found == code and message in told, told
    asked = tei.EmbedRequest(inputs="a")
    found, told = refused(lambda: embed.Embed(asked, metadata=(*KEY, ("model", "nobody"))))
    assert found == invalid and "There is no model 'nobody': encoder, rank, classifier" in told
    found, told = refused(lambda: embed.EmbedSparse(tei.EmbedSparseRequest(inputs="a"), metadata=KEY))
    assert found == invalid and "encoder does not answer" in told
    # A stream ends with the request that is refused; those before it are answered.
    answers = embed.EmbedStream(iter([asked, asked, tei.EmbedRequest(inputs=""), asked]), metadata=KEY)
    assert len(next(answers).embeddings) == len(next(answers).embeddings) == 32
    assert refused(lambda: next(answers)) == (invalid, "inputs[0] is an empty string.")
    many = (tei.RerankStreamRequest(query="a", text="b") for _ in range(3000))
    assert (
        refused(lambda: rerank.RerankStream(many, metadata=KEY))[1] == "texts has 2049 texts: 2048 are taken at most."
    )
    assert refused(lambda: rerank.RerankStream(iter([]), metadata=KEY))[0] == invalid


def test_clients_that_go_away_and_the_end(stubs: tuple[Any, Any], folders: dict[str, Path]) -> None:
    """Cancelled requests leave nothing in work; a killed front comes again on the same port; a stop is whole."""
    import psutil

    tei, made = stubs
    with (
        served(folders["encoder"], "--max-batch-tokens", 32, grpc=True) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        embed = made.EmbedStub(channel)
        asked = tei.EmbedRequest(inputs="anna walks to the river " * 5, truncate=True)
        for _ in range(20):
            stream = embed.EmbedStream(asked for _ in range(1000))
            next(stream)
            stream.cancel()
        embed.Embed(asked, wait_for_ready=True, timeout=120)
        front = [p for p in psutil.Process(server.process.pid).children() if "front_process" in " ".join(p.cmdline())]
        front[0].kill()
        front[0].wait(120)

        def answers() -> bool:
            try:
                return bool(embed.Embed(asked, wait_for_ready=True, timeout=30).embeddings)
            except grpc.RpcError:
                return False

        assert eventually(answers)
        assert server.stop() == 0
        assert not any("Traceback" in line or "Error" in line for line in server.said), "".join(server.said)
