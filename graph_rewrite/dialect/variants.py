"""What families beyond BERT compute, in standard ONNX operators: rotations, windows, grouped heads, gates, norms."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..ops.activations import ACTIVATIONS
from .reference import MASKED_SCORE


class VariantDialect:
    """What OnnxDialect has for those; `emit`, `constant` and small helpers are its own."""

    def rms_norm(self, x, gamma, epsilon):
        if self.opset >= 23:
            return self.emit("RMSNormalization", [x, gamma], axis=-1, epsilon=epsilon)
        deviation = self.emit("Sqrt", [self.add(self._mean(self.emit("Mul", [x, x])), self._float_attribute(epsilon))])
        return self.emit("Mul", [self.emit("Div", [x, deviation]), gamma])

    def offset(self, x, number):
        return self.add(x, self._float_attribute(number))

    def only_row(self, table):
        return self.emit("Squeeze", [table, self.constant([0], np.int64)])

    def halves(self, x):
        if self.opset >= 18:
            return self.emit("Split", [x], outputs=2, axis=-1, num_outputs=2)
        return self.emit("Split", [x], outputs=2, axis=-1)

    def activation(self, x, kind):
        return ACTIVATIONS[kind].onnx(self, x)

    def scaled_silu(self, x, factor):
        argument = x if factor == 1 else self.emit("Mul", [x, self.constant(factor, np.float32)])
        return self.emit("Mul", [x, self.emit("Sigmoid", [argument])])

    def multiply(self, a, b):
        return self.emit("Mul", [a, b])

    def split_grouped_heads(self, qkv, num_heads, kv_num_heads):
        counts = [self._int_attribute(n) for n in (num_heads, kv_num_heads, kv_num_heads)]
        heads = self.add(counts[0], self.add(counts[1], counts[2]))
        size = self.emit("Div", [self._axes(qkv, 2, 3), heads])
        sizes = self.emit("Mul", [self.emit("Concat", counts, axis=0), size])
        parts = self.emit("Split", [qkv, sizes], outputs=3, axis=-1)
        # [0, 0, count, size]. No Concat, of which ONNX Runtime's optimizer makes a shape with -1.
        last = self.emit("Mul", [size, self.constant([0, 0, 0, 1], np.int64)])
        shapes = [self.add(self.emit("Mul", [count, self.constant([0, 0, 1, 0], np.int64)]), last) for count in counts]
        by_head = [self.emit("Reshape", [part, shape]) for part, shape in zip(parts, shapes, strict=True)]
        return tuple(self.emit("Transpose", [part], perm=[0, 2, 1, 3]) for part in by_head)

    def rotary(self, x, cos, sin, pairs):
        size = self._last_axis(cos)
        twice, zero, one = self.add(size, size), self.constant([0], np.int64), self.constant([1], np.int64)
        last, step = self.constant([-1], np.int64), self.constant([1 if pairs == "halves" else 2], np.int64)
        bounds = ((zero, size), (size, twice)) if pairs == "halves" else ((zero, twice), (one, twice))
        a, b = (self.emit("Slice", [x, start, end, last, step]) for start, end in bounds)
        rest = self.emit("Slice", [x, twice, self.constant([2**31 - 1], np.int64), last])
        times = lambda x, y: self.emit("Mul", [x, y])  # noqa: E731
        turned = [self.emit("Sub", [times(a, cos), times(b, sin)]), self.add(times(b, cos), times(a, sin))]
        if pairs == "halves":
            return self.emit("Concat", [*turned, rest], axis=-1)
        beside = self.emit("Concat", [self._unsqueeze(part, [-1]) for part in turned], axis=-1)
        shape = self.emit("Concat", [self.constant([0, 0, 0], np.int64), twice], axis=0)
        return self.emit("Concat", [self.emit("Reshape", [beside, shape]), rest], axis=-1)

    def _last_axis(self, x):
        return self.emit("Slice", [self.emit("Shape", [x]), *(self.constant([i], np.int64) for i in (-1, 2**31 - 1))])

    def rows_at(self, table, places):
        return self._unsqueeze(self.emit("Gather", [table, places], axis=0), [1])

    def rotary_tables(self, tokens, frequencies, like, angle, scaling):
        length = self.emit("Squeeze", [self._last_axis(tokens)])
        places = self.emit("Range", [self.constant(0, np.int64), length, self.constant(1, np.int64)])
        column = self._unsqueeze(self.emit("Cast", [places], to=TensorProto.FLOAT), [1])
        angles = self.emit("Mul" if angle == "product" else "Div", [column, frequencies])
        factor = self._float_attribute(scaling)
        return tuple(self.emit("Mul", [self.emit(op, [angles]), factor]) for op in ("Cos", "Sin"))

    def join_heads(self, *parts):
        rows = self.emit("Transpose", [self.emit("Concat", list(parts), axis=1)], perm=[0, 2, 1, 3])
        size = self.emit("Mul", [self._axes(rows, 3, 4), self.constant([0, 0, 1], np.int64)])
        factors = self.add(size, self.constant([1, 1, 0], np.int64))
        return self.emit("Reshape", [rows, self.emit("Mul", [self._axes(rows, 0, 3), factors])])

    def attention_variant(self, q, k, v, mask, bias, bias_left, positions, positions_left, scale, left, right, hidden):
        # Heads of Q that share one of K and V get an axis of their own, along which those are broadcast.
        batch, length, size, groups = self._axes(q, 0, 1), self._axes(q, 2, 3), self._axes(q, 3, 4), self._axes(k, 1, 2)
        shared = self.emit("Div", [self._axes(q, 1, 2), groups])
        q = self.emit("Reshape", [q, self.emit("Concat", [batch, groups, shared, length, size], axis=0)])
        k, v = self._unsqueeze(k, [2]), self._unsqueeze(v, [2])
        scores = self.emit("MatMul", [q, self.emit("Transpose", [k], perm=[0, 1, 2, 4, 3])])
        distance = self._distances(length)
        if positions is not None:
            for of_keys, x in enumerate((q, k)):
                part = self.emit("Gather", [positions, self.constant(of_keys, np.int64)], axis=0)
                part = self._by_position(x, part, distance, positions_left, bool(of_keys))
                scores = self.add(scores, part)
        scores = self.emit("Mul", [scores, self._float_attribute(scale)])
        if bias is not None:
            scores = self.add(scores, self._bias_by_distance(bias, distance, bias_left, groups, length))
        seen = self.emit("And", [
            self._within(distance, left, lambda limit: [distance, self.emit("Neg", [limit])]),
            self._within(distance, right, lambda limit: [limit, distance]),
        ])  # fmt: skip
        if mask is not None:
            shown = self.emit("Cast", [mask], to=TensorProto.BOOL)
            for axes in ([1, 2, 3], [1, 2, 4])[: 2 if hidden == "alike" else 1]:
                seen = self.emit("And", [seen, self._unsqueeze(shown, axes)])
        scores = self.emit("Where", [seen, scores, self.constant(MASKED_SCORE, np.float32)])
        context = self.emit("MatMul", [self.emit("Softmax", [scores], axis=-1), v])
        merged = self.emit("Transpose", [context], perm=[0, 3, 1, 2, 4])
        width = self.emit("Mul", [self.emit("Mul", [groups, shared]), size])
        return self.emit("Reshape", [merged, self.emit("Concat", [batch, length, width], axis=0)])

    def _distances(self, length):
        """[S, S] of k - q."""
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        places = self.emit("Range", [zero, self.emit("Squeeze", [length]), one])
        return self.emit("Sub", [self._unsqueeze(places, [0]), self._unsqueeze(places, [1])])

    def _within(self, distance, limit, operands):
        """Whether the distance is inside of a window's side; every one is where that is negative."""
        limit = self._int_attribute(limit)
        open_ = self.emit("Less", [limit, self.constant([0], np.int64)])
        return self.emit("Or", [open_, self.emit("GreaterOrEqual", operands(limit))])

    def _by_position(self, x, table, distance, left, of_keys):
        """[B, groups, heads in each, S, S] of x [B, groups, heads in each or 1, S, D] times table [heads, M, D]."""
        groups, size = self._axes(x, 1, 2), self._axes(x, 4, 5)
        count = self._axes(table, 1, 2)
        shared = self.emit("Div", [self._axes(table, 0, 1), groups])
        by_group = self.emit("Reshape", [table, self.emit("Concat", [groups, shared, count, size], axis=0)])
        products = self.emit("MatMul", [x, self.emit("Transpose", [by_group], perm=[0, 1, 3, 2])])
        index = self._columns_of(distance, left, count)
        index = self.emit("Transpose", [index], perm=[1, 0]) if of_keys else index
        shape = self.emit("Concat", [self._axes(products, 0, 4), self._axes(products, 3, 4)], axis=0)
        found = self.emit("GatherElements", [products, self.emit("Expand", [index, shape])], axis=-1)
        return self.emit("Transpose", [found], perm=[0, 1, 2, 4, 3]) if of_keys else found

    def _columns_of(self, distance, left, count):
        """Which of `count` columns has each distance: the first one is of -left, and both ends go on."""
        last = self.emit("Sub", [count, self.constant([1], np.int64)])
        index = self.emit("Max", [self.add(distance, self._int_attribute(left)), self.constant([0], np.int64)])
        return self.emit("Min", [index, last])

    def _bias_by_distance(self, bias, distance, left, groups, length):
        """[groups, heads in each, S, S]; a bias that all heads share [1, 1, S, S]."""
        values = self.emit("Gather", [bias, self._columns_of(distance, left, self._axes(bias, 2, 3))], axis=2)
        heads = self._axes(bias, 1, 2)
        first = self.emit("Min", [groups, heads])
        shape = self.emit("Concat", [first, self.emit("Div", [heads, first]), length, length], axis=0)
        return self.emit("Reshape", [values, shape])
