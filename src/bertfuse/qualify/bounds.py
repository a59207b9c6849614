"""The oracle with an error bound beside every number: the op's body, run on pairs.

How far a right kernel may be from the float64 result depends on the data: LayerNorm divides the product's rounding by
the row's deviation, softmax turns an error of a score into a factor. The bounds are first order, and take roundings for
independent: CONFIDENCE standard deviations of a sum. Where the first order says nothing (a deviation no larger than its
own error, a sum that overflows the dtype) the bound is infinite and whatever the kernel answers is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bertfuse.graph_rewrite.dialect.reference import MASKED_SCORE, Reference, oracle
from bertfuse.graph_rewrite.ops import PACKING_OPS
from bertfuse.graph_rewrite.ops.activations import ACTIVATIONS, GELUS

from . import packed
from .number import Number
from .problem import WRITING, Problem
from .quantized import QuantizedBounds, written
from .tolerances import LARGEST, ROUNDING, SUBNORMAL, TOLERANCES

CONFIDENCE = 6.0
_FLOAT = ROUNDING["float32"].unit
_REFERENCE = Reference()
Matmul = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Bounds(QuantizedBounds):
    """The dialect on Numbers, for kernels that keep intermediate results in one dtype; `row` is one of ROUNDING.

    Raises nothing: what is not finite has an infinite bound.
    """

    def __init__(self, row: str, matmul: Matmul = np.matmul) -> None:
        self._matmul = matmul
        self._operand = ROUNDING[row].operand
        self._stored = ROUNDING[row].unit
        self._subnormal = SUBNORMAL[row]
        self._largest = LARGEST[row]

    def _rounded(self, value: np.ndarray, error: Any, times: float = 1.0) -> Number:
        """After `times` roundings to the dtype; what may overflow is unknown."""
        error = error + times * np.maximum(self._stored * np.abs(value), self._subnormal)
        return Number(value, np.where(np.abs(value) + error < self._largest, error, np.inf))

    def linear(self, x: Number, weight: Number, bias: Number | None, residual: Number | None = None) -> Number:
        product, k = self._matmul(x.value, weight.value.T), x.value.shape[-1]
        # The root of the sum of the squares of the terms: how large partial sums are, whatever cancels in the end.
        squares = (np.square(tensor.value, dtype=np.float32) for tensor in (x, weight))
        terms = np.sqrt(self._matmul(next(squares), next(squares).T))
        steps = math.sqrt(max(1, k))
        error = _FLOAT * (CONFIDENCE / 2 * steps * terms + steps * np.abs(product))
        error += (CONFIDENCE * self._operand + 3 * self._stored) * terms
        return self.affine(Number(product, error), bias, residual)

    def affine(self, product: Number, bias: Number | None, residual: Number | None) -> Number:
        value = product.value if bias is None else product.value + bias.value
        y = self._rounded(value, product.error + self._stored * np.abs(product.value), 2)
        return y if residual is None else self.add(y, residual)

    def add(self, a: Number, b: Number) -> Number:
        return self._rounded(a.value + b.value, np.asarray(a.error) + b.error, 2)

    def gelu(self, x: Number, approximate: str) -> Number:
        return self.activation(x, GELUS[approximate])

    def activation(self, x: Number, kind: str) -> Number:
        value = _REFERENCE.activation(x.value, kind)
        slope = ACTIVATIONS[kind].slope(np.abs(x.value) + x.error)
        return self._rounded(value, slope * np.asarray(x.error) + 4 * _FLOAT * np.abs(x.value), 2)

    def halves(self, x: Number) -> tuple[Number, ...]:
        errors = _REFERENCE.halves(np.broadcast_to(x.error, x.value.shape))
        return tuple(Number(value, error) for value, error in zip(_REFERENCE.halves(x.value), errors, strict=True))

    def multiply(self, a: Number, b: Number) -> Number:
        error = np.abs(a.value) * b.error + np.abs(b.value) * a.error + np.asarray(a.error) * b.error
        return self._rounded(a.value * b.value, error)

    def layer_norm(self, x: Number, gamma: Number, beta: Number | None, epsilon: float) -> Number:
        shift = 0.0 if beta is None else beta.value
        value = _REFERENCE.layer_norm(x.value, gamma.value, shift, epsilon)
        deviation = np.sqrt(x.value.var(axis=-1, keepdims=True) + epsilon)
        error = np.broadcast_to(x.error, x.value.shape) + 4 * _FLOAT * np.abs(x.value)
        mean_error = np.sqrt(np.mean(np.square(error), axis=-1, keepdims=True))
        relative = mean_error / deviation
        normal = np.abs(value - shift)  # times gamma
        first_order = np.abs(gamma.value) / deviation * (error + mean_error) + normal * relative
        known = np.where(relative < 0.25, first_order / (1 - np.minimum(relative, 0.25)), np.inf)
        return self._rounded(value, known + 8 * _FLOAT * normal + self._stored * normal, 2)

    def embedding(self, table: Number, ids: Number) -> Number:
        return Number(table.value[ids.value])

    def positions(self, ids: Number) -> Number:
        return Number(_REFERENCE.positions(ids.value))

    def of_one_shape(self, mask: Number, x: Number) -> Number:
        return mask

    def split_heads(self, qkv: Number, num_heads: int, mask: Number | None = None) -> tuple[Number, ...]:
        errors = np.broadcast_to(qkv.error, qkv.value.shape)
        pairs = zip(
            _REFERENCE.split_heads(qkv.value, num_heads), _REFERENCE.split_heads(errors, num_heads), strict=True
        )
        return tuple(Number(value, error) for value, error in pairs)

    def split_grouped_heads(self, qkv: Number, num_heads: int, kv_num_heads: int) -> tuple[Number, ...]:
        errors = np.broadcast_to(qkv.error, qkv.value.shape)
        parts = (_REFERENCE.split_grouped_heads(array, num_heads, kv_num_heads) for array in (qkv.value, errors))
        return tuple(Number(value, error) for value, error in zip(*parts, strict=True))

    def rms_norm(self, x: Number, gamma: Number, epsilon: float) -> Number:
        value = _REFERENCE.rms_norm(x.value, gamma.value, epsilon)
        deviation = np.sqrt(np.mean(np.square(x.value), axis=-1, keepdims=True) + epsilon)
        error = np.broadcast_to(x.error, x.value.shape) + 2 * _FLOAT * np.abs(x.value)
        relative = np.sqrt(np.mean(np.square(error), axis=-1, keepdims=True)) / deviation
        first_order = np.abs(gamma.value) / deviation * error + np.abs(value) * relative
        known = np.where(relative < 0.25, first_order / (1 - np.minimum(relative, 0.25)), np.inf)
        return self._rounded(value, known + 8 * _FLOAT * np.abs(value))

    def offset(self, x: Number, number: float) -> Number:
        return Number(x.value + number, x.error)  # gammas: what the sum rounds is within rms_norm's bound

    def only_row(self, table: Number) -> Number:
        return Number(table.value[0])

    def rotary(self, x: Number, cos: Number, sin: Number, pairs: str) -> Number:
        value = _REFERENCE.rotary(x.value, cos.value, sin.value, pairs)
        # |x cos| + |y sin|: both by rotating magnitudes, the sines negated for one of each pair.
        sizes = (np.broadcast_to(x.error, x.value.shape) + 2 * _FLOAT * np.abs(x.value), np.abs(cos.value))
        turned = [_REFERENCE.rotary(sizes[0], sizes[1], sign * np.abs(sin.value), pairs) for sign in (1, -1)]
        return self._rounded(value, np.maximum(*turned))

    def rows_at(self, table: Number, places: Number) -> Number:
        return Number(_REFERENCE.rows_at(table.value, places.value))

    def columns_of(self, places: Number, table: Number) -> Number:
        return Number(_REFERENCE.columns_of(places.value, table.value))

    def rotary_tables(
        self, tokens: Number, frequencies: Number, like: Number, angle: str, scaling: float
    ) -> tuple[Number, ...]:
        values = _REFERENCE.rotary_tables(tokens.value, frequencies.value, like.value, angle, scaling)
        # Angles are rounded as here; a cosine is off by two units in the last place.
        return tuple(self._rounded(value, 4 * _FLOAT * (abs(scaling) + np.abs(value))) for value in values)

    def join_heads(self, *parts: Number) -> Number:
        values = [part.value for part in parts]
        errors = [np.broadcast_to(part.error, part.value.shape) for part in parts]
        return Number(_REFERENCE.join_heads(*values), _REFERENCE.join_heads(*errors))

    def attention(self, q: Number, k: Number, v: Number, mask: Number | None, scale: float) -> Number:
        return self._attention(q, k, v, mask, scale, None, None)

    def attention_variant(
        self,
        q: Number,
        k: Number,
        v: Number,
        mask: Number | None,
        bias: Number | None,
        bias_left: int,
        positions: Number | None,
        positions_left: int,
        scale: float,
        left: int,
        right: int,
        hidden: str,
    ) -> Number:
        k, v = (
            Number(*(np.repeat(a, q.value.shape[1] // t.value.shape[1], axis=1) for a in (t.value, t.error)))
            for t in (k, v)
        )
        places = np.arange(q.value.shape[2])
        distance = places[None, :] - places[:, None]
        window = ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))
        table = None if bias is None else bias.value[0]
        added = None if table is None else table[:, np.clip(distance + bias_left, 0, table.shape[1] - 1)]
        row = np.clip(distance + positions_left, 0, positions.value.shape[2] - 1) if positions is not None else None
        by_row = None if positions is None else (positions.value, row)
        return self._attention(q, k, v, mask, scale, window[None], added, by_row, hidden == "alike")

    def _attention(
        self,
        q: Number,
        k: Number,
        v: Number,
        mask: Number | None,
        scale: float,
        window: Any,
        added: Any,
        by_row: Any = None,
        alike: bool = False,
    ) -> Number:
        batch, heads, sequence, size = q.value.shape
        value, error = np.empty((2, batch, heads, sequence, size))
        for b in range(batch):  # one at a time: [heads, S, S] of float64 is what memory has to hold
            seen = None if mask is None else mask.value[b][None, None, :] != 0
            if window is not None:
                seen = window if seen is None else window & seen
            if alike and mask is not None:
                seen = seen & (mask.value[b][None, :, None] != 0)
            errors = [np.asarray(t.error)[b] for t in (q, k, v)]
            if window is None:
                errors[:2] = [None, None]  # one rounding
            value[b], error[b] = self._attend(*(t.value[b] for t in (q, k, v)), errors, seen, scale, added, by_row)
        merged = [t.transpose(0, 2, 1, 3).reshape(batch, sequence, heads * size) for t in (value, error)]
        return self._rounded(merged[0], merged[1], 2)

    def _attend(
        self, q: Any, k: Any, v: Any, errors: Any, seen: Any, scale: float, added: Any, by_row: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        if not q.size:
            return q, q
        scores = self._matmul(q, k.swapaxes(-1, -2)) * scale
        # Of a score: the elements of q and k are rounded, each on its own, and once more on their way; the sum is of
        # float32.
        squares = [np.square(array, dtype=np.float32) for array in (q, k)]
        terms = scale * np.sqrt(self._matmul(squares[0], squares[1].swapaxes(-1, -2)))
        moved = CONFIDENCE * (self._stored + self._operand + 2 * _FLOAT * math.sqrt(q.shape[-1])) * terms
        moved += 4 * _FLOAT * np.abs(scores)
        if errors[0] is not None:  # of what was done to heads before
            by_q = self._matmul(np.square(errors[0]), np.square(k).swapaxes(-1, -2))
            by_k = self._matmul(np.square(q), np.square(errors[1]).swapaxes(-1, -2))
            moved = moved + CONFIDENCE / 2 * scale * np.sqrt(by_q + by_k)
        if by_row is not None:
            more, moves = self._by_position(q, k, errors[:2], by_row, scale)
            scores, moved = scores + more, moved + moves + 8 * _FLOAT * (np.abs(scores) + np.abs(more))
        if added is not None:
            scores = scores + added
            moved = moved + 4 * _FLOAT * (np.abs(scores) + np.abs(added))
        if seen is not None:
            scores, moved = np.where(seen, scores, MASKED_SCORE), np.where(seen, moved, 0)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        value = self._matmul(weights, v)
        shift = _weight_shift(scores, moved)
        total, first, second = shift.sum(axis=-1, keepdims=True), self._matmul(shift, v), self._matmul(shift, v * v)
        # The sum of shift |v - value| by Cauchy and Schwarz; weights that sum up to 1 shift by 2 together, and no mean
        # leaves V's range.
        square = second - 2 * value * first + np.square(value) * total
        range_left = np.maximum(v.max(axis=-2, keepdims=True) - value, value - v.min(axis=-2, keepdims=True))
        error = np.minimum(np.sqrt(np.minimum(total, 2) * np.maximum(square, 0)), range_left)
        error += 2 * (self._stored + self._operand) * np.sqrt(self._matmul(weights, v * v) + second)
        return value, error + self._matmul(weights + shift, errors[2])

    def _by_position(self, q: Any, k: Any, errors: Any, by_row: Any, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """What vectors by distance add to scores, and how far that may be off: as of scores, and rounded once more."""
        tables, row = by_row
        total, squares = 0.0, 0.0
        rounding = CONFIDENCE * (self._stored + self._operand + 2 * _FLOAT * math.sqrt(q.shape[-1]))
        for x, error, table, of_keys in ((q, errors[0], tables[0], False), (k, errors[1], tables[1], True)):
            index = np.broadcast_to(row.T if of_keys else row, (len(x), *row.shape))
            products = [(x, table), (np.square(x), np.square(table)), (np.square(error), np.square(table))]
            picked = [np.take_along_axis(self._matmul(a, b.swapaxes(-1, -2)), index, -1) for a, b in products]
            own, terms, moved = (p.swapaxes(-1, -2) if of_keys else p for p in picked)
            total = total + own
            squares = squares + np.square(rounding) * terms + np.square(CONFIDENCE / 2) * moved
        return total * scale, scale * (np.sqrt(squares) + 2 * (self._stored + self._operand) * np.abs(total))


def _weight_shift(scores: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """How far softmax's weights may shift where each score moves by at most that much, whatever they are.

    A weight that is 0 in any dtype may become the largest, by logits of thousands that are rounded by a hundred.
    """
    most, least = _log_sum_exp(scores + moved), _log_sum_exp(scores - moved)
    total = _log_sum_exp(scores)
    weights = np.exp(scores - total)
    grown = np.exp(np.minimum(scores + moved - least, 0.0)) - weights  # moved up, all others down
    shrunk = weights * -np.expm1(-moved - (most - total))
    return np.fmax(np.fmax(grown, shrunk), 0.0)


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    largest = x.max(axis=-1, keepdims=True)
    return largest + np.log(np.exp(x - largest).sum(axis=-1, keepdims=True))


def expected(
    problem: Problem, inputs: dict[str, np.ndarray | None], matmul: Matmul = np.matmul, device: str = "cpu"
) -> list[Number]:
    """Each output in float64 and how far from it is allowed: the table's tolerance, or the bound where that is more.

    `matmul` makes the products, of float64 and of float32 arrays; `device` runs the kernel.
    """
    y, *others = _expected(problem, inputs, matmul, device)
    if not problem.writes:
        return [y, *others]
    y, *in_8_bits = written(problem, inputs, y)
    return [y, *others, *in_8_bits]


def _expected(problem: Problem, inputs: packed.Inputs, matmul: Matmul, device: str) -> list[Number]:
    if problem.op in PACKING_OPS:  # which compute nothing: every bit is known
        return [Number(array, np.finfo(np.float64).tiny) for array in oracle(problem.op, dict(inputs))]
    if problem.packed is None:
        return _computed(problem, inputs, matmul, device)
    parts = [(rows, _computed(problem, given, matmul, device)) for rows, given in packed.plain_calls(problem, inputs)]
    found = []
    for index, tensor in enumerate(problem.spec.outputs):
        value, error = np.zeros((2, sum(int((rows >= 0).sum()) for rows, _ in parts), problem.shape(tensor)[-1]))
        for rows, numbers in parts:
            there, shape = rows >= 0, (len(rows), value.shape[-1])
            value[rows[there]] = numbers[index].value.reshape(shape)[there]
            error[rows[there]] = np.asarray(numbers[index].error).reshape(shape)[there]
        found.append(Number(value, error))
    return found


def _computed(problem: Problem, inputs: packed.Inputs, matmul: Matmul, device: str) -> list[Number]:
    row = "tf32" if problem.tf32 and problem.dtype == "float32" else problem.dtype
    numbers = []
    for tensor in problem.spec.inputs:
        array = inputs[tensor.name] if tensor.name not in WRITING else None
        is_float = tensor.is_float or tensor.dtype in ("S", "Q")
        wide = None if array is None else array.astype(np.float64 if is_float else np.int64)
        numbers.append(None if wide is None else Number(wide))
    attributes = {attr.name: problem.attribute(attr.name) for attr in problem.spec.attributes}
    bounds = Bounds(row, matmul)
    bounds.weights, bounds.device = problem.weights, device
    bounds.rounds_parts = device != "cpu" and any(tensor.name == "gamma" for tensor in problem.spec.inputs)
    with np.errstate(all="ignore"):
        found = problem.spec.body(bounds, *numbers, **attributes)
        outputs = list(found) if isinstance(found, tuple) else [found]
        tolerance = TOLERANCES.get((problem.op, row)) or TOLERANCES[problem.op, problem.dtype]
        for output in outputs:
            table = tolerance.atol + tolerance.rtol * np.abs(output.value)
            output.error = np.fmax(table, output.error)
            if bounds.not_finite is not None:
                output.error = np.where(bounds.not_finite[..., None], 0.0, output.error)
    return outputs
