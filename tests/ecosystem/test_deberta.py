"""DeBERTa-v3 as a classifier, of natural language inference or a guard: in pipelines and served; older files."""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import transformers
from optimum.onnxruntime import ORTModelForSequenceClassification

import bertfuse
from bertfuse.measuring.differences import TOLERANCES
from tests.commands import said
from tests.servers import served

from . import deberta_models

SEED = secrets.randbelow(1 << 30)
ATOL, RTOL = TOLERANCES["float32"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deberta_models.classifier(tmp_path_factory.mktemp("deberta") / "source", SEED)


@pytest.fixture(scope="module")
def optimized(source: Path) -> Path:
    said("optimize", source, "-o", source.parent / "nli", "--strict")
    return source.parent / "nli"


def pipelines(task: str, source: Path, optimized: Path) -> list:
    """On PyTorch, and on optimum with the library and with op bodies."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(optimized)
    options = onnxruntime.SessionOptions()
    bertfuse.register(options)
    models = [transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()]
    models += [
        ORTModelForSequenceClassification.from_pretrained(str(optimized), session_options=given)
        for given in (options, onnxruntime.SessionOptions())
    ]
    return [transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu") for model in models]


def test_zero_shot_classification(source: Path, optimized: Path) -> None:
    print(f"seed {SEED}")
    texts = deberta_models.sentences(12, random.Random(SEED))
    reference, *ours = pipelines("zero-shot-classification", source, optimized)
    for options in ({}, {"multi_label": True}, {"hypothesis_template": "anna talks about {}.", "batch_size": 5}):
        wanted = reference(texts, ["city", "bread", "old money"], **options)
        for pipeline in ours:
            for a, b in zip(wanted, pipeline(texts, ["city", "bread", "old money"], **options), strict=True):
                given, found = (dict(zip(one["labels"], one["scores"], strict=True)) for one in (a, b))
                assert b["sequence"] == a["sequence"] and found.keys() == given.keys()
                np.testing.assert_allclose([found[label] for label in given], list(given.values()), RTOL, ATOL)


def test_text_classification(source: Path, optimized: Path) -> None:
    """Texts and pairs of them, by the pipeline, `Classifier` and `serve`."""
    print(f"seed {SEED}")
    draw = random.Random(SEED + 1)
    texts = deberta_models.sentences(10, draw)
    pairs = list(zip(texts, deberta_models.sentences(10, draw), strict=True))
    reference, *ours = pipelines("text-classification", source, optimized)
    classifier = bertfuse.Classifier(optimized)
    with served(optimized, "--auto-truncate") as server:
        for given in (texts, pairs):
            asked = [{"text": a, "text_pair": b} for a, b in given] if given is pairs else given
            wanted = [_scores(row) for row in reference(asked, top_k=None, truncation=True)]
            body = json.dumps({"inputs": [list(pair) for pair in given] if given is pairs else [[t] for t in given]})
            request = urllib.request.Request(
                f"{server.url}/predict", body.encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                answers = json.load(answer)
            found = [pipeline(asked, top_k=None, truncation=True) for pipeline in ours]
            for rows in (*found, classifier(given, top_k=None), answers):
                for row, want in zip(rows, wanted, strict=True):
                    scores = _scores(row)
                    assert scores.keys() == want.keys() == set(deberta_models.LABELS)
                    np.testing.assert_allclose([scores[label] for label in want], list(want.values()), RTOL, ATOL)


def _scores(row: list[dict]) -> dict[str, float]:
    return {one["label"]: one["score"] for one in row}


# A convolution sees what is beside a token: padding stays.
@pytest.mark.parametrize(
    ("convolution", "padding"), [(False, "keep"), (False, "remove"), (False, "ragged"), (True, "keep")]
)
def test_files_of_an_older_transformers(convolution: bool, padding: str, tmp_path: Path) -> None:
    """Weights are set to 0 behind the Softmax, and a mask of pairs shows where it is 1."""
    print(f"seed {SEED}")
    packages = Path(sys.prefix) / "transformers-4.46"
    if not packages.is_dir():
        pytest.skip("no older release here: tests/ecosystem/setup.sh installs it")
    changes = {"conv_kernel_size": 3, "conv_act": "gelu"} if convolution else {}
    folder, file = deberta_models.classifier(tmp_path / "source", SEED, **changes), tmp_path / "model.onnx"
    command = [sys.executable, "-m", "tests.ecosystem.deberta_export", packages, folder, file]
    ran = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.split()[-1] == "4.46.3", ran.stderr
    report = said("fuse", file, "-o", tmp_path / "fused.onnx", "--strict", "--padding", padding)
    assert report["fused"]["FusedAttentionVariant"] == 2
    assert said("compare", file, tmp_path / "fused.onnx")["passed"]
    if padding == "ragged":
        return
    draw = np.random.default_rng(SEED)
    before, after = (bertfuse.InferenceSession(path) for path in (file, tmp_path / "fused.onnx"))
    for batch, length in ((1, 1), (3, int(draw.integers(2, 300))), (2, 520)):
        mask = (np.arange(length) < draw.integers(1, length + 1, (batch, 1))).astype(np.int64)
        feed = {"input_ids": draw.integers(5, 60, mask.shape), "attention_mask": mask}
        (logits, vectors), (same, found) = (session.run(None, feed) for session in (before, after))
        np.testing.assert_allclose(same, logits, RTOL, ATOL)
        rows = mask == 1 if padding == "remove" else mask >= 0
        np.testing.assert_allclose(found[rows], vectors[rows], RTOL, ATOL)
