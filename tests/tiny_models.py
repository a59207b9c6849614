"""Small random encoders and their exports, each made once per test run; no network."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bertfuse.export import TASKS, export_model
from bertfuse.export.sentence import SentenceEncoder
from tests import made_once

VOCABULARY, LONGEST, LAYERS, HEADS, HIDDEN = 97, 40, 2, 4, 32
EXPORTERS, ATTENTIONS = ("dynamo", "torchscript"), ("sdpa", "eager")


def config(**changes: Any) -> transformers.BertConfig:
    """A BERT of 2 layers; its weights are large enough for attention and GELU to matter."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 64,
        "max_position_embeddings": LONGEST,
        "initializer_range": 0.2,
        "num_labels": 3,
    }
    return transformers.BertConfig(**(values | changes))


def build(task: str = "feature-extraction", seed: int = 0, **changes: Any) -> transformers.PreTrainedModel:
    """The task's tiny model with random weights and biases, in inference mode."""
    torch.manual_seed(seed)
    if task == "question-answering":
        changes = {"num_labels": 2} | changes
    model = getattr(transformers, TASKS[task].auto_class).from_config(config(**changes)).eval()
    if task == "sentence-similarity":
        model = SentenceEncoder(model, ("mean",)).eval()
    # transformers starts biases at 0 and LayerNorm at the identity: a lost bias would go unseen.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@cache
def exported(task: str = "feature-extraction", exporter: str = "torchscript", attention: str = "sdpa") -> Path:
    """model.onnx of `build(task)`, made by the first process that asks for it; do not write into its folder."""

    def make(folder: Path) -> None:
        beside_config(export_model(build(task), folder, task=task, exporter=exporter, attention=attention))

    return made_once(f"{task}-{exporter}-{attention}", make) / "model.onnx"


def beside_config(exported: Path) -> Path:
    """The model that export_model wrote to DIR/onnx, moved to DIR, where its config.json is."""
    for file in exported.parent.iterdir():
        file.replace(exported.parents[1] / file.name)
    exported.parent.rmdir()
    return exported.parents[1] / exported.name


def inputs(batch: int, sequence: int, seed: int = 0, types: int = 2) -> dict[str, np.ndarray]:
    """Random int64 [batch, sequence] inputs whose last row is padded to half its length."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, sequence), np.int64)
    mask[-1, (sequence + 1) // 2 :] = 0
    return {
        "input_ids": random.integers(0, VOCABULARY, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, types, (batch, sequence)),
    }


def reference(model: transformers.PreTrainedModel, feed: dict[str, np.ndarray], names: list[str]) -> list[np.ndarray]:
    """PyTorch's outputs, by name."""
    with torch.inference_mode():
        result = model(**{name: torch.from_numpy(array) for name, array in feed.items()})
    return [result[name].float().numpy() for name in names]


def save_checkpoint(folder: Path, task: str = "feature-extraction", tokenizer: bool = True) -> Path:
    """A local model folder as a user has it: config.json, model.safetensors, a word-level tokenizer."""
    build(task).save_pretrained(folder)
    if tokenizer:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(VOCABULARY - 5))]
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("\n".join(words) + "\n")
        transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    return folder


def sentence_files(folder: Path, *later: str) -> None:
    """What sentence-transformers saves beside the transformer; `later` are modules after the pooling."""
    rows = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    rows += [{"path": f"{i + 2}_{kind}", "type": f"x.{kind}"} for i, kind in enumerate(later)]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode": "cls", "word_embedding_dimension": HIDDEN})
    )
