"""How a model of late interaction reads queries and documents, in the processes that speak HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.model_folder.files import folder_of
from bertfuse.model_folder.late_texts import DOCUMENT, QUERY, read_texts
from bertfuse.model_folder.multi_vector import read_multi_vector
from bertfuse.model_folder.sentence_settings import read_settings
from bertfuse.model_folder.tokenizer import cut, longest_text

from .checks import RequestError
from .served import Served
from .tokens import Tokenised, Tokenizer

_PROMPTS = {QUERY: (QUERY,), DOCUMENT: (DOCUMENT, "passage", "corpus")}  # their names, by task


class Late:
    """Attributes: `mean`, whether a score is the mean over a query's tokens and not the sum."""

    def __init__(self, served: Served) -> None:
        folder = folder_of(Path(served.path))
        found, longest = read_multi_vector(folder), longest_text(folder)
        readings = {task: read_texts(folder, found, task, longest) for task in _PROMPTS}
        limits = {QUERY: readings[QUERY].longest, DOCUMENT: served.max_input_tokens}
        cut(readings[DOCUMENT].tokenizer, folder, served.max_input_tokens)
        self._served = served
        self._readers = {task: Tokenizer(served.path, limits[task], reading=readings[task]) for task in _PROMPTS}
        self.documents = self._readers[DOCUMENT]
        self.mean = read_settings(folder).similarity_fn_name == "meanmaxsim"

    def reader(self, task: str) -> Tokenizer:
        """The tokenizer of texts of the task. Raises RequestError where the model cannot compute them."""
        if task == QUERY and not self._served.takes_queries:
            raise RequestError(
                f"{self._served.name} takes no queries: they have vectors of tokens that no other sees, which a model"
                " without padding does not compute; optimize it with --padding keep.",
                404,
            )
        return self._readers[task]

    def prompt_name(self, task: str, asked: str | None) -> str | None:
        """The name of the prompt before texts of the task, as encode_query and encode_document choose it."""
        known = dict(self._served.prompts)
        if asked is None or (asked in _PROMPTS[task] and asked not in known):
            return next((name for name in _PROMPTS[task] if name in known), None)
        return asked


def task_of(body: Mapping[str, Any]) -> str:
    """QUERY or DOCUMENT: what `input_type` says, else whether the prompt's name is a query's."""
    task = body.get("input_type")
    if task is None:
        return QUERY if body.get("prompt_name") == QUERY else DOCUMENT
    if task not in (QUERY, DOCUMENT):
        raise RequestError("input_type is neither query nor document.", param="input_type")
    return task


def kept_rows(reader: Tokenizer, given: Tokenised, rows: np.ndarray) -> list[np.ndarray]:
    """Of each text of `given` the rows of its tokens, but of those that have no vector."""
    ends = np.cumsum(given.lengths)
    if reader.reading is not None and len(reader.reading.skipped):
        kept = ~np.isin(given.ids, reader.reading.skipped)
        rows, ends = rows[kept], np.cumsum(kept)[ends - 1]
    return np.split(rows, ends[:-1])
