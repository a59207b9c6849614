"""Folders of quantised models go through every command, and what other tools quantised is told and judged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.measuring.differences import difference
from tests.checkpoints import texts
from tests.commands import invoke, said
from tests.corpora import model_folder, written


def float_folder(name: str) -> Path:
    return model_folder(name, initializer_range=0.2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The quantised model of a tiny checkpoint, as `bertfuse quantize` writes it."""
    base = tmp_path_factory.mktemp("int8")
    (base / "texts.txt").write_text("\n".join(texts(40, seed=3)))

    @cache
    def folder(name: str) -> Path:
        invoke("fuse", float_folder(name), "-o", base / f"{name}-fp32")
        invoke("quantize", base / f"{name}-fp32", "-o", base / name, "--calibration", base / "texts.txt")
        return base / name

    return folder


@pytest.fixture(scope="module")
def given() -> list[str]:
    return texts(30, seed=random.Random(7).randrange(1 << 20))


@pytest.fixture
def lines(given: list[str], tmp_path: Path) -> Path:
    (tmp_path / "lines.txt").write_text("\n".join(given))
    return tmp_path / "lines.txt"


def near(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = np.ravel(one), np.ravel(other)
    return float(one @ other) > 0.9 * float(np.linalg.norm(one) * np.linalg.norm(other))


def test_classes(folders: Callable[[str], Path], given: list[str]) -> None:
    """Encoder, Reranker and Tagger answer as the float model does, nearly."""
    floats = {name: float_folder(name) for name in ("encoder", "reranker", "tagger")}
    vectors = [bertfuse.Encoder(folder).encode(given) for folder in (floats["encoder"], folders("encoder"))]
    assert near(*vectors) and not np.array_equal(*vectors)
    pairs = [(given[0], text) for text in given[1:]]
    scores = [bertfuse.Reranker(folder).predict(pairs) for folder in (floats["reranker"], folders("reranker"))]
    assert np.abs(scores[0] - scores[1]).max() < 0.3 and not np.array_equal(*scores)
    spans = [
        {
            (row, span["start"], span["end"])
            for row, found in enumerate(bertfuse.Tagger(folder)(given))
            for span in found
        }
        for folder in (floats["tagger"], folders("tagger"))
    ]
    assert len(spans[0] & spans[1]) > 0.8 * len(spans[0])


def test_run_and_corpora(folders: Callable[[str], Path], given: list[str], lines: Path, tmp_path: Path) -> None:
    found = said("run", folders("encoder"), "--text", given[0])
    assert found
    said("embed", lines, "--model", folders("encoder"), "--output", tmp_path / "vectors")
    made = np.stack(written(tmp_path / "vectors")[1]["embedding"])
    assert near(made, bertfuse.Encoder(folders("encoder")).encode(given))
    said("rerank", lines, "--model", folders("reranker"), "--query", given[0], "--output", tmp_path / "scores")
    assert len(written(tmp_path / "scores")[0]) == len(given)
    said("classify", lines, "--model", folders("classifier"), "--output", tmp_path / "labels")
    assert len(written(tmp_path / "labels")[0]) == len(given)


def test_compare_on_texts(folders: Callable[[str], Path], lines: Path, tmp_path: Path) -> None:
    """As users see it: similarities and neighbours of vectors, ranks of scores, labels of texts and tokens."""
    page = tmp_path / "page.html"
    shown = {
        "encoder": ("30 texts", "rank correlation of similarities", "nearest neighbours kept"),
        "reranker": ("30 texts", "rank correlation of scores"),
        "classifier": ("30 texts", "largest logit kept"),
        "tagger": ("tokens by both", "largest logit kept"),
    }
    for name, wanted in shown.items():
        printed = invoke("compare", float_folder(name), folders(name), "--texts", lines, "--html", page).stdout
        for text in wanted:
            assert text in printed and text.split(" by")[0] in page.read_text(), (name, printed)
    # Tolerances that are asked for are kept to, and the judgement is told all the same.
    strict = (float_folder("encoder"), folders("encoder"), "--texts", lines, "--atol", 1e-6, "--rtol", 0)
    assert "nearest neighbours" in invoke("compare", *strict, code=1).stdout
    assert "one of them" in invoke("compare", lines, lines, "--texts", lines, "--text", "a", code=2).stderr
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    assert "holds no text" in invoke("compare", lines, lines, "--texts", empty, code=2).stderr


def test_lone_numbers_have_no_direction() -> None:
    """A cosine of scores is their sign: what is judged is how far they are apart."""
    scores = np.array([[2.0], [0.5], [-1.0]])
    assert difference("logits", scores, scores * 1.1, least_cosine=0.95).passed
    assert not difference("logits", scores, scores * 1.5, least_cosine=0.95).passed
    assert not difference("logits", scores, scores * np.nan, least_cosine=0.95).passed
    assert difference("logits", scores / 100, -scores / 100, least_cosine=0.95).passed  # 0.02 where scores are about 1
    assert not difference("logits", scores, -scores, least_cosine=0.95).passed


def test_report(folders: Callable[[str], Path], lines: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    invoke("report", folders("encoder"), "-o", page, "--seconds", 0, "--texts", lines)
    text = page.read_text()
    for wanted in ("int8 weights", "9 of 9", "30 texts by both models", "as far as 8-bit weights go"):
        assert wanted in text, wanted
    invoke("report", folders("reranker"), "-o", page, "--seconds", 0.01, "--sizes", "1x8")
    assert "fp32 with int8 weights" in page.read_text() and "texts by both models" not in page.read_text()


def test_bench(folders: Callable[[str], Path]) -> None:
    found = said("bench", folders("encoder"), "--sizes", "2x8", "--seconds", "0.01")
    types = {name: details.get("dtype") for name, details in found["details"].items()}
    assert types["original ONNX"] == "fp32" and types["fused, library"] == "fp32 with int8 weights", types
    printed = invoke("bench", folders("encoder"), "--sizes", "2x8", "--seconds", "0.01").stdout
    assert "int8 weights" in " ".join(printed.replace("│", " ").split())


def test_explain_and_engine(folders: Callable[[str], Path], tmp_path: Path) -> None:
    found = said("explain", folders("encoder"))
    assert found["quantized"] == {"kind": "int8", "count": 9, "total": 9} and found["fused"] == found["expected"]
    assert "9 of 9 fused weights are int8" in invoke("explain", folders("encoder")).stdout
    assert "quantized" not in said("explain", float_folder("encoder"))
    command = ("engine", folders("encoder"), "--no-plugins", "-o", tmp_path / "model.plan")
    (line,) = invoke(*command, code=2).stderr.splitlines()[-1:]
    assert "--no-plugins" in line
    assert not list(tmp_path.iterdir())


def test_triton(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """The library is always named: on the CPU, too, stock ONNX Runtime's operators take longer."""
    said("triton", folders("encoder"), "-o", tmp_path, "--provider", "cpu")
    name = folders("encoder").name
    config = (tmp_path / f"{name}_onnx" / "config.pbtxt").read_text()
    assert "KIND_CPU" in config and "op_library_filename" in config
    model = onnx.load(tmp_path / f"{name}_onnx" / "1" / "model.onnx")
    assert any(tensor.data_type == onnx.TensorProto.INT8 for tensor in model.graph.initializer)


def test_look(folders: Callable[[str], Path]) -> None:
    from bertfuse.serving.look import look_at

    found = look_at(folders("encoder"))
    assert (found.kind, found.dimension, found.dtype) == ("embed", 32, "float32")
    assert look_at(folders("reranker")).kind == "rerank"


@pytest.mark.slow
def test_serve(folders: Callable[[str], Path], given: list[str]) -> None:
    import urllib.request

    from tests.servers import served

    with served(folders("encoder")) as server:
        body = json.dumps({"input": given, "model": "encoder"}).encode()
        request = urllib.request.Request(f"{server.url}/v1/embeddings", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = np.array([row["embedding"] for row in json.load(answer)["data"]])
    assert near(found, bertfuse.Encoder(folders("encoder")).encode(given))


@pytest.mark.parametrize("form", ["dynamic", "QDQ"])
def test_of_other_tools(form: str, lines: Path, given: list[str], tmp_path: Path) -> None:
    """What is fused of it, or why nothing, is told by operator; it is compared as quantised, and never quantised."""
    from onnxruntime import quantization

    source = float_folder("encoder") / "onnx" / "model.onnx"
    target = tmp_path / "theirs.onnx"
    if form == "dynamic":
        quantization.quantize_dynamic(source, target)
    else:
        quantization.quantize_static(source, target, _Feeds(given), quantization.QuantFormat.QDQ)
    found = said("explain", target)
    missed = [part["miss"] for part in found["parts"] if part["miss"]]
    if form == "dynamic":  # weights and each tensor's own ends: what our ops compute, too
        assert not missed and found["fused"] == found["expected"]
    else:  # every result is rounded
        assert missed and sum("int8 quantised" in miss["found"] for miss in missed) >= len(missed) - 1
    compared = said("compare", source, target, "--texts", lines, code=None)
    assert compared["judgement"]["count"] == 30
    # What their tool makes of a mask of -3e38 with one scale for the tensor is another matter.
    assert form != "dynamic" or compared["judgement"]["cosine_mean"] > 0.9
    with pytest.raises(BertfuseError, match="quantised by another tool"):
        bertfuse.quantize(target, tmp_path / "again.onnx")


class _Feeds:
    def __init__(self, given: list[str]) -> None:
        from bertfuse.runtime.inputs import text_inputs

        self._left = [text_inputs(float_folder("encoder"), given[:8])]

    def get_next(self):
        return self._left.pop() if self._left else None
