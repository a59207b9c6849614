"""The dialect's operations on quantised weights, in standard ONNX operators and in NumPy.

The rule, in float32: x is multiplied with x_smooth, where that is given. Of a row the scale is its largest magnitude
(SMALLEST at least) / LARGEST of the type; the row times the scale's inverse is rounded to the type, ties to even. With
one scale for the tensor, as QuantizeLinear does it: x is divided by the scale, rounded, and what is beyond the type's
ends becomes the end; with x_zero the ends are those of integers from 0 to 255, of which x_zero stands for 0, as of a
result's the zero point does. A result with one scale is multiplied once, with y_smooth times the scale's inverse.
Products of 8-bit integers are summed exactly, and a compensation is taken off. A row whose magnitudes have no finite
sum (NaN, infinities) gives NaN where it has a scale of its own.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto

INT8, FLOAT8 = TensorProto.INT8, TensorProto.FLOAT8E4M3FN
# The greatest magnitude that a row's greatest becomes. -128 is left out, so that a row and its negative are alike.
LARGEST = {INT8: 127.0, FLOAT8: 448.0}
SMALLEST = 1e-30
NUMPY = {INT8: np.dtype(np.int8), FLOAT8: np.dtype(ml_dtypes.float8_e4m3fn)}


class QuantizedDialect:
    """What OnnxDialect has for quantised weights and results; these are their ONNX element types."""

    weight_type: int = INT8
    y_type: int = INT8

    def quantized_linear(self, x, weight, weight_scale, x_smooth, x_scale, bias, residual=None, x_zero=None):
        integers = self.weight_type == INT8
        zero = self._zero(x_zero) if integers else None
        x = x if x_smooth is None else self.emit("Mul", [x, x_smooth])
        if x_scale is None:
            scaled, scale = self._scaled_rows(x, self.weight_type)
            quantized = self._rounded(scaled, self.constant(1.0, np.float32) if integers else None, zero)
        else:
            scale = x_scale
            quantized = self._rounded(x if integers else self.emit("Div", [x, x_scale]), x_scale, zero)
        return self._scaled_product(self._product(quantized, weight, zero), scale, weight_scale, bias, residual)

    def linear_of_quantized(self, x, row_scale, weight, weight_scale, bias, residual=None, compensation=None):
        integers = self.weight_type == INT8
        x, zero = (self._unsigned(x), self._zero(None)) if integers else (x, None)
        scale = self._unsqueeze(row_scale, [-1])
        product = self._product(x, weight, zero, compensation)
        return self._scaled_product(product, scale, weight_scale, bias, residual)

    def quantize_rows(self, y, zero_point, smooth, scale=None):
        """y [..., N], float32, as the outputs' type rounds it: in 8 bits, and each row's scale [...]."""
        y = self.as_output(y)
        if scale is not None:
            inverse = self.emit("Div", [self.constant(1.0, np.float32), scale])
            factor = inverse if smooth is None else self.emit("Mul", [smooth, inverse])
            scaled = self.emit("Mul", [y, factor])
            quantized = self.emit("QuantizeLinear", [scaled, self.constant(1.0, np.float32), zero_point])
            return quantized, self.emit("Expand", [scale, self._axes(y, 0, -1)])
        y = y if smooth is None else self.emit("Mul", [y, smooth])
        scaled, scale = self._scaled_rows(y, self.y_type)
        quantized = self.emit("QuantizeLinear", [scaled, self.constant(1.0, np.float32), zero_point])
        return quantized, self.emit("Squeeze", [scale, self.constant([-1], np.int64)])

    def restored_rows(self, numbers, row_scale, factor):
        """What quantize_rows() has rounded, float32; `factor` is the inverse of its smoothing."""
        scaled = self.emit(
            "Mul", [self.emit("Cast", [numbers], to=TensorProto.FLOAT), self._unsqueeze(row_scale, [-1])]
        )
        return scaled if factor is None else self.emit("Mul", [scaled, factor])

    def as_output(self, y):
        """A float32 tensor as float32, but as the op's float type rounds it."""
        return y

    def _scaled_rows(self, x, to):
        magnitude = self.emit("Max", [self._of_rows("ReduceMax", x), self.emit("Neg", [self._of_rows("ReduceMin", x)])])
        bounded = self.emit("Max", [magnitude, self.constant(SMALLEST, np.float32)])
        largest = self.constant(LARGEST[to], np.float32)
        scaled = self.emit("Mul", [x, self.emit("Div", [largest, bounded])])
        # ReduceMax of ONNX Runtime passes over NaN; a difference of infinities is one, too.
        total = self._of_rows("ReduceL1", x)
        not_finite = self.emit("Sub", [total, total])
        return scaled, self.add(self.emit("Div", [bounded, largest]), not_finite)

    def _scaled_product(self, product, scale, weight_scale, bias, residual):
        y = self.emit("Mul", [self.emit("Mul", [product, scale]), weight_scale])
        y = y if residual is None else self.add(y, residual)
        return y if bias is None else self.add(y, bias)

    def _zero(self, x_zero):
        """Integers are unsigned, with 128 for 0.

        On a CPU without VNNI, ONNX Runtime adds products of unsigned and signed ones up in 16 bits, which saturate
        (cosines of 0.92); where both are signed it takes 40 times as long.
        """
        return self.constant(128, np.uint8) if x_zero is None else self.emit("Cast", [x_zero], to=TensorProto.UINT8)

    def _unsigned(self, integers):
        shifted = self.add(self.emit("Cast", [integers], to=TensorProto.INT32), self.constant(128, np.int32))
        return self.emit("Cast", [shifted], to=TensorProto.UINT8)

    def _rounded(self, x, scale, zero):
        if self.weight_type == INT8:
            return self.emit("QuantizeLinear", [x, scale, zero])
        return self.emit("Cast", [x], to=self.weight_type)  # it saturates

    def _product(self, x, weight, zero, compensation=None):
        transposed = lambda matrix: self.emit("Transpose", [matrix], perm=[1, 0])  # noqa: E731
        if self.weight_type == INT8:
            product = self.emit("MatMulInteger", [x, transposed(self._unsigned(weight)), zero, self._zero(None)])
            product = product if compensation is None else self.emit("Sub", [product, compensation])
            return self.emit("Cast", [product], to=TensorProto.FLOAT)
        x, weight = (self.emit("Cast", [side], to=TensorProto.FLOAT) for side in (x, weight))
        return self.emit("MatMul", [x, transposed(weight)])  # Transpose takes float8 from opset 21 on

    def _of_rows(self, reduction, x):
        if self.opset >= 18:
            return self.emit(reduction, [x, self.constant([-1], np.int64)], keepdims=1)
        return self.emit(reduction, [x], keepdims=1, axes=[-1])

    def quantized_embedding(self, table, scale, ids):
        rows = self.emit("Cast", [self.emit("Gather", [table, ids], axis=0)], to=TensorProto.FLOAT)
        return self.emit("Mul", [rows, self._unsqueeze(self.emit("Gather", [scale, ids], axis=0), [-1])])


