"""From logits to scores, by what config.json says the logits are for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import read_json

Activation = Callable[[np.ndarray], np.ndarray]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    # exp of what is positive would overflow.
    powers = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1, powers) / (1 + powers)


def identity(logits: np.ndarray) -> np.ndarray:
    return logits


BY_NAME: dict[str, Activation] = {"softmax": softmax, "sigmoid": sigmoid, "none": identity}
_OF_TORCH: dict[str, Activation] = {
    "Sigmoid": sigmoid,
    "Identity": identity,
    "Softmax": softmax,
    "Tanh": np.tanh,
    "ReLU": lambda logits: np.maximum(logits, 0),
}


def applied(activation: Callable[[Any], Any], logits: np.ndarray) -> np.ndarray:
    """What a given function makes of the logits, as float32 [n, labels]; one that takes tensors only gets a tensor."""
    try:
        return np.asarray(activation(logits), np.float32)
    except (TypeError, AttributeError):
        torch = sys.modules.get("torch")  # which a function of PyTorch's comes with
        if torch is None:
            raise
        return np.asarray(activation(torch.from_numpy(logits)), np.float32)


def of_classifier(config: Mapping[str, Any], labels: int) -> Activation:
    """As transformers' text-classification pipeline chooses: by problem_type, then by the number of labels."""
    kind = config.get("problem_type")
    if kind == "regression":
        return identity
    if kind == "multi_label_classification" or labels == 1:
        return sigmoid
    return softmax


def of_reranker(folder: Path, config: Mapping[str, Any], labels: int) -> Activation:
    """As sentence-transformers' CrossEncoder chooses: what a file names, else sigmoid of one label, nothing of more."""
    inner = config.get("sentence_transformers")
    named = read_json(folder / "config_sentence_transformers.json").get("activation_fn")
    named = named or (inner.get("activation_fn") if isinstance(inner, dict) else None)
    named = named or config.get("sbert_ce_default_activation_function")
    if not named:
        return sigmoid if labels == 1 else identity
    name = str(named).rsplit(".", 1)[-1]
    if name not in _OF_TORCH:
        raise BertfuseError(f"{folder}: activation {named} is unknown: {', '.join(_OF_TORCH)}; pass activation_fn")
    return _OF_TORCH[name]


def labels_of(config: Mapping[str, Any], count: int) -> list[str]:
    """The names of `count` labels, by id2label; LABEL_0 and so on where it names none."""
    named = config.get("id2label") or {}
    return [str(named.get(str(index), f"LABEL_{index}")) for index in range(count)]


def best_span(
    start: np.ndarray, end: np.ndarray, inside: np.ndarray, longest: int | None = None
) -> tuple[int, int, float]:
    """First and last token [S] of the likeliest answer among those `inside`, of so many tokens at most, and its score.

    The score is the product of both ends' probabilities, of their logits [S] over the tokens inside.
    """
    starts, ends = (softmax(np.where(inside, logits, -np.inf)) for logits in (start, end))
    scores = np.triu(np.outer(starts, ends))
    scores = scores if longest is None else np.tril(scores, longest - 1)
    first, last = np.unravel_index(int(scores.argmax()), scores.shape)
    return int(first), int(last), float(scores[first, last])
