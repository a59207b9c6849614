"""What an engine reads from a run's outputs for each kind of work."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertfuse.inference.model import Batch as Run
from bertfuse.model_folder.sentence_modules import SENTENCE

Rows = tuple[np.ndarray, np.ndarray | None]  # as Answer's rows and counts


def output_of(model: Any, what: str, left_out: int) -> str:
    """The model's output that `what` is read from."""
    if what == "vectors":
        return model.output_for(left_out)
    if what == "tokens":
        return "token_embeddings" if "token_embeddings" in model.outputs else "last_hidden_state"
    return SENTENCE if what == "words" and SENTENCE in model.outputs else "logits"


def _vectors(model: Any, run: Run, left_out: int) -> Rows:
    return np.ascontiguousarray(model.vectors(run, skipped=left_out), np.float32), None


def _tokens(model: Any, run: Run, _: int) -> Rows:
    return _of_tokens(run.outputs[output_of(model, "tokens", 0)], run.lengths), run.lengths.astype(np.int32)


def _logits(model: Any, run: Run, _: int) -> Rows:
    return run.outputs["logits"].astype(np.float32), None


def _words(model: Any, run: Run, _: int) -> Rows:
    """SPLADE's: of each word the largest log(1 + max(logit, 0)) of all tokens; those that are 0 are left out."""
    if SENTENCE in run.outputs:
        rows = model.words(run)
        made = [np.stack([indices.astype(np.float32), values], axis=1) for indices, values in rows]
        return np.concatenate(made), np.array([len(part) for part in made], np.int32)
    logits = run.outputs["logits"].astype(np.float32)
    logits[run.mask == 0] = 0
    weights = np.log1p(np.maximum(logits.max(axis=1), 0))
    where, words = np.nonzero(weights)
    counts = np.bincount(where, minlength=len(run.rows)).astype(np.int32)
    return np.stack([words.astype(np.float32), weights[where, words]], axis=1), counts


READERS = {"vectors": _vectors, "tokens": _tokens, "logits": _logits, "words": _words}


def _of_tokens(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """float32 [T, size] of [N, longest, size], without padding."""
    return rows[np.arange(rows.shape[1]) < lengths[:, None]].astype(np.float32)
