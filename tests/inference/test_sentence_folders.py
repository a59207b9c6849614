"""Encoder on whatever sentence-transformers saves: in the file and in NumPy, with prompts, routes and processes.

That the vectors are those of sentence-transformers itself is tested in tests/ecosystem.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.model_folder.sentence_modules import ACTIVATIONS, POOLINGS
from tests.checkpoints import texts
from tests.sentence_modules import dense, pooling, router_folder, sentence_folder, write_settings

GIVEN = [*texts(12, seed=21), "", "word " * 60]
# Numbers of not normalised vectors reach 10.
CLOSE = {"atol": 2e-5, "rtol": 1e-5}
LAYERS = ("WeightedLayerPooling", {"embedding_dimension": 32, "layer_start": 1, "num_hidden_layers": 2})
CHAINS = {
    "all": [pooling(*POOLINGS)],
    "tokens": [dense(32, 32, "ReLU", module_input_name="token_embeddings"), pooling("lasttoken")],
    "norms": [pooling("weightedmean"), ("Normalize", {}), ("LayerNorm", {"dimension": 32}), ("Normalize", {})],
    "dropout": [("Dropout", {"dropout": 0.5}), pooling("max", "cls"), dense(64, 7), dense(7, 7, use_residual=True)],
    **{name: [pooling("mean"), dense(32, 5, name, use_residual=True)] for name in ACTIVATIONS},
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_file_computes_what_numpy_does(name: str, tmp_path: Path) -> None:
    source = sentence_folder(tmp_path / "source", *CHAINS[name])
    export_model(source, tmp_path / "whole", exporter="torchscript")
    export_model(source, tmp_path / "encoder", task="feature-extraction", exporter="torchscript")
    whole, encoder = bertfuse.Encoder(tmp_path / "whole"), bertfuse.Encoder(tmp_path / "encoder")
    assert (whole.output, encoder.output) == ("sentence_embedding", "last_hidden_state")
    want = whole.encode(GIVEN)
    np.testing.assert_allclose(encoder.encode(GIVEN), want, **CLOSE)
    assert whole.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == want.shape[1]


def test_what_is_not_in_the_file_and_not_in_numpy_is_refused(tmp_path: Path) -> None:
    source = sentence_folder(tmp_path / "source", LAYERS, pooling("mean"))
    export_model(source, tmp_path / "out", task="feature-extraction", exporter="torchscript")
    with pytest.raises(BertfuseError, match="WeightedLayerPooling is not in its ONNX file"):
        bertfuse.Encoder(tmp_path / "out")
    export_model(source, tmp_path / "whole", exporter="torchscript")
    encoder = bertfuse.Encoder(tmp_path / "whole")
    rows = encoder.encode(GIVEN[:3], output_value="token_embeddings")
    np.testing.assert_allclose(encoder.encode(GIVEN[:3]), [row.mean(axis=0) for row in rows], **CLOSE)


@pytest.mark.parametrize("mode", POOLINGS)
def test_prompts_that_pooling_leaves_out(mode: str, tmp_path: Path) -> None:
    source = sentence_folder(tmp_path / "source", pooling(mode, include_prompt=False), prompts={"query": "the house: "})
    export_model(source, tmp_path / "out", exporter="torchscript")
    encoder = bertfuse.Encoder(tmp_path / "out")
    prompt = encoder.prompts["query"]
    skipped = len(encoder.tokenizer.encode(prompt)) - 1  # all but [SEP]
    rows = encoder.encode([prompt + text for text in GIVEN], prompt="", output_value="token_embeddings")
    found = encoder.encode(GIVEN, prompt_name="query")
    for row, vector in zip(rows, found, strict=True):
        r = row[skipped:]
        places = np.arange(skipped + 1, len(row) + 1)
        want = {
            "cls": r[0],
            "max": r.max(0),
            "mean": r.mean(0),
            "mean_sqrt_len_tokens": r.sum(0) / np.sqrt(len(r)),
            "weightedmean": places @ r / places.sum(),
            "lasttoken": r[-1],
        }[mode]
        np.testing.assert_allclose(vector, want, **CLOSE)
    np.testing.assert_allclose(encoder.encode_query(GIVEN[0]), found[0], **CLOSE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("saved")
    settings = {"prompts": {"query": "the "}, "truncate_dim": 9, "similarity_fn_name": "dot"}
    export_model(sentence_folder(base / "source", pooling("mean"), **settings), base / "out", exporter="torchscript")
    return base / "out"


def test_settings_are_applied(folder: Path) -> None:
    encoder = bertfuse.Encoder(folder)
    assert encoder.encode(GIVEN).shape == (len(GIVEN), 9) and encoder.get_embedding_dimension() == 9
    assert encoder.encode([]).shape == (0, 9) and encoder.encode(GIVEN, truncate_dim=40).shape == (len(GIVEN), 32)
    assert bertfuse.Encoder(folder, truncate_dim=3).encode("a").shape == (3,)
    assert encoder.similarity_fn_name == "dot"
    said = repr(encoder)
    assert said.startswith("Encoder(") and "dimension=9" in said and "prompts=['query']" in said and "'cpu'" in said


def test_all_there_is_of_a_text(folder: Path) -> None:
    encoder = bertfuse.Encoder(folder)
    rows = encoder.encode(GIVEN, output_value=None, prompt_name="query")
    want = encoder.encode(GIVEN, prompt_name="query")
    tokens = encoder.encode(GIVEN, output_value="token_embeddings", prompt_name="query")
    given = encoder.tokenize(["the " + text for text in GIVEN])
    for index, row in enumerate(rows):
        np.testing.assert_allclose(row["sentence_embedding"], want[index], **CLOSE)
        np.testing.assert_allclose(row["token_embeddings"], tokens[index], **CLOSE)
        length = len(row["input_ids"])
        assert list(row["attention_mask"]) == [1] * length
        assert list(given["input_ids"][index, :length]) == list(row["input_ids"])
        assert given["attention_mask"][index].sum() == length
    assert set(given) == {"input_ids", "attention_mask", "token_type_ids"}
    assert set(encoder.encode("a", output_value=None)) == set(rows[0])


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean", "manhattan"])
def test_pairs_are_the_diagonal(metric: str, folder: Path) -> None:
    a, b = np.random.default_rng(6).normal(size=(2, 5, 7)).astype(np.float32)
    encoder = bertfuse.Encoder(folder, similarity_fn_name=metric)
    want = np.diag(encoder.similarity(a, b))
    np.testing.assert_allclose(encoder.similarity_pairwise(a, b), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(BertfuseError, match="are no pairs"):
        encoder.similarity_pairwise(a, b[:2])


@pytest.mark.slow
def test_processes(folder: Path) -> None:
    encoder = bertfuse.Encoder(folder)
    want = encoder.encode(GIVEN, prompt_name="query")
    pool = encoder.start_multi_process_pool(["cpu", "cpu"])
    try:
        np.testing.assert_allclose(encoder.encode(GIVEN, prompt_name="query", pool=pool, chunk_size=3), want, **CLOSE)
        assert encoder.encode([], pool=pool).shape == (0, 9)
        with pytest.raises(BertfuseError, match="is a int, no string"):
            encoder.encode([1], pool=pool)
        with pytest.raises(BertfuseError, match="the pool is of"):
            bertfuse.Encoder(encoder.path).encode(GIVEN, pool=pool)
    finally:
        encoder.stop_multi_process_pool(pool)
    np.testing.assert_allclose(encoder.encode(GIVEN[:3], device=["cpu"]), encoder.encode(GIVEN[:3]), **CLOSE)
    with pytest.raises(BertfuseError, match=r"GPU|CUDA"):
        encoder.encode(GIVEN, device=["cpu", "cuda:99"])


@pytest.mark.parametrize("original", [False, True])
def test_static_embeddings(original: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    source = sentence_folder(tmp_path / "source", ("Normalize", {}), static=8)
    if not original:
        export_model(source, tmp_path / "out", exporter="torchscript")
    encoder = bertfuse.Encoder(source if original else tmp_path / "out")
    long = "the house " * 900
    vectors = encoder.encode([*GIVEN, long])
    from safetensors.numpy import load_file

    table = load_file(source / "model.safetensors")["embedding.weight"]
    for text, vector in zip([*GIVEN, long], vectors, strict=True):
        ids = encoder.tokenizer.encode(text, add_special_tokens=False).ids
        mean = table[ids].mean(axis=0) if ids else np.zeros(8, np.float32)
        np.testing.assert_allclose(vector, mean / max(np.linalg.norm(mean), 1e-12), atol=2e-6)
    assert (tmp_path / "out" / "model.safetensors").exists() != original  # sentence-transformers reads it


@pytest.mark.parametrize("optimized", [False, True])
def test_routes(
    optimized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    folder = source = router_folder(tmp_path / "source")
    if optimized:
        folder = tmp_path / "out"
        made = bertfuse.optimize(source, folder, exporter="torchscript")
        assert made.passed and list(made.routes) == ["query", "document"]
        assert (folder / "document_0_Transformer" / "model.safetensors").exists()
    encoder = bertfuse.Encoder(folder)
    for route in () if optimized else ("query", "document"):
        assert f"{folder}, route {route}: has no ONNX file; exporting and fusing it" in caplog.text
    query, document = bertfuse.Encoder(folder, route="query"), bertfuse.Encoder(folder, route="document")
    want = query.encode(GIVEN, prompt_name="query")
    assert np.abs(want - document.encode(GIVEN, prompt_name="query")).max() > 0.01
    np.testing.assert_array_equal(encoder.encode_query(GIVEN), want)
    np.testing.assert_array_equal(encoder.encode([{"query": f"the {text}"} for text in GIVEN]), want)
    np.testing.assert_array_equal(encoder.encode(GIVEN, task="query", prompt_name="query"), want)
    np.testing.assert_array_equal(encoder.encode(GIVEN), document.encode(GIVEN))
    np.testing.assert_array_equal(encoder.encode_document(GIVEN[0]), document.encode(GIVEN[0]))
    assert encoder.get_embedding_dimension() == 6 and "default_route='document'" in repr(encoder)
    with pytest.raises(BertfuseError, match="task 'title' has no route; name a task: query, document"):
        encoder.encode(GIVEN, task="title")
    with pytest.raises(BertfuseError, match="has no route 'title': query, document"):
        bertfuse.Encoder(folder, route="title")


def test_routes_without_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    source = router_folder(tmp_path / "source", default_route=None, allow_empty_key=False)
    with pytest.raises(BertfuseError, match="it has no default route; name a task"):
        bertfuse.Encoder(source).encode("a")
    mapped = {"('query', 'text')": "document", "('query', None)": "query"}
    source = router_folder(tmp_path / "mapped", route_mappings=mapped)
    encoder = bertfuse.Encoder(source)
    np.testing.assert_array_equal(encoder.encode("a", task="query"), encoder.encode("a", task="document"))


def test_a_tokenizer_of_another_model(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "out")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"more{index}": 500 + index for index in range(9)}
    (tmp_path / "out" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BertfuseError, match=r"its tokenizer has \d+ tokens, the model's embeddings \d+ rows"):
        bertfuse.Encoder(tmp_path / "out")


def test_a_checkpoint_gives_rows_of_tokens_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    encoder = bertfuse.Encoder(sentence_folder(tmp_path / "source", pooling("mean")))
    rows = encoder.encode(GIVEN, output_value="token_embeddings")
    np.testing.assert_allclose(encoder.encode(GIVEN), [row.mean(axis=0) for row in rows], **CLOSE)


def test_settings_that_are_wrong_are_refused_when_it_is_opened(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "out")
    write_settings(tmp_path / "out", truncate_dim=0)
    with pytest.raises(BertfuseError, match="truncate_dim is 0, not a whole number of 1 or more"):
        bertfuse.Encoder(tmp_path / "out")


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_a_corpus_in_few_bits(precision: str, folder: Path, tmp_path: Path) -> None:
    """The ranges are those of all vectors, whatever the shards; a second run goes by the first one's."""
    from bertfuse.inference.vectors import quantized, ranges_of
    from tests.commands import invoke, said

    given = texts(30, seed=8)
    (tmp_path / "texts.txt").write_text("\n".join(given))
    command = ["embed", tmp_path / "texts.txt", "-o", tmp_path / "out", "--model", folder, "--format", "npy"]
    assert said(*command, "--precision", precision, "--shard-rows", 7)["rows"] == 30
    found = np.concatenate([np.load(file) for file in sorted((tmp_path / "out").glob("part-*[0-9].npy"))])
    vectors = bertfuse.Encoder(folder).encode(given)
    want = quantized(vectors, precision, ranges_of(vectors))
    assert found.dtype == want.dtype and found.shape == want.shape
    assert (found != want).mean() < 0.02  # a number at the border of two steps may fall into either
    if not precision.endswith("int8"):
        return
    ranges = tmp_path / "out" / "ranges.npy"
    np.testing.assert_allclose(np.load(ranges), ranges_of(vectors), atol=2e-5)
    more = ["embed", "-", "-o", tmp_path / "more", "--model", folder, "--format", "npy", "--precision", precision]
    assert "standard input is read only once" in invoke(*more, code=2).stderr
    one = [*command[:3], tmp_path / "one", *command[4:], "--precision", precision, "--ranges", ranges]
    (tmp_path / "texts.txt").write_text(given[4])
    said(*one)
    assert (np.load(tmp_path / "one" / "part-000000.npy") != want[4]).mean() < 0.2


