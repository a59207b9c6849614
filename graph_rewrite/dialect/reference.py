"""The dialect in NumPy, float64: what every kernel and every ONNX function is tested against."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ..ops import OPS
from ..ops.activations import ACTIVATIONS
from .quantized import FLOAT8, INT8, QuantizedReference
from .quantized import NUMPY as QUANTIZED

# What a hidden key's score becomes. Finite, so that a row with every key hidden attends to all of them alike.
MASKED_SCORE = float(np.finfo(np.float32).min)

# erf by its Taylor series around the nearest point of a grid: to 2e-16, without a call for each element.
_STEP, _END = 1 / 512, 6.0  # from 6 on erf is 1 to float64
_GRID = np.arange(0, _END + _STEP, _STEP)
_ERF_AT = np.array([math.erf(point) for point in _GRID])
_SLOPE_AT = 2 / math.sqrt(math.pi) * np.exp(-(_GRID**2))


def _erf(x: np.ndarray) -> np.ndarray:
    size = np.minimum(np.abs(x), _END)
    nearest = np.nan_to_num(np.rint(size / _STEP)).astype(np.int64)
    a, d = _GRID[nearest], size - _GRID[nearest]
    # Derivatives of exp(-x²) at a, over their factorials: Hermite polynomials.
    series = (
        1 - a * d + (2 * a**2 - 1) * d**2 / 3 - (2 * a**3 - 3 * a) * d**3 / 6 + (4 * a**4 - 12 * a**2 + 3) * d**4 / 30
    )
    return np.copysign(_ERF_AT[nearest] + _SLOPE_AT[nearest] * d * series, x)


class Reference(QuantizedReference):
    """The dialect's ops on float64 arrays (see the package for shapes)."""

    def linear(self, x, weight, bias, residual=None):
        y = x @ weight.T if bias is None else x @ weight.T + bias
        return y if residual is None else y + residual

    def add(self, a, b):
        return a + b

    def gelu(self, x, approximate):
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))

    def layer_norm(self, x, gamma, beta, epsilon):
        centred = x - x.mean(axis=-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon) * gamma
        return y if beta is None else y + beta

    def embedding(self, table, ids):
        return table[ids]

    def positions(self, ids):
        return np.arange(ids.shape[1])[None, :]

    def split_heads(self, qkv, num_heads, mask=None):
        if mask is not None:
            self.of_one_shape(mask, qkv)
        batch, sequence, width = qkv.shape
        heads = qkv.reshape(batch, sequence, 3, num_heads, width // (3 * num_heads))
        return tuple(heads.transpose(2, 0, 3, 1, 4))

    def attention(self, q, k, v, mask, scale):
        scores = q @ k.swapaxes(-1, -2) * scale
        if mask is not None:
            scores = np.where(mask[:, None, None, :] != 0, scores, MASKED_SCORE)
        return self._context(scores, v)

    def _context(self, scores, v):
        if scores.size:
            scores = scores - scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        context = weights / weights.sum(axis=-1, keepdims=True) @ v
        batch, heads, sequence, size = context.shape
        return context.transpose(0, 2, 1, 3).reshape(batch, sequence, heads * size)

    def rms_norm(self, x, gamma, epsilon):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * gamma

    def offset(self, x, number):
        return x + number

    def only_row(self, table):
        return table[0]

    def halves(self, x):
        return np.split(x, 2, axis=-1)

    def activation(self, x, kind):
        return ACTIVATIONS[kind].numpy(self, x)

    def scaled_silu(self, x, factor):
        return x * 0.5 * (1 + np.tanh(0.5 * x * factor))  # as a hyperbolic tangent, which does not overflow

    def multiply(self, a, b):
        return a * b

    def split_grouped_heads(self, qkv, num_heads, kv_num_heads):
        batch, sequence, width = qkv.shape
        count = num_heads + 2 * kv_num_heads
        heads = qkv.reshape(batch, sequence, count, width // count).transpose(0, 2, 1, 3)
        return np.split(heads, [num_heads, num_heads + kv_num_heads], axis=1)

    def rotary(self, x, cos, sin, pairs):
        size = cos.shape[-1]
        first, second = (
            (slice(0, size), slice(size, 2 * size))
            if pairs == "halves"
            else (slice(0, 2 * size, 2), slice(1, 2 * size, 2))
        )
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    def rows_at(self, table, places):
        return table[places][:, None]

    def rotary_tables(self, tokens, frequencies, like, angle, scaling):
        places, wide = np.arange(tokens.shape[-1], dtype=np.float32)[:, None], frequencies.astype(np.float32)
        angles = (places * wide if angle == "product" else places / wide).astype(np.float64)
        return np.cos(angles) * scaling, np.sin(angles) * scaling

    def join_heads(self, *parts):
        heads = np.concatenate(parts, axis=1)
        batch, count, sequence, size = heads.shape
        return heads.transpose(0, 2, 1, 3).reshape(batch, sequence, count * size)

    def attention_variant(self, q, k, v, mask, bias, bias_left, positions, positions_left, scale, left, right, hidden):
        k, v = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
        scores = q @ k.swapaxes(-1, -2)
        distance = np.arange(q.shape[2])[None, :] - np.arange(q.shape[2])[:, None]
        if positions is not None:
            row = np.clip(distance + positions_left, 0, positions.shape[2] - 1)
            of_q, of_k = (x @ table.swapaxes(-1, -2) for x, table in zip((q, k), positions, strict=True))
            scores = scores + np.take_along_axis(of_q, np.broadcast_to(row, scores.shape), -1)
            scores = scores + np.take_along_axis(of_k, np.broadcast_to(row.T, scores.shape), -1).swapaxes(-1, -2)
        scores = scores * scale
        if bias is not None:
            scores = scores + bias[0][:, np.clip(distance + bias_left, 0, bias.shape[-1] - 1)]
        seen = (left < 0) | (distance >= -left)
        seen = np.broadcast_to(seen & ((right < 0) | (distance <= right)), scores.shape)
        if mask is not None:
            seen = seen & (mask[:, None, None, :] != 0)
            seen = seen & (mask[:, None, :, None] != 0) if hidden == "alike" else seen
        return self._context(np.where(seen, scores, MASKED_SCORE), v)

    def of_one_shape(self, mask, x):
        if mask.shape != x.shape[:2]:
            raise ValueError(f"{mask.shape} and {x.shape[:2]} are no one shape")
        return mask

    # Of packed rows: sequence by sequence, so that nothing of one can reach another. Rows behind the real ones are
    # zeros where anything had to be chosen.

    def pack_tokens(self, mask):
        real = mask.reshape(-1) != 0
        index = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).reshape(mask.shape)
        counts = [sum(value != 0 for value in row) for row in mask]
        return index, np.cumsum([0, *counts]), np.array(sum(counts))

    def take_tokens(self, values, token_index):
        return values.reshape(-1)[token_index]

    def columns_of(self, places, table):
        return places % max(1, len(table))

    def places(self, token_index, ids):
        return token_index % ids.shape[1]

    def unpack_tokens(self, x, mask, token_index, row_count):
        y = np.zeros((mask.size, x.shape[-1]))
        for row in range(int(row_count)):
            y[token_index.reshape(-1)[row]] = x.reshape(-1, x.shape[-1])[row]
        return y.reshape(*mask.shape, x.shape[-1])

    def first_tokens(self, x, cu_seqlens):
        rows = x.reshape(-1, x.shape[-1])
        chosen = [rows[a] if a < b else np.zeros(x.shape[-1]) for a, b in itertools.pairwise(cu_seqlens)]
        return np.array(chosen).reshape(len(chosen), x.shape[-1])

    def pad_sequences(self, x, cu_seqlens, token_index=None):
        rows = x.reshape(-1, x.shape[-1])
        index = np.arange(len(rows)) if token_index is None else token_index.reshape(-1)
        places = [index[a:b] - index[a] if a < b else np.arange(0) for a, b in itertools.pairwise(cu_seqlens)]
        longest = max([1, *(own[-1] + 1 for own in places if len(own))])
        padded, mask = np.zeros((len(places), longest, x.shape[-1])), np.zeros((len(places), longest), np.int64)
        for sequence, (first, own) in enumerate(zip(cu_seqlens, places, strict=False)):
            padded[sequence, own] = rows[first : first + len(own)]
            mask[sequence, own] = 1
        return padded, mask

    def first_rows(self, table, x):
        return table[: x.shape[1]]

    def join_sequences(self, y, mask, x):
        joined = np.zeros((x[..., 0].size, y.shape[-1]))
        real = y[mask != 0]
        joined[: len(real)] = real
        return joined.reshape(*x.shape[:-1], y.shape[-1])

    def ragged_positions(self, tokens, cu_seqlens, max_seqlen):
        lengths = np.diff(cu_seqlens)
        sequences = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(sequences)) - cu_seqlens[sequences]
        return sequences.reshape(tokens.shape), positions.reshape(tokens.shape)


def oracle(op_name: str, inputs: dict[str, Any], attributes: dict[str, Any] | None = None) -> list[np.ndarray]:
    """The outputs of one op in float64.

    `inputs` maps names of the op's description to arrays of any dtype; an optional input that is left out or None is
    absent. Attributes that are left out take their defaults. Raises KeyError for an unknown op or a missing input.
    """
    spec = OPS[op_name]
    values = []
    for tensor in spec.inputs:
        value = inputs.get(tensor.name) if tensor.optional else inputs[tensor.name]
        if value is not None:
            value = np.asarray(value)
            is_quantized = tensor.dtype in ("W", "Q") and value.dtype in (QUANTIZED[INT8], QUANTIZED[FLOAT8])
            if not is_quantized:
                value = value.astype(np.float64 if tensor.dtype in ("T", "W", "S") else np.int64)
        values.append(value)
    settings = {attr.name: attr.default for attr in spec.attributes} | (attributes or {})
    outputs = spec.body(Reference(), *values, **settings)
    return [np.asarray(output) for output in (outputs if isinstance(outputs, tuple) else (outputs,))]
