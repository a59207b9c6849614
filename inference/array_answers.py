"""What a task's outputs say about a row of arrays: labels, tokens, spans. Texts: see bertfuse.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.runtime.folder import read_config
from bertfuse.runtime.inputs import load_tokenizer

from .activations import of_classifier

TOP = 5


def answers(
    task: str, folder: Path, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """One plain dictionary per row of the batch; empty for a task that is unknown or outputs that are not its own.

    Tokens are their ids where `folder` has no tokenizer: arrays need none.
    """
    read = _READERS.get(task)
    if read is None or "input_ids" not in feed:
        return []
    try:
        return read(folder, feed, {name: array.astype(np.float64) for name, array in outputs.items()})
    except KeyError:
        return []


def _labels(folder: Path) -> dict[int, str]:
    return {int(key): str(label) for key, label in (read_config(folder).get("id2label") or {}).items()}


def _tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None


def _tokens(folder: Path, ids: Sequence[int]) -> list[str]:
    tokenizer = _tokenizer(folder)
    return [(tokenizer and tokenizer.id_to_token(int(token))) or str(token) for token in ids]


def _classes(folder: Path, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    logits, labels = outputs["logits"], _labels(folder)
    scores = of_classifier(read_config(folder), logits.shape[-1])(logits)
    if logits.shape[-1] == 1:
        return [{"score": float(row[0])} for row in scores]
    return [{"label": labels.get(int(row.argmax()), str(row.argmax())), "score": float(row.max())} for row in scores]


def _tags(folder: Path, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    labels = _labels(folder)
    made = []
    for ids, mask, row in zip(feed["input_ids"], feed["attention_mask"], outputs["logits"], strict=True):
        kept = mask.astype(bool)
        best = [labels.get(int(index), str(index)) for index in row[kept].argmax(axis=-1)]
        made.append({"tokens": list(zip(_tokens(folder, ids[kept]), best, strict=True))})
    return made


def _masks(folder: Path, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    tokenizer = _tokenizer(folder)
    if tokenizer is None:  # it alone knows which id is the mask
        return []
    mask_id = next((i for i in map(tokenizer.token_to_id, ("[MASK]", "<mask>")) if i is not None), None)
    made = []
    for ids, row in zip(feed["input_ids"], outputs["logits"], strict=True):
        spots = np.flatnonzero(ids == mask_id)
        best = [np.argsort(-row[spot])[:TOP] for spot in spots]
        made.append({"masks": [_tokens(folder, tokens) for tokens in best]})
    return made


def _spans(folder: Path, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    tokenizer = _tokenizer(folder)
    made = []
    for row, ids in enumerate(feed["input_ids"]):
        inside = feed["attention_mask"][row].astype(bool)
        if "token_type_ids" in feed and feed["token_type_ids"][row].any():
            inside &= feed["token_type_ids"][row].astype(bool)
        start, end = (np.where(inside, outputs[name][row], -np.inf) for name in ("start_logits", "end_logits"))
        scores = np.triu(start[:, None] + end[None, :])
        scores[np.tril_indices(len(ids), -1)] = -np.inf
        first, last = np.unravel_index(int(scores.argmax()), scores.shape)
        span = [int(token) for token in ids[first : last + 1]]
        made.append({"answer": tokenizer.decode(span) if tokenizer else " ".join(map(str, span))})
    return made


_READERS = {
    "text-classification": _classes,
    "token-classification": _tags,
    "fill-mask": _masks,
    "question-answering": _spans,
}
