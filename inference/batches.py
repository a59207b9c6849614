"""Tokenised texts as batches: of like lengths, bounded by tokens, padded to the longest of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def token_batches(lengths: Sequence[int], max_tokens: int, max_texts: int | None = None) -> Iterator[np.ndarray]:
    """Indices of `lengths` in batches, longest texts first.

    A batch holds texts of neighbouring lengths, so that one long text pads no short ones, and at most `max_tokens`
    tokens with its padding (a longer text is a batch of its own) and `max_texts` texts.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        count = max(1, max_tokens // longest)
        if max_texts is not None:
            count = min(count, max_texts)
        yield order[start : start + count]
        start += count


def padded(rows: Sequence[Sequence[int]], length: int, fill: int) -> np.ndarray:
    """int64 [len(rows), length]: each row, then `fill`."""
    made = np.full((len(rows), length), fill, dtype=np.int64)
    for target, row in zip(made, rows, strict=True):
        target[: len(row)] = row
    return made
