"""Entities in texts, as transformers' pipeline("token-classification", aggregation_strategy="simple") finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime.tokenizer import special_token

from .activations import labels_of, softmax
from .model import TextModel


class Tagger(TextModel):
    """A tagger's folder; arguments as TextModel's."""

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(folder, **options)
        self.require("logits", "a tagger")
        self.unknown_token = special_token(self.folder, "unk_token") or "[UNK]"
        if self.task not in ("", "token-classification"):
            raise BertfuseError(f"{self.path}: was exported for {self.task}, not for token-classification")

    def __call__(
        self, inputs: str | Sequence[str], batch_size: int | None = None, show_progress_bar: bool = False
    ) -> list[Any]:
        """[{"entity_group": "PER", "score": 0.99, "word": …, "start": 0, "end": 5}, …] of each text; of a single text
        that list alone.

        Neighbouring tokens of one type are one entity, unless its label begins with B-; tokens labelled O are none's.
        """
        alone = isinstance(inputs, str)
        texts: list[str] = [inputs] if isinstance(inputs, str) else list(inputs)
        made: list[list[dict[str, Any]]] = [[] for _ in texts]
        for batch in self.run(
            texts, ["logits"], batch_size=batch_size, show_progress_bar=show_progress_bar, offsets=True
        ):
            scores = softmax(batch.outputs["logits"].astype(np.float32))
            for row, encoding, tokens in zip(batch.rows, batch.encodings, scores, strict=True):
                made[row] = self._entities(texts[row], encoding, tokens)
        return made[0] if alone else made

    def _entities(self, text: str, encoding: Any, scores: np.ndarray) -> list[dict[str, Any]]:
        labels = labels_of(self.config, scores.shape[-1])
        groups: list[dict[str, Any]] = []
        last = None
        for index, special in enumerate(encoding.special_tokens_mask):
            if special:
                continue
            best = int(scores[index].argmax())
            begins, kind = _tag(labels[best])
            if kind != last or begins:
                groups.append({"label": labels[best], "scores": [], "tokens": [], "spans": []})
            last = kind
            groups[-1]["scores"].append(scores[index][best])
            span = encoding.offsets[index]
            unknown = encoding.tokens[index] == self.unknown_token
            groups[-1]["tokens"].append(text[span[0] : span[1]] if unknown else encoding.tokens[index])
            groups[-1]["spans"].append(span)
        return [self._entity(group) for group in groups if group["label"] != "O"]

    def _entity(self, group: dict[str, Any]) -> dict[str, Any]:
        decoder = self.tokenizer.decoder
        return {
            "entity_group": group["label"].split("-", 1)[-1],
            "score": float(np.mean(group["scores"])),
            "word": decoder.decode(group["tokens"]) if decoder is not None else " ".join(group["tokens"]),
            "start": group["spans"][0][0],
            "end": group["spans"][-1][1],
        }


def _tag(label: str) -> tuple[bool, str]:
    """Whether the label begins an entity, and its type."""
    return label.startswith("B-"), label[2:] if label[:2] in ("B-", "I-") else label
