"""Words for masks, with the results of transformers' pipeline("fill-mask")."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertfuse.model_folder.tokenizer import special_token

from .activations import softmax
from .model import TextModel


class MaskFiller(TextModel):
    """A masked language model's folder; arguments as TextModel's."""

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(folder, **options)
        self.require("logits", "filling masks")
        self.mask_token = special_token(self.folder, "mask_token") or "[MASK]"
        self.mask_id = self.tokenizer.token_to_id(self.mask_token)

    def __call__(self, inputs: Sequence[str], top_k: int = 5, batch_size: int | None = None) -> list[Any]:
        """For each text and mask in it [{"token_str": …, "token": id, "score": …}, …], likeliest first."""
        made: list[Any] = [[] for _ in inputs]
        for batch in self.run(list(inputs), ["logits"], batch_size=batch_size, encodings=True):
            for row, encoding, logits in zip(batch.rows, batch.encodings, batch.outputs["logits"], strict=True):
                spots = [index for index, token in enumerate(encoding.ids) if token == self.mask_id]
                made[row] = [self._best(logits[spot], top_k) for spot in spots]
        return made

    def _best(self, logits: np.ndarray, top_k: int) -> list[dict[str, Any]]:
        scores = softmax(logits.astype(np.float32))
        best = np.argsort(-scores, kind="stable")[:top_k]
        names = [self.tokenizer.decode([int(token)], skip_special_tokens=False) for token in best]
        return [
            {"token_str": name, "token": int(token), "score": float(scores[token])}
            for name, token in zip(names, best, strict=True)
        ]
