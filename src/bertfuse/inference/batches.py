"""Tokenised texts as batches: of like lengths, bounded by tokens, padded to the longest or one text after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """Tokenised texts, one after the other.

    Args:
        first: the position of the first text among all.
        ids: int64 [T].
        type_ids: int64 [T]; None where all are 0.
        lengths: int64 [N], tokens of each text.
        encodings: those of the tokenizer, where they were kept.
        owners: int64 [N], of which text each is a part, from `first` on; None: each is a text.
        seen: int64 [N], how many tokens of each text, the first ones, others see; None: all.
    """

    first: int
    ids: np.ndarray
    type_ids: np.ndarray | None
    lengths: np.ndarray
    encodings: list[Any] | None = None
    owners: np.ndarray | None = None
    seen: np.ndarray | None = None

    @classmethod
    def of(cls, encodings: list[Any], first: int = 0, types: bool = True, keep: bool = False) -> Tokens:
        """Of a tokenizer's encodings; their type ids only where `types`."""
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        total = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64, total)
        type_ids = None
        if types:
            type_ids = np.fromiter(chain.from_iterable(encoding.type_ids for encoding in encodings), np.int64, total)
        return cls(first, ids, type_ids, lengths, encodings if keep else None)

    @property
    def texts(self) -> int:
        """How many texts there are."""
        return len(self.lengths) if self.owners is None else int(self.owners[-1]) + 1

    def places(self, rows: np.ndarray) -> np.ndarray | slice:
        """Where the tokens of the texts `rows` are, in the order of `rows`."""
        if len(rows) == 1:  # the rest takes as long as a small model does of a short text
            begin = int(self.lengths[: rows[0]].sum())
            return slice(begin, begin + int(self.lengths[rows[0]]))
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        begins = np.cumsum(self.lengths) - self.lengths
        return np.repeat(begins[rows] - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def token_batches(
    lengths: Sequence[int], max_tokens: int, max_texts: int | None = None, max_padding: int | None = None
) -> Iterator[np.ndarray]:
    """Indices of `lengths` in batches, longest texts first.

    A batch holds texts of neighbouring lengths, so that one long text pads no short ones, and at most `max_tokens`
    tokens with its padding (a longer text is a batch of its own), of these `max_padding` of padding, and `max_texts`
    texts.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    ordered = np.maximum(lengths, 1)[order]
    start = 0
    while start < len(order):
        longest = int(ordered[start])
        count = max(1, max_tokens // longest)
        if max_texts is not None:
            count = min(count, max_texts)
        if max_padding is not None:
            padding = np.cumsum(longest - ordered[start : start + count])
            count = max(1, int(np.searchsorted(padding, max_padding, side="right")))
        yield order[start : start + count]
        start += count


def ragged_batches(lengths: Sequence[int], max_tokens: int, max_texts: int | None = None) -> Iterator[np.ndarray]:
    """As `token_batches`, for models that compute no padding: only real tokens count, and batches are of like size."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    ends = np.cumsum(np.maximum(lengths, 1)[order])
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        left = int(ends[-1]) - before
        # As many batches as it takes, and each its share: a small one at the end would leave a device idle.
        share = -(-left // max(1, -(-left // max_tokens)))
        reach = int(np.searchsorted(ends, before + share, side="left")) + 1
        if reach - 1 > start and (reach > len(ends) or int(ends[reach - 1]) - before > max_tokens):
            reach -= 1
        stop = max(start + 1, min(reach, len(order)))
        if max_texts is not None:
            stop = min(stop, start + max_texts)
        yield order[start:stop]
        start = stop


def padded(values: np.ndarray, lengths: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    """[N, length, ...]: of values [T, ...], one text after the other, each text in a row of its own, then `fill`."""
    made = np.full((len(lengths), length, *values.shape[1:]), fill, dtype=values.dtype)
    made[np.arange(length) < lengths[:, None]] = values
    return made
