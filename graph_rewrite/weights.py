"""Initialisers beside the graph: loaded when written, and until then transposed, packed or cast without a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx_graphsurgeon.ir.tensor import LazyValues
from onnx_graphsurgeon.logger import G_LOGGER

G_LOGGER.severity = G_LOGGER.ERROR  # it prints its warnings on stdout, one for each bfloat16 weight

# Smaller initialisers are ordinary constants: scalars, shapes and position tables are looked at while matching.
MIN_BYTES = 1 << 16


class Weight(LazyValues):
    """A large initialiser. The graph holds its name, dtype and shape; `load()` makes the array.

    As a LazyValues of onnx-graphsurgeon it is exported as a TensorProto without data, which `fill` completes.
    """

    def __init__(self, data_type: int, shape: Sequence[int], load: Callable[[], np.ndarray]) -> None:
        super().__init__(onnx.TensorProto(data_type=data_type, dims=shape))
        self._load = load
        # onnx-graphsurgeon leaves ONNX's number in place of bfloat16.
        with contextlib.suppress(KeyError):
            self.dtype = onnx.helper.tensor_dtype_to_np_dtype(data_type)

    @property
    def data_type(self) -> int:
        return self.tensor.data_type

    def load(self) -> np.ndarray:
        return self._load()

    def fill(self, tensor: onnx.TensorProto) -> None:
        """Write the data into `tensor`, which already has name, dtype and shape."""
        array = np.ascontiguousarray(self.load())
        tensor.ClearField("data_location")
        tensor.raw_data = array.tobytes()

    @classmethod
    def of_array(cls, array: np.ndarray) -> Weight:
        return cls(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, lambda: array)

    @classmethod
    def of_tensor(cls, tensor: onnx.TensorProto) -> Weight:
        return cls(tensor.data_type, list(tensor.dims), lambda: numpy_helper.to_array(tensor))

    def transposed(self) -> Weight:
        return Weight(self.data_type, self.shape[::-1], lambda: self.load().T)

    def reshaped(self, shape: Sequence[int]) -> Weight:
        return Weight(self.data_type, shape, lambda: np.asarray(self.load()).reshape(shape))

    def rows(self, index: np.ndarray) -> Weight:
        """The rows of these numbers, in this order; the weight itself when that is all of them in order."""
        if np.array_equal(index, np.arange(self.shape[0])):
            return self
        return Weight(self.data_type, (len(index), *self.shape[1:]), lambda: np.asarray(self.load())[index])

    def times(self, factors: np.ndarray) -> Weight:
        """With row i multiplied by factors[i], in float32."""

        def load() -> np.ndarray:
            array = np.asarray(self.load()).astype(np.float32)
            factor = factors.astype(np.float32).reshape(-1, *[1] * (array.ndim - 1))
            return cast_array(array * factor, self.data_type)

        return Weight(self.data_type, self.shape, load)

    def plus_row(self, table: Weight, row: int) -> Weight:
        """With one row of another table added to every row, in float32."""

        def load() -> np.ndarray:
            total = np.asarray(self.load()).astype(np.float32) + np.asarray(table.load()[row]).astype(np.float32)
            return cast_array(total, self.data_type)

        return Weight(self.data_type, self.shape, load)

    def plus(self, number: float) -> Weight:
        """With a number added to every element, in float32."""
        added = np.float32(number)
        return Weight(
            self.data_type,
            self.shape,
            lambda: cast_array(np.asarray(self.load()).astype(np.float32) + added, self.data_type),
        )

    def cast(self, data_type: int) -> Weight:
        """To another float type, as `cast_array` does."""
        return Weight(data_type, self.shape, lambda: cast_array(self.load(), data_type))


def concatenated(weights: Sequence[Any], axis: int) -> Weight:
    """Several Weights of one dtype side by side along `axis`."""
    first = weights[0]
    shape = list(first.shape)
    shape[axis] = sum(weight.shape[axis] for weight in weights)
    return Weight(first.data_type, shape, lambda: np.concatenate([weight.load() for weight in weights], axis))


def cast_array(array: np.ndarray, data_type: int) -> np.ndarray:
    """`array` as `data_type` (an ONNX float type).

    Finite values beyond the range become its largest, and in float16, where all would become 0, its smallest.
    """
    target = onnx.helper.tensor_dtype_to_np_dtype(data_type)
    if data_type == onnx.TensorProto.BFLOAT16:
        cast = array.astype(target)
        beyond = np.isinf(cast)
        if beyond.any():  # the least float32 is beyond it: as -inf, a row of it alone has no softmax
            largest = ml_dtypes.finfo(target).max
            cast = np.where(beyond & np.isfinite(array), np.copysign(largest, array).astype(target), cast)
        return cast
    if data_type != onnx.TensorProto.FLOAT16:
        return array.astype(target)
    limits = np.finfo(np.float16)
    limit = np.float32(limits.max)
    cast = np.where(np.isinf(array), array, np.clip(array, -limit, limit)).astype(target)
    if not cast.any():
        # A constant like 1e-9 guards a division; as 0 it gives NaN. Among larger values, in weights, 0 is near enough.
        cast = np.asarray(np.sign(array) * limits.smallest_subnormal, target)
    return cast