def test_routes_of_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.commands import invoke, said

    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    source = router_folder(tmp_path / "source")
    (tmp_path / "texts.txt").write_text("\n".join(GIVEN[:5]))
    command = ["embed", tmp_path / "texts.txt", "-o", tmp_path / "out", "--model", source, "--format", "npy"]
    assert "name the route (--route): query, document" in invoke(*command, code=2).stderr
    said(*command, "--route", "query", "--prompt-name", "query")
    want = bertfuse.Encoder(source).encode_query(GIVEN[:5])
    np.testing.assert_allclose(np.load(tmp_path / "out" / "part-000000.npy"), want, atol=2e-6)


def test_served_prompts_that_pooling_leaves_out(tmp_path: Path) -> None:
    """An engine's batches hold texts with prompts of one length only; its vectors are Encoder's."""
    from concurrent.futures import Future

    from bertfuse.inference.batches import Tokens
    from bertfuse.serving.engine import Engine
    from bertfuse.serving.served import ModelOptions
    from bertfuse.serving.tokens import Tokenizer
    from bertfuse.serving.work import Work

    prompts = {"query": "the house: ", "short": "a ", "none": ""}
    source = sentence_folder(tmp_path / "source", pooling("mean", include_prompt=False), prompts=prompts)
    export_model(source, tmp_path / "out", exporter="torchscript")
    encoder, engine = bertfuse.Encoder(tmp_path / "out"), Engine([ModelOptions(str(tmp_path / "out"))])
    try:
        tokenizer = Tokenizer(engine.served[0].path, engine.served[0].max_input_tokens)
        waiting = []
        for prompt in prompts.values():
            tokens = Tokens.of(encoder.tokenizer.encode_batch([prompt + text for text in GIVEN]), types=False)
            work = Work(0, "vectors", tokens.lengths, tokens.ids, None, tokenizer.left_out(prompt))
            answer: Future = Future()
            engine.submit(work, lambda job, found, answer=answer: answer.set_result(found))
            waiting.append(answer)
        for prompt, answer in zip(prompts.values(), waiting, strict=True):
            np.testing.assert_allclose(answer.result(60).rows, encoder.encode(GIVEN, prompt=prompt), **CLOSE)
    finally:
        engine.close()
