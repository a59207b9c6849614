"""Weights in 8 bits: scales of their rows, and rounding, each number for itself or so that errors make up for others'.

Rounding with compensation is GPTQ (Frantar et al. 2022, arXiv:2210.17323): columns are rounded one after the other, and
the columns still to come are moved so that the product changes least. With moments H = E[x xᵀ] of the layer's inputs
and H⁻¹ = Uᵀ U, U upper triangular, column j's error e = (w_j - q_j) / U_jj moves column k > j by -e U_jk.
"""

from __future__ import annotations

import numpy as np

from .dialect.quantized import INT8, LARGEST, NUMPY, SMALLEST

# Of a weight with one scale: what becomes the largest number of the type, over the largest magnitude.
_CUTS = (1.0, 0.85, 0.7, 0.55)
# What is added to the moments' diagonal, over its mean: GPTQ's own. 0.1 and 1 left MiniLM's layers larger errors.
_DAMPING = 0.01
# Columns whose errors reach the rest of the weight as one product.
_BLOCK = 64


class Compensation:
    """Rounds weights [N, K] whose inputs have these moments [K, K]. `of` gives None where moments say nothing."""

    def __init__(self, moments: np.ndarray) -> None:
        diagonal = np.diag(moments).astype(np.float64)
        # Columns of large inputs first: their errors can go to all others.
        self._order = np.argsort(-diagonal, kind="stable")
        damped = moments.astype(np.float64)[np.ix_(self._order, self._order)]
        damped[np.diag_indices_from(damped)] += _DAMPING * diagonal.mean()
        # From the last row and column on H = R Rᵀ has an upper triangular factor, too, and U is its inverse.
        self._upper = _inverse_of_lower(np.linalg.cholesky(damped[::-1, ::-1]))[::-1, ::-1]
        self._moments = moments.astype(np.float32)

    @classmethod
    def of(cls, moments: np.ndarray | None) -> Compensation | None:
        if moments is None or not np.isfinite(moments).all() or np.trace(moments) <= 0:
            return None
        return cls(moments)

    def rounded(self, scaled: np.ndarray, data_type: int) -> np.ndarray:
        left, upper = np.ascontiguousarray(scaled.T[self._order], np.float64), self._upper  # a row for each column
        made = np.empty(left.shape, NUMPY[data_type])
        for begin in range(0, len(left), _BLOCK):
            block = left[begin : begin + _BLOCK]
            end = begin + len(block)
            errors = np.empty_like(block)
            for i, column in enumerate(range(begin, end)):
                made[column] = _nearest(block[i].astype(np.float32), data_type)
                errors[i] = (block[i] - made[column].astype(np.float64)) / upper[column, column]
                block[i + 1 :] -= np.outer(upper[column, column + 1 : end], errors[i])
            left[end:] -= upper[begin:end, end:].T @ errors
        result = np.empty(scaled.shape, made.dtype)
        result[:, self._order] = made.T
        return result

    def square_error(self, left: np.ndarray) -> float:
        """Of products with weights that are off by `left`, in the mean of the inputs but for a factor."""
        return float(np.vdot(left, left @ self._moments))


def _inverse_of_lower(matrix: np.ndarray) -> np.ndarray:
    """Of a triangular matrix, by halves."""
    half = len(matrix) // 2
    if half < _BLOCK:
        return np.linalg.inv(matrix)
    first, last = _inverse_of_lower(matrix[:half, :half]), _inverse_of_lower(matrix[half:, half:])
    inverse = np.zeros_like(matrix)
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[half:, :half] = -last @ (matrix[half:, :half] @ first)
    return inverse


def row_scales(
    weight: np.ndarray, data_type: int = INT8, parts: int = 0, compensation: Compensation | None = None
) -> np.ndarray:
    """float32 [N]: the largest magnitude of each row over the largest number of the type, never 0.

    With `parts` the rows of each of so many share one scale: of a few the one with the least squared error, of the
    product where there is compensation.
    """
    largest = np.abs(weight).max(axis=1)
    if parts:
        made = [np.full(len(part), _best_magnitude(part, data_type, compensation)) for part in np.split(weight, parts)]
        largest = np.concatenate(made).astype(np.float32)
    return (np.maximum(largest, np.float32(SMALLEST)) / np.float32(LARGEST[data_type])).astype(np.float32)


def _best_magnitude(weight: np.ndarray, data_type: int, compensation: Compensation | None) -> np.float32:
    largest = np.maximum(np.abs(weight).max(initial=0), np.float32(SMALLEST))
    if data_type != INT8:  # rounding is relative to each number
        return largest

    def error(magnitude: np.float32) -> float:
        scale = magnitude / np.float32(LARGEST[INT8])
        scales = np.full(len(weight), scale, np.float32)
        left = rounded(weight, scales, data_type, compensation).astype(np.float32) * scale - weight
        return float(np.square(left).sum()) if compensation is None else compensation.square_error(left)

    return min((largest * np.float32(cut) for cut in _CUTS), key=error)


def rounded(
    weight: np.ndarray, scales: np.ndarray, data_type: int = INT8, compensation: Compensation | None = None
) -> np.ndarray:
    """[N, K] in the type: the weight in multiples of its rows' scales."""
    scaled = weight / scales[:, None]
    return _nearest(scaled, data_type) if compensation is None else compensation.rounded(scaled, data_type)


def _nearest(scaled: np.ndarray, data_type: int) -> np.ndarray:
    scaled = np.rint(scaled) if data_type == INT8 else scaled
    return np.clip(scaled, -LARGEST[data_type], LARGEST[data_type]).astype(NUMPY[data_type])
