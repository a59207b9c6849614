"""What a task's outputs say about a row of arrays: labels, tokens, spans. Texts: see bertfuse.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.model_folder.files import read_config
from bertfuse.runtime.inputs import load_tokenizer

from .activations import best_span, labels_of, of_classifier

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


def _tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None


def _tokens(folder: Path, ids: Sequence[int]) -> list[str]:
    tokenizer = _tokenizer(folder)
    return [(tokenizer and tokenizer.id_to_token(int(token))) or str(token) for token in ids]


def _classes(folder: Path, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    logits, config = outputs["logits"], read_config(folder)
    scores = of_classifier(config, logits.shape[-1])(logits)
    if logits.shape[-1] == 1:
        return [{"score": float(row[0])} for row in scores]
    labels = labels_of(config, logits.shape[-1])
    return [{"label": labels[int(row.argmax())], "score": float(row.max())} for row in scores]


def _tags(folder: Path, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    labels = labels_of(read_config(folder), outputs["logits"].shape[-1])
    made = []
    for ids, mask, row in zip(feed["input_ids"], feed["attention_mask"], outputs["logits"], strict=True):
        kept = mask.astype(bool)
        best = [labels[index] for index in row[kept].argmax(axis=-1)]
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
        span: list[int] = []
        if inside.any():
            first, last, _ = best_span(outputs["start_logits"][row], outputs["end_logits"][row], inside)
            span = [int(token) for token in ids[first : last + 1]]
        made.append({"answer": tokenizer.decode(span) if tokenizer else " ".join(map(str, span))})
    return made


_READERS = {
    "text-classification": _classes,
    "token-classification": _tags,
    "fill-mask": _masks,
    "question-answering": _spans,
}