class QuantizedReference:
    """The same in NumPy: numbers are rounded in float32, as the rule says, and all else is float64."""

    def quantized_linear(self, x, weight, weight_scale, x_smooth, x_scale, bias, residual=None, x_zero=None):
        quantized, scale = quantized_rows(x, weight.dtype, x_smooth, x_scale, x_zero)
        y = quantized.astype(np.float64) @ weight.astype(np.float64).T * scale * weight_scale
        y = y if residual is None else y + residual
        return y if bias is None else y + bias

    def linear_of_quantized(self, x, row_scale, weight, weight_scale, bias, residual=None, compensation=None):
        sums = x.astype(np.float64) @ weight.astype(np.float64).T
        sums = sums if compensation is None else sums - compensation
        y = sums * row_scale[..., None] * weight_scale
        y = y if residual is None else y + residual
        return y if bias is None else y + bias

    def quantize_rows(self, y, zero_point, smooth, scale=None):
        if scale is not None:
            with np.errstate(all="ignore"):
                inverse = np.float32(1) / np.float32(scale)
                y = np.asarray(y, np.float32) * (inverse if smooth is None else np.float32(smooth) * inverse)
            zero = None if zero_point.dtype != np.int8 else np.int16(zero_point)
            quantized = quantized_rows(y, zero_point.dtype, scale=1.0, zero=None if zero is None else zero + 128)[0]
            quantized = quantized if zero is None else (quantized + zero).astype(np.int8)
            return quantized, np.broadcast_to(scale, y.shape[:-1])
        quantized, scale = quantized_rows(y, zero_point.dtype, smooth)
        return quantized, scale[..., 0]

    def restored_rows(self, numbers, row_scale, factor):
        scaled = numbers.astype(np.float64) * row_scale[..., None]
        return scaled if factor is None else scaled * factor

    def quantized_embedding(self, table, scale, ids):
        return table[ids].astype(np.float64) * scale[ids][..., None]


def quantized_rows(
    x: np.ndarray,
    dtype: np.dtype,
    smooth: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    zero: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """x [..., K] as 8-bit numbers of `dtype`, and the scales [..., 1] (or the given one) that they are multiples of.

    With `zero`, of 0 to 255, they are what is left of unsigned ones without it, which takes 16 bits.
    """
    x = np.asarray(x, np.float32)
    x = x if smooth is None else x * np.asarray(smooth, np.float32)
    integers = dtype == np.int8
    largest = np.float32(LARGEST[INT8 if integers else FLOAT8])
    with np.errstate(all="ignore"):
        if scale is None:
            magnitude = np.abs(x).max(axis=-1, keepdims=True, initial=0)
            bounded = np.maximum(magnitude, np.float32(SMALLEST))
            total = np.abs(x).sum(axis=-1, keepdims=True)
            scaled, scale = x * (largest / bounded), bounded / largest + (total - total)
            low = -largest
        else:
            scaled, low = x / np.float32(scale), -largest - integers
        if zero is not None:
            low, largest, dtype = -np.float32(zero), np.float32(255) - np.float32(zero), np.dtype(np.int16)
        # No NaN becomes an integer: the scale has it.
        scaled = np.clip(np.nan_to_num(np.rint(scaled)) if integers else scaled, low, largest)
    return scaled.astype(dtype), np.asarray(scale, np.float64)
