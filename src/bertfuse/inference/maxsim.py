"""Scores of late interaction, of vectors of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROWS = 1 << 16  # of documents, which are scored at once


def maxsim(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray], mean: bool = False) -> np.ndarray:
    """float32 [N, M]: for each token of a query the largest product with a document's tokens, and of these the sum.

    A document without tokens scores 0.
    """
    queries = [np.asarray(one, np.float32) for one in queries]
    documents = [np.asarray(one, np.float32) for one in documents]
    made = np.zeros((len(queries), len(documents)), np.float32)
    lengths = np.array([len(one) for one in documents], np.int64)
    there = np.flatnonzero(lengths)
    first = 0
    while first < len(there):
        held = np.cumsum(lengths[there[first:]])
        these = there[first : first + max(1, int(np.searchsorted(held, _ROWS, side="right")))]
        rows = np.concatenate([documents[at] for at in these])
        starts = np.cumsum(lengths[these]) - lengths[these]
        for row, query in enumerate(queries):
            if len(query):
                best = np.maximum.reduceat(query @ rows.T, starts, axis=1)
                made[row, these] = best.mean(axis=0) if mean else best.sum(axis=0)
        first += len(these)
    return made
