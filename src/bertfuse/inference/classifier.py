"""Labels of texts, with the arguments and results of transformers' pipeline("text-classification")."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .activations import BY_NAME, labels_of, of_classifier
from .model import Text, TextModel

_FIRST = object()  # no top_k given: the best label, not in a list of its own


class Classifier(TextModel):
    """A text classifier's folder; arguments as TextModel's."""

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(folder, **options)
        self.require("logits", "a classifier")
        if self.task not in ("", "text-classification"):
            raise BertfuseError(f"{self.path}: was exported for {self.task}, not for text-classification")

    def __call__(
        self,
        inputs: str | Mapping[str, str] | Iterable[Any],
        top_k: Any = _FIRST,
        function_to_apply: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        truncation: bool = True,
    ) -> Any:
        """[{"label": …, "score": …}] for each text; with `top_k` a list of that many labels, best first; None: all.

        Args:
            inputs: a text, or {"text": …, "text_pair": …}, whose answer comes in no list, or a list of such.
            top_k: as the pipeline: of a single text the list of its labels alone.
            function_to_apply: "softmax", "sigmoid" or "none" in place of what problem_type says.
            truncation: True; texts are always cut at `max_seq_length` tokens.
        """
        function_to_apply = function_to_apply.lower() if function_to_apply is not None else None
        if not truncation:
            raise BertfuseError(f"truncation={truncation!r}: texts are always cut at max_seq_length tokens")
        if function_to_apply is not None and function_to_apply not in BY_NAME:
            raise BertfuseError(f"function_to_apply {function_to_apply!r} is unknown: choose from {', '.join(BY_NAME)}")
        alone = isinstance(inputs, str | Mapping)
        texts = [_text(entry) for entry in ([inputs] if alone else inputs)]
        made: list[Any] = [None] * len(texts)
        for row, scores in self.scores(texts, function_to_apply, batch_size, show_progress_bar):
            labels = labels_of(self.config, len(scores))
            order = np.argsort(-scores, kind="stable")
            if top_k is _FIRST:
                made[row] = {"label": labels[order[0]], "score": float(scores[order[0]])}
            else:
                made[row] = [{"label": labels[index], "score": float(scores[index])} for index in order[:top_k]]
        # As the pipeline: a list for a string, where no top_k is given, and none for a dictionary.
        return made[0] if alone and (top_k is not _FIRST or isinstance(inputs, Mapping)) else made

    def scores(
        self,
        texts: Sequence[Text],
        function_to_apply: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
    ) -> Any:
        """(row, float32 [labels]) of every text, not in order."""
        for batch in self.run(texts, ["logits"], batch_size=batch_size, show_progress_bar=show_progress_bar):
            logits = batch.outputs["logits"].astype(np.float32)
            activation = (
                BY_NAME[function_to_apply] if function_to_apply else of_classifier(self.config, logits.shape[1])
            )
            yield from zip(batch.rows, activation(logits), strict=True)


def _text(entry: Any) -> Text:
    if isinstance(entry, Mapping):
        if "text" not in entry:
            raise BertfuseError(f"a text is a string or {{'text': …, 'text_pair': …}}, not {dict(entry)!r}"[:200])
        pair = entry.get("text_pair")
        return entry["text"] if pair is None else (entry["text"], pair)
    return tuple(entry) if isinstance(entry, list) else entry
