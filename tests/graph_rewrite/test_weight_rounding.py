"""Weights in 8 bits whose errors make up for each other."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from bertfuse.graph_rewrite.dialect.quantized import FLOAT8, INT8, LARGEST, NUMPY
from bertfuse.graph_rewrite.weight_rounding import Compensation, rounded, row_scales

SEED = int(os.environ.get("BERTFUSE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))


def _alike(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Inputs [rows, columns] that a quarter as many numbers make up, and a little of their own."""
    few = rng.standard_normal((rows, max(1, columns // 4))) @ rng.standard_normal((max(1, columns // 4), columns))
    return (few + 0.05 * rng.standard_normal((rows, columns))).astype(np.float32)


@pytest.mark.parametrize("data_type", (INT8, FLOAT8), ids=("int8", "fp8"))
@pytest.mark.parametrize("parts", (0, 1, 3))
def test_products_are_closer(data_type: int, parts: int) -> None:
    """Of inputs whose columns hang together: on those that moments are of, and on others like them."""
    print(f"BERTFUSE_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    for _ in range(4):
        rows, columns = 3 * int(rng.integers(4, 20)), int(rng.integers(40, 200))
        weight = rng.standard_normal((rows, columns)).astype(np.float32) * np.exp(rng.normal(0, 0.5, (rows, 1)))
        weight = weight.astype(np.float32)
        x = _alike(rng, 1600, columns)
        compensation = Compensation.of(x[::2].T @ x[::2])
        errors = []
        for given in (None, compensation):
            scales = row_scales(weight, data_type, parts, given)
            assert scales.dtype == np.float32 and scales.shape == (rows,)
            assert not parts or len(np.unique(scales)) <= parts
            numbers = rounded(weight, scales, data_type, given)
            assert numbers.dtype == NUMPY[data_type]
            restored = numbers.astype(np.float32) * scales[:, None]
            assert np.abs(numbers.astype(np.float32)).max() <= LARGEST[data_type]
            errors.append(np.linalg.norm((restored - weight) @ x[1::2].T))
        assert errors[1] < 0.8 * errors[0], (rows, columns, errors)


@pytest.mark.parametrize("columns", (1, 2, 63, 128, 129, 300))
def test_as_gptq_has_it(columns: int) -> None:
    """Column by column, with U from the inverse of the moments, as the paper writes it."""
    print(f"BERTFUSE_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    weight, x = rng.standard_normal((9, columns)).astype(np.float32), _alike(rng, 2 * columns + 50, columns)
    moments, scales = x.T @ x, row_scales(weight)
    order = np.argsort(-np.diag(moments).astype(np.float64), kind="stable")
    damped = moments.astype(np.float64)[np.ix_(order, order)]
    damped += 0.01 * np.trace(damped) / columns * np.eye(columns)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    left, wanted = (weight / scales[:, None]).astype(np.float64)[:, order], np.empty((9, columns))
    for j in range(columns):
        wanted[:, order[j]] = np.clip(np.rint(left[:, j]), -127, 127)
        left[:, j:] -= np.outer((left[:, j] - wanted[:, order[j]]) / upper[j, j], upper[j, j:])
    found = rounded(weight, scales, INT8, Compensation.of(moments))
    # A number half way between two integers may fall to either side, and moves those after it.
    assert (found == wanted).all(axis=1).mean() > 0.7


def test_columns_that_do_not_hang_together() -> None:
    """Are rounded as without: then there is nothing that an error could be made up with."""
    print(f"BERTFUSE_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    weight = rng.standard_normal((7, 90)).astype(np.float32)
    scales = row_scales(weight)
    moments = np.diag(rng.random(90).astype(np.float32) + 0.01)
    np.testing.assert_array_equal(rounded(weight, scales, INT8, Compensation.of(moments)), rounded(weight, scales))


@pytest.mark.parametrize("moments", (None, np.zeros((5, 5)), np.full((5, 5), np.nan), np.full((5, 5), np.inf)))
def test_moments_that_say_nothing(moments: np.ndarray | None) -> None:
    assert Compensation.of(moments) is None


def test_inputs_of_one_row() -> None:
    """Moments of rank one, and columns that are always 0."""
    print(f"BERTFUSE_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    weight = rng.standard_normal((6, 33)).astype(np.float32)
    x = rng.standard_normal((1, 33)).astype(np.float32)
    x[:, ::4] = 0
    scales = row_scales(weight)
    error = [
        np.linalg.norm((rounded(weight, scales, INT8, given) * scales[:, None] - weight) @ x.T)
        for given in (None, Compensation.of(x.T @ x))
    ]
    assert error[1] <= error[0]
