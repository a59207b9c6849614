"""Families beyond BERT, fused whole by ops without kernels, against their exports: proofs and bodies together."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bertfuse.graph_rewrite import FusionResult, fuse
from tests.model_coverage.cells import SHAPES, _session
from tests.model_coverage.files import Recipe, feed, make

_TOLERANCE = 2e-4  # as in table.py: two layers of sums in another order
_ATTENTION, _GATE, _NORM = "FusedAttentionVariant", "FusedGatedGemm", "FusedGemmResidualNorm"
_POST_NORM = {"EmbedLayerNorm": 1, "FusedGemmLayerNorm": 4}
# What is fused in two layers, and the window that the second one has on each side.
WHOLE: dict[str, dict[str, int]] = {
    "modernbert": {_ATTENTION: 2, _GATE: 2, _NORM: 3, "FusedGemmLayerNorm": 1},
    "nomic-bert": {_ATTENTION: 2, _GATE: 2} | _POST_NORM,
    "gte": {_ATTENTION: 2, _GATE: 2} | _POST_NORM,
    "jina-embeddings-v3": {_ATTENTION: 2, "FusedGemmGelu": 2} | _POST_NORM,
    "mpnet": {_ATTENTION: 2, "FusedGemmGelu": 2} | _POST_NORM,
    "eurobert": {_ATTENTION: 2, _GATE: 2, _NORM: 4},
    "esm": {_ATTENTION: 2, _NORM: 3, "FusedGemmLayerNorm": 1, "FusedGemmGelu": 2},
    "qwen3": {_ATTENTION: 2, _GATE: 2, _NORM: 4},
    "gemma3": {_ATTENTION: 2, _GATE: 2},
    "vit": {"FusedAttention": 2, _NORM: 3, "FusedGemmLayerNorm": 1, "FusedGemmGelu": 2},
}
# What of these attentions is said where no op takes them.
SAID = {
    "modernbert": ("base 160000; every key", "base 10000; window of 4 to each side"),
    "nomic-bert": ("RoPE over 8 columns in halves, base 1000; every key",) * 2,
    "mpnet": ("bias by head and distance, from -91 to 91",) * 2,
    "qwen3": ("4 heads of 16 columns over 2 of keys and values; RMS norm of each head of Q and K; RoPE", "causal"),
    "gemma3": ("base 10000; window of 4 to each side", "base 1e+06; every key"),
}


def exported(family: str, exporter: str, attention: str) -> Path:
    folder = Path(os.environ["BERTFUSE_TEST_MODELS"]) / "coverage"
    return make(Recipe(family, "feature-extraction", exporter, attention), folder)[0]


def difference(path: Path, result: FusionResult, windowed: bool) -> float:
    """The largest one of any output; with `windowed` of real tokens: padding may see no key in its window."""
    before, after = _session(str(path)), _session(result.model.SerializeToString())
    largest = 0.0
    for shape in SHAPES:
        inputs = feed(before, *shape)
        rows = inputs["attention_mask"] != 0 if windowed else slice(None)
        for a, b in zip(before.run(None, inputs), after.run(None, inputs), strict=True):
            largest = max(largest, float(np.abs(a[rows].astype(np.float64) - b[rows]).max(initial=0)))
    return largest


# One column of each family; the others are measured by hand, as the rest of the tables is.
COLUMNS = [(family, *(("torchscript", "eager") if n % 2 and family != "gemma3" else ("dynamo", "sdpa")))
           for n, family in enumerate(WHOLE)]  # fmt: skip


@pytest.mark.parametrize(("family", "exporter", "attention"), COLUMNS)
def test_families_are_fused_whole(family: str, exporter: str, attention: str) -> None:
    path = exported(family, exporter, attention)
    result = fuse(path, families=True)
    assert result.fused == WHOLE[family], [str(miss) for miss in result.misses]
    assert difference(path, result, windowed=family in ("modernbert", "gemma3")) <= _TOLERANCE


@pytest.mark.parametrize("family", list(SAID))
def test_what_is_proven_is_said(family: str) -> None:
    exporter, attention = next(column[1:] for column in COLUMNS if column[0] == family)
    missed = [m for m in fuse(exported(family, exporter, attention)).misses if m.op == "FusedAttention"]
    assert len(missed) == 2
    for miss, text in zip(missed, SAID[family], strict=True):
        assert text in miss.hint and "key mask 'attention_mask'" in miss.hint, str(miss)


@pytest.mark.parametrize("options", [{"dtype": "fp16"}, {"padding": "remove"}], ids=str)
def test_other_options_go_with_families(options: dict[str, str]) -> None:
    path = exported("modernbert", "dynamo", "sdpa")
    result = fuse(path, families=True, **options)
    assert result.fused == WHOLE["modernbert"]
    assert difference(path, result, windowed=True) <= (3e-2 if "dtype" in options else _TOLERANCE)
