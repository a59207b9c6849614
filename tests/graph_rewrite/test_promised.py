"""What fusion expects of a model is what its PyTorch modules do: counted there, by hooks, and not in any graph."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from bertfuse.graph_rewrite import fuse
from tests.mutant_hunt.exports import Export

_PROJECTIONS = ({"query", "key", "value"}, {"q_lin", "k_lin", "v_lin"}, {"q", "k", "v"})


def calls(model: torch.nn.Module) -> Counter[str]:
    """How often LayerNorms, GELUs and self-attentions are computed for one text."""
    counted: Counter[str] = Counter()
    for module in model.modules():
        name = type(module).__name__
        kind = ""
        if isinstance(module, torch.nn.LayerNorm):
            kind = "norm"
        elif "GELU" in name:
            kind = "gelu"
        elif any(names <= dict(module.named_children()).keys() for names in _PROJECTIONS):
            kind = "attention"
        if kind:
            module.register_forward_hook(lambda *_, kind=kind: counted.update([kind]))
    ids = torch.arange(5, 12).reshape(1, 7)
    with torch.no_grad():
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return counted


@pytest.mark.parametrize(
    ("family", "task", "attention"),
    [
        ("bert", "fill-mask", "eager"),
        ("bert", "text-classification", "sdpa"),
        ("distilbert", "fill-mask", "sdpa"),
        ("albert", "feature-extraction", "eager"),
        ("roberta", "token-classification", "sdpa"),
        ("electra", "question-answering", "eager"),
        ("mpnet", "feature-extraction", "eager"),
    ],
)
def test_expected_counts(family: str, task: str, attention: str) -> None:
    export = Export(family, task, "torchscript", attention)
    wanted = calls(export.model())
    assert wanted["attention"] and wanted["norm"] and wanted["gelu"], wanted
    expected = Counter(fuse(export.make(Path(os.environ["BERTFUSE_TEST_MODELS"]) / "mutants")).expected)
    norms = expected["EmbedLayerNorm"] + expected["FusedGemmLayerNorm"] + expected["FusedGemmGeluLayerNorm"]
    assert norms == wanted["norm"], (expected, wanted)
    assert expected["FusedGemmGelu"] + expected["FusedGemmGeluLayerNorm"] == wanted["gelu"], (expected, wanted)
    assert expected["FusedAttention"] + expected["FusedAttentionVariant"] == wanted["attention"], (expected, wanted)
