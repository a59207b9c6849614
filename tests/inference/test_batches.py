"""Batches bound tokens, keep like lengths together, and lose no text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bertfuse.inference.batches import Tokens, padded, ragged_batches, token_batches
from bertfuse.inference.prefetch import prefetch


@given(
    lengths=some.lists(some.integers(0, 600), max_size=200),
    tokens=some.integers(1, 2000),
    texts=some.none() | some.integers(1, 40),
    padding=some.none() | some.integers(0, 1000),
)
@settings(deadline=None)
def test_every_text_is_in_one_batch_of_bounded_size(
    lengths: list[int], tokens: int, texts: int | None, padding: int | None
) -> None:
    batches = list(token_batches(lengths, tokens, texts, padding))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(1, *(lengths[index] for index in batch))
        assert len(batch) == 1 or longest * len(batch) <= tokens
        assert texts is None or len(batch) <= texts
        assert padding is None or longest * len(batch) - sum(max(1, lengths[index]) for index in batch) <= padding
    ends = [(max(lengths[i] for i in batch), min(lengths[i] for i in batch)) for batch in batches]
    assert all(before[1] >= after[0] for before, after in itertools.pairwise(ends))


def test_one_long_text_pads_no_short_ones() -> None:
    lengths = [5] * 200 + [512]
    computed = sum(max(lengths[i] for i in batch) * len(batch) for batch in token_batches(lengths, 512))
    assert computed == sum(lengths)


@given(
    lengths=some.lists(some.integers(0, 600), max_size=200),
    tokens=some.integers(1, 2000),
    texts=some.none() | some.integers(1, 40),
)
@settings(deadline=None)
def test_without_padding_only_real_tokens_count(lengths: list[int], tokens: int, texts: int | None) -> None:
    batches = list(ragged_batches(lengths, tokens, texts))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    sizes = [sum(lengths[i] for i in batch) for batch in batches]
    assert all(len(batch) == 1 or size <= tokens for batch, size in zip(batches, sizes, strict=True))
    assert texts is None or all(len(batch) <= texts for batch in batches)
    if texts is None and lengths and max(lengths) <= tokens:
        # Any two neighbours together are more than one batch could hold, but for the share's rounding.
        assert len(batches) <= 2 * -(-sum(max(1, length) for length in lengths) // tokens) + 1


def test_batches_without_padding_are_of_like_size() -> None:
    sizes = [sum([10] * len(batch)) for batch in ragged_batches([10] * 105, 500)]
    assert sizes == [350, 350, 350]


def test_padding() -> None:
    values, lengths = np.array([1, 2, 3]), np.array([2, 0, 1])
    np.testing.assert_array_equal(padded(values, lengths, 3, 9), [[1, 2, 9], [9, 9, 9], [3, 9, 9]])
    rows = padded(np.array([[1.0, 2], [3, 4], [5, 6]]), lengths, 2)
    np.testing.assert_array_equal(rows, [[[1, 2], [3, 4]], [[0, 0], [0, 0]], [[5, 6], [0, 0]]])


def test_places_of_texts_in_any_order() -> None:
    tokens = Tokens(0, np.array([7, 8, 9, 4, 5]), None, np.array([2, 0, 1, 2]))
    assert tokens.ids[tokens.places(np.array([3, 0, 1]))].tolist() == [4, 5, 7, 8]
    alone = [tokens.ids[tokens.places(np.array([row]))].tolist() for row in range(4)]
    assert alone == [[7, 8], [], [9], [4, 5]]
    assert tokens.ids[tokens.places(np.array([], np.int64))].tolist() == []


def test_prefetching_is_in_order_and_bounded() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for item in range(50):
            drawn.append(item)
            yield item

    with ThreadPoolExecutor(4) as pool:
        for taken, result in enumerate(prefetch(pool, lambda item: item * item, items(), 3)):
            assert result == taken * taken and len(drawn) <= taken + 3
    with ThreadPoolExecutor(2) as pool, pytest.raises(ZeroDivisionError):
        list(prefetch(pool, lambda item: 1 // (item - 7), range(1000), 3))
