"""MiniLM's real weights with 8 bits, on sentences of the documentation that installed packages bring."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from pathlib import Path

import numpy as np
import pytest

import bertfuse
from bertfuse.measuring.judgement import judge
from tests.checkpoints import minilm


def sentences(count: int) -> list[str]:
    """Different sentences of 25 to 400 characters, of packages' descriptions and Python's own documentation."""
    found: set[str] = set()
    sources = [str(package.metadata.get_payload()) for package in importlib.metadata.distributions()]
    for file in sorted(Path(ast.__file__).parent.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = (ast.FunctionDef, ast.ClassDef, ast.Module)
        sources += [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    for text in sources:
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", re.sub(r"\s+", " ", text)):
            if 25 < len(sentence) < 400 and not re.search(r"[|<>{}=\[\]]|http", sentence):
                found.add(sentence)
    ordered = sorted(found, key=lambda sentence: sentence[::-1])  # neighbours have little in common
    assert len(ordered) >= count, f"only {len(ordered)} sentences"
    return ordered[:: len(ordered) // count][:count]


@pytest.mark.slow
def test_real_weights(tmp_path: Path) -> None:
    """500 sentences that were not calibrated with; by the kernels, and some of them by the op bodies."""
    model, target = tmp_path / "minilm", tmp_path / "int8.onnx"
    made = bertfuse.optimize(str(minilm()), model, task="feature-extraction")
    texts = sentences(1000)
    found = bertfuse.quantize(model, target, calibration=texts)
    assert found.judgement.count >= 500
    assert found.judgement.cosine_least > 0.99 and found.judgement.cosine_mean > 0.998, found.judgement
    assert found.judgement.rank_correlation > 0.995 and found.judgement.neighbours_kept > 0.9, found.judgement
    assert found.bytes_after < made.original.stat().st_size / 3
    bodies = bertfuse.quantize(model, tmp_path / "static.onnx", calibration=texts[:64], min_cosine=0.99)
    assert bodies.judgement.cosine_least >= 0.99


def test_judgement() -> None:
    """Equal rows, rows in other places, and those that are moved a little."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40, 16))
    same = judge("sentence_embedding", rows, rows)
    assert same.cosine_least == pytest.approx(1) and same.rank_correlation == pytest.approx(1)
    assert same.neighbours_kept == 1 and same.argmax_kept is None and len(same.lines()) == 3
    other = judge("sentence_embedding", rows, rng.standard_normal((40, 16)))
    assert other.neighbours_kept < 0.3 and abs(other.rank_correlation) < 0.3
    moved = judge("logits", rows, rows + 0.3 * rng.standard_normal((40, 16)))
    assert 0.5 < moved.argmax_kept < 1 and moved.neighbours_kept is None
    scores = judge("logits", rows[:, :1], -rows[:, :1])
    assert scores.rank_correlation == pytest.approx(-1) and scores.cosine_least is None
