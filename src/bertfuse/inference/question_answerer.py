"""Answers to questions, as spans of the text that holds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .activations import best_span
from .model import TextModel


class QuestionAnswerer(TextModel):
    """A folder of a model that finds answers in texts; arguments as TextModel's."""

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(folder, **options)
        for name in ("start_logits", "end_logits"):
            self.require(name, "question answering")

    def __call__(
        self, questions: Sequence[str], contexts: Sequence[str], max_answer_len: int = 15, batch_size: int | None = None
    ) -> list[dict[str, Any]]:
        """{"answer", "score", "start", "end"} of each question in its context: the likeliest span of tokens.

        The score is the product of both ends' probabilities among the context's tokens. Contexts longer than the model
        takes are cut.
        """
        if len(questions) != len(contexts):
            raise BertfuseError(f"{len(questions)} questions but {len(contexts)} contexts: give as many of each")
        made: list[Any] = [None] * len(questions)
        names = ["start_logits", "end_logits"]
        pairs = list(zip(questions, contexts, strict=True))
        for batch in self.run(pairs, names, batch_size=batch_size, offsets=True):
            for at, (row, encoding) in enumerate(zip(batch.rows, batch.encodings, strict=True)):
                ends = [batch.outputs[name][at][: len(encoding)].astype(np.float32) for name in names]
                made[row] = _answer(contexts[row], encoding, *ends, max_answer_len)
        return made


def _answer(context: str, encoding: Any, start: np.ndarray, end: np.ndarray, longest: int) -> dict[str, Any]:
    inside = np.array([sequence == 1 for sequence in encoding.sequence_ids])
    if not inside.any():
        return {"answer": "", "score": 0.0, "start": 0, "end": 0}
    first, last, score = best_span(start, end, inside, longest)
    span = encoding.offsets[first][0], encoding.offsets[last][1]
    return {"answer": context[span[0] : span[1]], "score": score, "start": span[0], "end": span[1]}
