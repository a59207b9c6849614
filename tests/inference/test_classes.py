"""Encoder, Reranker, Classifier and Tagger: order, batches, dtypes, shapes, and what they refuse.

That they compute what sentence-transformers and pipelines compute is tested in tests/ecosystem.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.graph_rewrite import fuse_file
from tests.checkpoints import save, texts
from tests.tiny_models import sentence_files


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    base = tmp_path_factory.mktemp("inference")

    def folder(name: str) -> Path:
        if not (base / name).exists():
            source = save(name, base / f"{name}-source")
            if name == "encoder":
                sentence_files(source, "Normalize")
                prompts = {"prompts": {"query": "the ", "document": ""}}
                (source / "config_sentence_transformers.json").write_text(json.dumps(prompts))
            export_model(source, base / name, exporter="torchscript")
        return base / name

    return folder


def test_vectors_come_in_order_whatever_the_batches(folders: Callable[[str], Path]) -> None:
    given = [*texts(70, seed=11), ""]
    one_by_one = np.stack([bertfuse.Encoder(folders("encoder")).encode(text) for text in given])
    assert one_by_one.dtype == np.float32 and one_by_one.shape == (71, 32)
    several = {"runs": 4, "threads": 2, "max_batch_tokens": 30}
    for options, arguments in (
        ({}, {}),
        ({"max_batch_tokens": 7}, {}),
        ({}, {"batch_size": 3}),
        ({"runs": 1}, {}),
        (several, {}),
    ):
        found = bertfuse.Encoder(folders("encoder"), **options).encode(given, **arguments)
        np.testing.assert_allclose(found, one_by_one, atol=2e-6)
    rows = bertfuse.Encoder(folders("encoder")).encode(given[:2], convert_to_numpy=False)
    assert isinstance(rows, list) and rows[0].shape == (32,)
    assert bertfuse.Encoder(folders("encoder")).encode([]).shape == (0, 32)


def test_windows_do_not_mix_rows(folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = bertfuse.Encoder(folders("encoder"))
    given = texts(50, seed=12)
    want = encoder.encode(given)
    monkeypatch.setattr("bertfuse.inference.windows.WINDOW_TEXTS", 7)
    np.testing.assert_allclose(encoder.encode(given, show_progress_bar=True), want, atol=2e-6)


def test_prompts(folders: Callable[[str], Path]) -> None:
    encoder = bertfuse.Encoder(folders("encoder"))
    np.testing.assert_array_equal(encoder.encode_query("house"), encoder.encode("the house"))
    np.testing.assert_array_equal(encoder.encode_document(["house"]), encoder.encode(["house"]))
    np.testing.assert_array_equal(encoder.encode("house", prompt="a "), encoder.encode("a house"))
    with pytest.raises(BertfuseError, match="no prompt is named 'title': query, document"):
        encoder.encode("house", prompt_name="title")


def test_without_its_pooling_in_the_file_the_folder_tells_it(folders: Callable[[str], Path], tmp_path: Path) -> None:
    source = folders("encoder").with_name("encoder-source")
    export_model(source, tmp_path, task="feature-extraction", exporter="torchscript")
    given = texts(9, seed=13)
    want = bertfuse.Encoder(folders("encoder")).encode(given)
    np.testing.assert_allclose(bertfuse.Encoder(tmp_path).encode(given), want, atol=2e-6)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("library", ["never", "always"])
def test_fused_in_any_dtype(dtype: str, library: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    source = folders("encoder")
    for file in source.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    fuse_file(source / "onnx" / "model.onnx", tmp_path / "model.fused.onnx", dtype=dtype)
    given = texts(9, seed=14)
    found = bertfuse.Encoder(tmp_path, library=library).encode(given)
    assert found.dtype == np.float32
    cosines = (found * bertfuse.Encoder(source).encode(given)).sum(axis=1)
    assert cosines.min() > (0.999 if dtype == "fp16" else 1 - 1e-6), cosines


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_fused_without_padding(padding: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    from tests.commands import said

    said("fuse", folders("encoder"), "-o", tmp_path / "out", "--padding", padding)
    given = [*texts(20, seed=17), ""]
    want = bertfuse.Encoder(folders("encoder")).encode(given)
    np.testing.assert_allclose(bertfuse.Encoder(tmp_path / "out").encode(given), want, atol=2e-6)
    answers = said("run", tmp_path / "out", "--text", given[0])["answers"]
    np.testing.assert_allclose(answers[0]["embedding"], want[0], atol=2e-6)


def test_fixed_shapes(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """A model of one shape only is fed batches of that shape, cut and filled up."""
    export_model(folders("encoder").with_name("encoder-source"), tmp_path, exporter="torchscript", static_shape=(4, 9))
    given = texts(11, seed=15)
    want = bertfuse.Encoder(folders("encoder"), max_seq_length=9).encode(given)
    np.testing.assert_allclose(bertfuse.Encoder(tmp_path).encode(given), want, atol=2e-6)


def test_scores_come_in_order(folders: Callable[[str], Path]) -> None:
    reranker = bertfuse.Reranker(folders("reranker"))
    documents = texts(20, seed=16)
    scores = reranker.predict([("see a house", document) for document in documents])
    assert scores.shape == (20,) and (scores >= 0).all() and (scores <= 1).all()
    ranked = reranker.rank("see a house", documents, top_k=5)
    assert [row["corpus_id"] for row in ranked] == list(np.argsort(-scores)[:5]) and "text" not in ranked[0]
    logits = reranker.predict([("a", "b")], activation_fn=lambda logits: logits)
    np.testing.assert_allclose(reranker.predict(("a", "b")), 1 / (1 + np.exp(-logits[0])), rtol=1e-5)


def test_what_does_not_do(folders: Callable[[str], Path]) -> None:
    with pytest.raises(BertfuseError, match=r"has no output logits, which a classifier needs"):
        bertfuse.Classifier(folders("encoder"))
    with pytest.raises(BertfuseError, match=r"was exported for token-classification, not for text-classification"):
        bertfuse.Classifier(folders("tagger"))
    encoder = bertfuse.Encoder(folders("encoder"))
    with pytest.raises(BertfuseError, match="text 1 is a NoneType, no string"):
        encoder.encode(["a", None])
    with pytest.raises(BertfuseError, match=r"text 1 is not valid Unicode: it holds half of a surrogate pair"):
        encoder.encode(["a", "b\ud800"])
    for options, reason in (
        ({"precision": "int4"}, "precision 'int4' is unknown"),
        ({"output_value": "logits"}, "output_value 'logits': give 'sentence_embedding', 'token_embeddings' or None"),
        ({"device": "cuda"}, "device 'cuda': this Encoder is on cpu"),
    ):
        with pytest.raises(BertfuseError, match=reason):
            encoder.encode(["a"], **options)
    with pytest.raises(BertfuseError, match="a text is a string or"):
        bertfuse.Classifier(folders("classifier"))([{"txt": "a"}])
    with pytest.raises(BertfuseError, match="truncation=False: texts are always cut"):
        bertfuse.Classifier(folders("classifier"))(["a"], truncation=False)
    with pytest.raises(BertfuseError, match="aggregation_strategy 'best' is unknown"):
        bertfuse.Tagger(folders("tagger"))("a", aggregation_strategy="best")
    with pytest.raises(BertfuseError, match="documents is a single string"):
        bertfuse.Reranker(folders("reranker")).rank("a", "b")
    with pytest.raises(BertfuseError, match="text 0 is a tuple with something else than strings in it"):
        bertfuse.Reranker(folders("reranker")).rank("a", [None])
    with pytest.raises(BertfuseError, match="batch_size 0: give 1 or more"):
        encoder.encode(["a"], batch_size=0)
    with pytest.raises(BertfuseError, match="pair 0 is not a pair of texts"):
        bertfuse.Reranker(folders("reranker")).predict(["a", ("a", "b")])


def test_an_argument_that_nobody_knows_is_refused(folders: Callable[[str], Path]) -> None:
    """onnxruntime takes any keyword, so that a slip of the finger would go unseen."""
    for kind, name in ((bertfuse.Encoder, "encoder"), (bertfuse.Reranker, "reranker"), (bertfuse.Tagger, "tagger")):
        with pytest.raises(BertfuseError, match=rf"{kind.__name__} has no argument max_len, trust_remote_code"):
            kind(folders(name), max_len=9, trust_remote_code=True)
    scores = [bertfuse.Reranker(folders("reranker"), max_length=n).predict(("the house", "a river")) for n in (5, 40)]
    assert scores[0] != scores[1]
    logit = bertfuse.Reranker(folders("reranker"), activation_fn=lambda logits: logits).predict(("a", "b"))
    np.testing.assert_allclose(bertfuse.Reranker(folders("reranker")).predict(("a", "b")), 1 / (1 + np.exp(-logit)))


def test_lengths_may_be_set_up_to_the_model_s(folders: Callable[[str], Path]) -> None:
    encoder = bertfuse.Encoder(folders("encoder"))
    long, short = "the house walks to the river", "the house"
    assert np.abs(encoder.encode(long) - encoder.encode(short)).max() > 0.01
    encoder.max_seq_length = 4  # two words and [CLS], [SEP]
    np.testing.assert_allclose(encoder.encode(long), encoder.encode(short), atol=2e-6)
    for length in (2, 51):  # no room for a token; no position for the last one
        with pytest.raises(BertfuseError, match=rf"max_seq_length {length}: this model takes 3 to 50 tokens"):
            encoder.max_seq_length = length
        with pytest.raises(BertfuseError, match=rf"max_seq_length {length}"):
            bertfuse.Encoder(folders("encoder"), max_seq_length=length)
    assert encoder.max_seq_length == 4


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities(metric: str, folders: Callable[[str], Path]) -> None:
    a, b = (np.random.default_rng(5).normal(size=(rows, 7)).astype(np.float32) for rows in (3, 4))
    want = {
        "cosine": lambda x, y: x @ y / np.linalg.norm(x) / np.linalg.norm(y),
        "dot": np.dot,
        "euclidean": lambda x, y: -np.linalg.norm(x - y),
        "manhattan": lambda x, y: -np.abs(x - y).sum(),
    }[metric]
    found = bertfuse.Encoder(folders("encoder"), similarity_fn_name=metric).similarity(a, b)
    np.testing.assert_allclose(found, [[want(x, y) for y in b] for x in a], rtol=1e-5)
    with pytest.raises(BertfuseError, match="similarity 'nearest' is unknown: choose from cosine"):
        bertfuse.Encoder(folders("encoder"), similarity_fn_name="nearest")


def test_neither_torch_nor_transformers_is_needed(folders: Callable[[str], Path]) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import bertfuse\n"
        f"print(bertfuse.Encoder({str(folders('encoder'))!r}).encode(['a house']).shape)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout == "(1, 32)\n", ran.stderr
