"""Products of 8-bit operands and results in 8 bits, with an error bound beside every number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bertfuse.graph_rewrite.dialect.quantized import FLOAT8, INT8, LARGEST, NUMPY, SMALLEST, quantized_rows

from .number import Number
from .problem import Problem, may_leave_y
from .sums import IN_FLOAT32, PART, cut_off

_FLOAT = 2.0**-24
ELEMENT = {"int8": INT8, "float8e4m3fn": FLOAT8}
TYPES = {name: NUMPY[element] for name, element in ELEMENT.items()}


class QuantizedBounds:
    """What bounds.Bounds has for the dialect's quantised operations.

    x is rounded as the rule says, bit by bit, so that no error comes of it: a kernel that rounds otherwise is wrong.

    Attributes:
        weights: the operands' type.
        device: "cpu" sums products of 8-bit floats in float32, tensor cores do not.
        rounds_parts: sums of parts of k may be rounded to the results' type before they are added up.
        not_finite: which rows have NaN for a scale, and so NaN for a result.
    """

    weights: str = ""
    device: str = "cpu"
    rounds_parts: bool = False
    not_finite: np.ndarray | None = None
    _matmul: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def quantized_linear(self, x, weight, weight_scale, x_smooth, x_scale, bias, residual=None, x_zero=None):
        given = (None if number is None else number.value for number in (x_smooth, x_scale, x_zero))
        rows, scale = quantized_rows(x.value, TYPES[self.weights], *given)
        if x_scale is None:
            self.not_finite = np.isnan(scale[..., 0])
        return self._scaled(rows.astype(np.float64), scale, 0.0, weight, weight_scale, bias, residual)

    def linear_of_quantized(self, x, row_scale, weight, weight_scale, bias, residual=None, compensation=None):
        self.not_finite = np.isnan(row_scale.value)
        taken_off = 0.0 if compensation is None else compensation.value
        return self._scaled(x.value, row_scale.value[..., None], taken_off, weight, weight_scale, bias, residual)

    def restored_rows(self, numbers, row_scale, factor):
        value = numbers.value * row_scale.value[..., None] * (1.0 if factor is None else factor.value)
        return Number(value, 2 * _FLOAT * np.abs(value))

    def _scaled(self, rows, row_scale, taken_off, weight, weight_scale, bias, residual):
        product = self._matmul(rows, weight.value.T)
        error = IN_FLOAT32 * self._matmul(np.abs(rows), np.abs(weight.value).T)
        if self.weights == "float8e4m3fn" and self.device != "cpu":
            # How far sums are from what all tactics have: a test of the GPU's knows those that promote theirs.
            error = error + cut_off(rows.shape[-1], short=True) * self._largest_sum(rows, weight.value)
        if self.rounds_parts:
            # Sums of parts of k, one of them with all that is taken off.
            terms = np.sqrt(self._matmul(np.square(rows), np.square(weight.value.T)))
            error = error + self._stored * (3 * terms + np.abs(taken_off))
        scales = row_scale * weight_scale.value
        y, error = (product - taken_off) * scales, (error + IN_FLOAT32 * np.abs(taken_off)) * np.abs(scales)
        return self.affine(Number(y, error), bias, residual)

    def _largest_sum(self, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The largest magnitude that a sum may have on its way, parts of it in whatever order."""
        total, largest = 0.0, 0.0
        for first in range(0, rows.shape[-1], PART):
            part = slice(first, first + PART)
            total = total + self._matmul(rows[..., part], weight[:, part].T)
            largest = np.maximum(largest, np.abs(total))
        one = np.abs(rows).max(axis=-1, keepdims=True, initial=0) * np.abs(weight).max(axis=-1, initial=0)
        return 1.5 * largest + one


def written(problem: Problem, inputs: Mapping[str, np.ndarray | None], y: Number) -> list[Number]:
    """y, its numbers in 8 bits, and the scale of each of its rows."""
    integers = problem.writes == "int8"
    largest = LARGEST[ELEMENT[problem.writes]]
    smooth, given = inputs["y_smooth"], inputs.get("y_tensor_scale")
    factor = 1.0 if smooth is None else smooth.astype(np.float64)[0]
    with np.errstate(all="ignore"):
        value, error = y.value * factor, np.broadcast_to(y.error * factor, y.value.shape)
        if given is not None:
            scale, scale_error, zero, lowest = float(given), 0.0, float(inputs["y_zero_point"]), -largest - integers
        else:
            magnitude = np.abs(value).max(axis=-1, keepdims=True, initial=0)
            scale = np.maximum(magnitude, SMALLEST) / largest
            scale_error = error.max(axis=-1, keepdims=True, initial=0) / largest + 4 * _FLOAT * scale
            zero, lowest = 0.0, -largest
        value = value / scale
        # Of the quotient, where that is known to be one, and of two multiplications in float32.
        relative = np.where(scale_error < 0.25 * scale, scale_error / scale, np.inf)
        error = (error / scale + np.abs(value) * relative) / (1 - np.minimum(relative, 0.25)) + 1e-6 * np.abs(value)
        # Half of the last place: of e4m3 its magnitude's sixteenth at most, and of numbers near 0 the least one.
        half = 0.5 if integers else np.maximum((np.abs(value) + error) / 16, 2.0**-10)
        ends = (lowest, largest)
        numbers = Number(np.clip(value + zero, *ends), np.where(np.isnan(value), np.nan, error + half))
    must_be_nan = (~np.isfinite(y.value) & (y.error == 0)).any(axis=-1)
    y = Number(np.full(y.value.shape, np.nan), np.nan) if may_leave_y(problem) else y
    if given is not None:
        return [y, numbers, Number(np.full(y.value.shape[:-1], scale), np.finfo(np.float64).tiny)]
    scale, scale_error = scale[..., 0], np.broadcast_to(scale_error, scale.shape)[..., 0]
    return [y, numbers, Number(np.where(must_be_nan, np.nan, scale), np.where(must_be_nan, 0.0, scale_error))]
