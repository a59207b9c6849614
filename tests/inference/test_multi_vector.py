"""Late interaction: a vector for each token, by transformers and the folder's modules; queries filled up; MaxSim.

That folders of sentence-transformers' MultiVectorEncoder give its vectors is tested in tests/ecosystem.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.inference.maxsim import maxsim
from bertfuse.optimization import optimize
from tests.checkpoints import save, texts, tokenizer
from tests.commands import invoke, said

CLOSE = {"atol": 5e-5, "rtol": 1e-4}
LENGTH = 12


@pytest.fixture
def seed() -> int:
    made = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {made}")
    return made


def late(folder: Path, *, attend: bool = False, strategy: str = "fixed", pylate: bool = False) -> Path:
    save("encoder", folder)
    (folder / "1_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 16, "bias": False}
    dense |= {"activation_function": "torch.nn.modules.linear.Identity"}
    rows = [{"path": "", "type": "x.Transformer"}, {"path": "1_Dense", "type": "pylate.models.Dense.Dense"}]
    prompts = {"query": "the ", "document": "a "}
    if pylate:  # as it saved them up to 3.x
        settings: dict[str, Any] = {"model_type": "ColBERT", "query_prefix": "the ", "document_prefix": "a "}
        settings |= {"query_length": LENGTH, "document_length": 20, "attend_to_expansion_tokens": attend}
        settings |= {"skiplist_words": [".", ","]}
    else:
        settings = {"model_type": "MultiVectorEncoder", "prompts": prompts}
        expansion = {"strategy": strategy, "attend": attend, "token": None, "length": LENGTH}
        lengths = {"query_expansion": expansion, "document_length": 20}
        (folder / "sentence_bert_config.json").write_text(json.dumps(lengths))
        tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
        dense |= tokens
        for path, config in (("2_Normalize", tokens), ("3_MultiVectorMask", {"skiplist_words": [".", ","]})):
            (folder / path).mkdir()
            (folder / path / "config.json").write_text(json.dumps(config))
            rows.append({"path": path, "type": f"x.{path[2:]}"})
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": torch.randn(16, 32)}, folder / "1_Dense" / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def wanted(folder: Path, given: list[str], query: bool, attend: bool, fixed: bool = True) -> list[np.ndarray]:
    """Of each text alone the vectors, as sentence-transformers defines them."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    weight = load_file(folder / "1_Dense" / "model.safetensors")["linear.weight"]
    words = tokenizer()
    words.enable_truncation((LENGTH if fixed else 40) if query else 20)
    made = []
    for text in given:
        ids = words.encode(("the " if query else "a ") + text).ids
        mask = [1] * len(ids)
        if query:
            mask += [int(attend)] * (LENGTH - len(ids))
            ids += [words.token_to_id("[MASK]")] * (LENGTH - len(ids))
        with torch.inference_mode():
            rows = model(input_ids=torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
        rows = torch.nn.functional.normalize(rows @ weight.T, dim=-1).numpy()
        skipped = () if query else (words.token_to_id("."), words.token_to_id(","))
        made.append(rows[[word not in skipped for word in ids]])
    return made


def check(found: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert [one.shape for one in found] == [one.shape for one in want]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(want), **CLOSE)


@pytest.mark.parametrize("pylate", [False, True])
@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
def test_vectors(padding: str, attend: bool, pylate: bool, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    source = late(tmp_path / "source", attend=attend, pylate=pylate)
    made = optimize(source, tmp_path / "out", bertfuse.FuseOptions(padding=padding), exporter="torchscript")
    assert made.passed, made.not_compared
    given = [*texts(15, seed=seed), "", "house " * 60, ". , ."]
    encoder = bertfuse.Encoder(tmp_path / "out")
    assert isinstance(encoder, bertfuse.MultiVectorEncoder)
    want = wanted(source, given, False, attend)
    documents = encoder.encode_document(given)
    check(documents, want)
    np.testing.assert_allclose(encoder.encode_document(given[0]), want[0], **CLOSE)
    if padding != "keep" and not attend:
        with pytest.raises(BertfuseError, match="vectors of tokens that no other sees"):
            encoder.encode_query(given)
        return
    queries = encoder.encode_query(given)
    check(queries, wanted(source, given, True, attend))
    scores = encoder.similarity(queries, documents)
    reranker = bertfuse.Reranker(tmp_path / "out")
    np.testing.assert_allclose(reranker.predict([(given[0], text) for text in given]), scores[0], rtol=1e-4, atol=1e-4)
    assert reranker.predict((given[0], given[1])) == pytest.approx(scores[0, 1], abs=1e-4)
    best = reranker.rank(given[0], given, top_k=3, return_documents=True)
    np.testing.assert_allclose([row["score"] for row in best], np.sort(scores[0])[::-1][:3], rtol=1e-4, atol=1e-4)
    assert isinstance(reranker, bertfuse.Reranker) and isinstance(reranker, bertfuse.MultiVectorEncoder)
    for name in ("device", "task", "max_seq_length", "dimension", "outputs", "max_batch_tokens", "on_gpu"):
        assert getattr(reranker, name) == getattr(encoder, name)
    reranker.activation_fn = np.negative
    np.testing.assert_allclose(reranker.predict([(given[0], text) for text in given]), -scores[0], rtol=1e-4, atol=1e-4)
    bits = encoder.encode_document(given, precision="ubinary")
    for packed, vectors in zip(bits, documents, strict=True):
        differ = np.unpackbits(packed, axis=1) != (vectors > 0)
        assert (np.abs(vectors[differ]) < 1e-4).all()  # what rounding may turn
    assert encoder.encode_document(given, precision="int8")[0].dtype == np.int8
    cut = encoder.encode_document(given, truncate_dim=5)
    check(cut, [vectors[:, :5] for vectors in want])


def test_queries_that_are_filled_up_at_least(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    source = late(tmp_path / "source", strategy="min")
    assert optimize(source, tmp_path / "out", exporter="torchscript").passed
    given = [*texts(10, seed=seed), "house " * 30]
    check(bertfuse.Encoder(tmp_path / "out").encode_query(given), wanted(source, given, True, False, fixed=False))


def test_a_checkpoint_that_nobody_optimized(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(seed)
    source = late(tmp_path / "source")
    given = texts(5, seed=seed)
    encoder = bertfuse.Encoder(source)
    check(encoder.encode_query(given), wanted(source, given, True, False))
    check(encoder.encode_document(given), wanted(source, given, False, False))


def test_maxsim(seed: int) -> None:
    random = np.random.default_rng(seed)
    queries, documents = (
        [random.standard_normal((n, 7)).astype(np.float32) for n in random.integers(0, 9, 6)] for _ in "ab"
    )
    for mean in (False, True):
        found = maxsim(queries, documents, mean)
        for row, query in enumerate(queries):
            for column, document in enumerate(documents):
                want = 0.0
                if len(query) and len(document):
                    best = (query.astype(np.float64) @ document.T).max(axis=1)
                    want = best.mean() if mean else best.sum()
                assert found[row, column] == pytest.approx(want, rel=1e-4, abs=1e-4)


def test_commands(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    said("optimize", late(tmp_path / "source"), "-o", tmp_path / "out", "--exporter", "torchscript")
    given = texts(7, seed=seed)
    (tmp_path / "texts.txt").write_text("\n".join(given))
    encoder = bertfuse.Encoder(tmp_path / "out")
    for options, want in (
        ((), encoder.encode_document(given)),
        (("--prompt-name", "query"), encoder.encode_query(given)),
    ):
        name = f"vectors{len(options)}"
        said("embed", tmp_path / "texts.txt", "-o", tmp_path / name, "--model", tmp_path / "out", *options)
        (file,) = (tmp_path / name).glob("*.parquet")
        check([np.array(row["embeddings"], np.float32) for row in parquet.read_table(file).to_pylist()], want)
    answers = said("run", tmp_path / "out", "--text", given[0], "--text-pair", given[1])["answers"]
    want = encoder.similarity(encoder.encode_query(given[:1]), encoder.encode_document(given[1:2]))
    assert answers[0]["score"] == pytest.approx(float(want[0, 0]), abs=1e-4)
    pairs = (
        "rerank",
        tmp_path / "texts.txt",
        "--query",
        "the house",
        "-o",
        tmp_path / "no",
        "--model",
        tmp_path / "out",
    )
    assert "Traceback" not in invoke(*pairs, code=2).stderr
