"""The smallest real exports: one layer of two heads of eight, of each family and exporter, with random weights."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertfuse.export import export_model
from bertfuse.export.quiet import quiet
from bertfuse.export.tasks import AUTO
from tests.model_coverage.families import FAMILIES

EXPORTERS = ("dynamo", "torchscript")
_SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
_DISTILBERT_SIZES = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
_NARROW = {"embedding_size": 8}


@dataclass(frozen=True)
class Export:
    """One file: a family of model_coverage at its smallest, a task of bertfuse.export, and how it is exported."""

    family: str
    task: str
    exporter: str
    attention: str

    def __str__(self) -> str:
        return f"{self.family}, {self.task}, {self.exporter}, {self.attention}"

    def model(self) -> Any:
        """The PyTorch module that is exported."""
        family = FAMILIES[self.family]
        sizes = _SIZES if family.base is None else _DISTILBERT_SIZES if self.family == "distilbert" else {}
        if self.family in ("modernbert", "gemma3"):  # a layer with a window and one without
            sizes = sizes | {"num_hidden_layers": 2}
        if self.family == "eurobert":
            sizes = sizes | {"num_key_value_heads": 2}
        narrow = _NARROW if "embedding_size" in family.changes else {}
        return replace(family, changes=family.changes | sizes | narrow).build(self.task)

    def make(self, folder: Path) -> Path:
        """The file, made in `folder` by the first process that asks for it."""
        home = folder / "-".join(str(self).replace(",", "").replace("(", "").replace(")", "").split())
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = home / "model.onnx"
            if not path.exists():
                with quiet():
                    asked = AUTO if self.attention == "sdpa" else self.attention  # MPNet has eager alone
                    made = export_model(self.model(), home, task=self.task, exporter=self.exporter, attention=asked)
                made.replace(path)
        return path


_MODELS = (
    ("bert", "feature-extraction"),
    ("bert", "fill-mask"),
    ("bert", "text-classification"),
    ("roberta", "feature-extraction"),
    ("roberta", "token-classification"),
    ("distilbert", "feature-extraction"),
    ("distilbert", "fill-mask"),
    ("mpnet", "feature-extraction"),
    ("electra", "question-answering"),
    ("albert", "feature-extraction"),
    ("e5 (bert, mean)", "sentence-similarity"),
    ("multilingual-e5 (xlm-roberta, mean)", "sentence-similarity"),
)
EXPORTS = tuple(
    Export(family, task, exporter, attention)
    for family, task in _MODELS
    for exporter in EXPORTERS
    for attention in ("sdpa", "eager")
)

# For hunts at the level of their ops.
_FAMILIES = (
    "modernbert", "nomic-bert", "gte", "mpnet", "deberta", "deberta-v2", "esm", "qwen3", "gemma3", "eurobert",
    "clip, texts", "siglip, texts", "vit",
)  # fmt: skip
BEYOND_BERT = tuple(
    Export(family, "feature-extraction", exporter, attention)
    for family in _FAMILIES
    for exporter in EXPORTERS
    for attention in ("sdpa", "eager")
)
