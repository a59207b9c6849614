"""Weights of words: those of transformers' logits, however the vocabulary is cut, in every form that users get them in.

That folders of sentence-transformers' SparseEncoder give its weights is tested in tests/ecosystem.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet as parquet
import pytest
import torch
import transformers
from safetensors.torch import save_file

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.optimization import optimize
from tests.checkpoints import save, texts, tokenizer
from tests.commands import invoke, said

# Logits of these random weights reach 60; of a product of so many numbers other orders differ by this.
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture
def seed() -> int:
    made = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {made}")
    return made


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a vocabulary of 27 words is cut, and not into parts of one size."""
    monkeypatch.setattr("bertfuse.export.sparse.CHUNK", 5)


def splade(folder: Path, strategy: str = "max", activation: str = "relu", **settings: Any) -> Path:
    save("masks", folder)
    (folder / "1_SpladePooling").mkdir()
    pooling = {"pooling_strategy": strategy, "activation_function": activation, "word_embedding_dimension": None}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))
    rows = [{"path": "", "type": "x.MLMTransformer"}, {"path": "1_SpladePooling", "type": "x.SpladePooling"}]
    (folder / "modules.json").write_text(json.dumps(rows))
    settings = {"model_type": "SparseEncoder", "similarity_fn_name": None} | settings
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def wanted(folder: Path, given: list[str], strategy: str = "max", activation: str = "relu") -> np.ndarray:
    """float32 [texts, words]: as sentence-transformers defines them, a text at a time."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    made = []
    for text in given:
        with torch.inference_mode():
            logits = model(**words(text, truncation=True, return_tensors="pt")).logits[0].double()
        weights = torch.log1p(logits.relu())
        weights = torch.log1p(weights) if activation == "log1p_relu" else weights
        made.append(weights.max(dim=0).values if strategy == "max" else weights.sum(dim=0))
    return torch.stack(made).numpy()


@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
@pytest.mark.parametrize(
    ("strategy", "activation", "exporter"),
    [("max", "relu", "dynamo"), ("max", "log1p_relu", "torchscript"), ("sum", "relu", "torchscript")],
)
def test_weights(strategy: str, activation: str, exporter: str, padding: str, seed: int, tmp_path: Path) -> None:
    source = splade(tmp_path / "source", strategy, activation)
    made = optimize(source, tmp_path / "out", bertfuse.FuseOptions(padding=padding), exporter=exporter)
    assert made.passed, made.not_compared
    given = [*texts(15, seed=seed), "", "word " * 60]
    want, encoder = wanted(source, given, strategy, activation), bertfuse.Encoder(tmp_path / "out")
    assert isinstance(encoder, bertfuse.SparseEncoder)
    found = encoder.encode(given)
    np.testing.assert_allclose(found.to_dense(), want, **CLOSE)
    np.testing.assert_allclose(encoder.encode(given, convert_to_tensor=True).to_dense().numpy(), found.to_dense())
    indices, values = encoder.encode(given[0])
    np.testing.assert_array_equal(indices, found[0][0])
    np.testing.assert_allclose(values, found[0][1], **CLOSE)
    few = encoder.encode(given, max_active_dims=3)
    for (indices, values), (every, weights) in zip(few, found, strict=True):
        assert len(indices) == min(3, len(every)) and (np.diff(indices) > 0).all()
        np.testing.assert_allclose(np.sort(values), np.sort(weights)[-3:], **CLOSE)
    np.testing.assert_allclose(
        encoder.similarity(found, few), found.to_dense() @ few.to_dense().T, rtol=1e-4, atol=1e-3
    )


def test_no_tensor_holds_all_tokens_and_words(tmp_path: Path) -> None:
    source = splade(tmp_path / "source")
    made = optimize(source, tmp_path / "out", exporter="torchscript")
    for path in (made.original, made.model):
        graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
        products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm", "FusedGemm")]
        weights = {tensor.name: tensor.dims for tensor in graph.initializer}
        heads = [node for node in products if any(5 in weights.get(name, ()) for name in node.input)]
        assert len(heads) == 5  # and one of two words
        # The only tensor of all words has one row for each text.
        shapes = {
            value.name: [d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim]
            for value in (*graph.value_info, *graph.output)
        }
        for name, shape in shapes.items():
            assert shape[-1:] != [27] or len(shape) == 2 or shape[1] == 1, (name, shape)


def static(folder: Path, weights: np.ndarray) -> Path:
    folder.mkdir()
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    save_file({"weight": torch.from_numpy(weights)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"frozen": False}))
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "x.SparseStaticEmbedding"}]))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    return folder


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_queries_without_inference(exporter: str, seed: int, tmp_path: Path) -> None:
    weights = np.random.default_rng(seed).standard_normal(27).astype(np.float32)
    source = static(tmp_path / "source", weights)
    made = optimize(source, tmp_path / "out", exporter=exporter)
    assert made.passed, made.not_compared
    given = [*texts(15, seed=seed), "", "house " * 60]
    words = tokenizer()
    words.enable_truncation(40)
    want = np.zeros((len(given), 27), np.float32)
    for row, text in enumerate(given):
        ids = words.encode(text, add_special_tokens=False).ids
        want[row, ids] = weights[ids]
    found = bertfuse.Encoder(tmp_path / "out").encode(given)
    np.testing.assert_array_equal(found.to_dense(), want)


def test_commands_and_server(seed: int, tmp_path: Path) -> None:
    from bertfuse.serving.look import open_model
    from bertfuse.serving.readers import READERS, output_of
    from bertfuse.serving.served import ModelOptions

    source = splade(tmp_path / "source", max_active_dims=6)
    said("optimize", source, "-o", tmp_path / "out", "--exporter", "torchscript")
    given = [text for text in texts(9, seed=seed) if text]
    (tmp_path / "texts.txt").write_text("\n".join(given))
    encoder = bertfuse.Encoder(tmp_path / "out")
    want = encoder.encode(given)
    assert all(len(indices) <= 6 for indices, _ in want)
    said("embed", tmp_path / "texts.txt", "-o", tmp_path / "weights", "--model", tmp_path / "out")
    (file,) = (tmp_path / "weights").glob("*.parquet")
    for row, (indices, values) in zip(parquet.read_table(file).to_pylist(), want, strict=True):
        assert row["indices"] == indices.tolist()
        np.testing.assert_allclose(row["values"], values, **CLOSE)
    arguments = ("--model", tmp_path / "out", "--format", "jsonl", "--truncate-dim", "2")
    said("embed", tmp_path / "texts.txt", "-o", tmp_path / "lines", *arguments)
    lines = [json.loads(line) for line in (tmp_path / "lines" / "part-000000.jsonl").read_text().splitlines()]
    assert [len(line["values"]) for line in lines] == [2] * len(given)
    for option in (("--format", "npy"), ("--normalize",), ("--precision", "binary")):
        said_of_it = invoke(
            "embed", tmp_path / "texts.txt", "-o", tmp_path / "no", "--model", tmp_path / "out", *option, code=2
        )
        assert "Traceback" not in said_of_it.stderr
    answers = said("run", tmp_path / "out", "--text", given[0])["answers"]
    assert answers[0]["indices"] == want[0][0].tolist() and len(answers[0]["words"]) <= 8
    model, served = open_model(ModelOptions(str(tmp_path / "out")), "cpu")
    assert served.kind == "sparse"
    (batch,) = model.run(given[:1], [output_of(model, "words", 0)])
    rows, counts = READERS["words"](model, batch, 0)
    assert counts.tolist() == [len(want[0][0])]
    np.testing.assert_array_equal(rows[:, 0], want[0][0])
    np.testing.assert_allclose(rows[:, 1], want[0][1], **CLOSE)


@pytest.mark.parametrize(
    ("change", "said_of_it"),
    [
        ({"pooling_strategy": "mean"}, "mean of relu is not known"),
        ({"activation_function": "gelu"}, "max of gelu is not known"),
        ({"other": 1}, "has other, which is not known"),
    ],
)
def test_other_poolings_are_refused(change: dict[str, Any], said_of_it: str, tmp_path: Path) -> None:
    source = splade(tmp_path / "source")
    file = source / "1_SpladePooling" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BertfuseError, match=said_of_it):
        optimize(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
