"""Batches bound tokens, keep like lengths together, and lose no text."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from bertfuse.inference.batches import padded, token_batches


@given(
    lengths=some.lists(some.integers(0, 600), max_size=200),
    tokens=some.integers(1, 2000),
    texts=some.none() | some.integers(1, 40),
)
@settings(deadline=None)
def test_every_text_is_in_one_batch_of_bounded_size(lengths: list[int], tokens: int, texts: int | None) -> None:
    batches = list(token_batches(lengths, tokens, texts))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(1, *(lengths[index] for index in batch))
        assert len(batch) == 1 or longest * len(batch) <= tokens
        assert texts is None or len(batch) <= texts
    ends = [(max(lengths[i] for i in batch), min(lengths[i] for i in batch)) for batch in batches]
    assert all(before[1] >= after[0] for before, after in itertools.pairwise(ends))


def test_one_long_text_pads_no_short_ones() -> None:
    lengths = [5] * 200 + [512]
    computed = sum(max(lengths[i] for i in batch) * len(batch) for batch in token_batches(lengths, 512))
    assert computed == sum(lengths)


def test_padding() -> None:
    np.testing.assert_array_equal(padded([[1, 2], [], [3]], 3, 9), [[1, 2, 9], [9, 9, 9], [3, 9, 9]])
