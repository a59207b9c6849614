"""Constants in another float type: none becomes one that gives infinities or NaN where it gave none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from attentions import HIDDEN, Attention, attend
from graphs import Builder, run

from bertfuse.graph_rewrite import fuse
from bertfuse.graph_rewrite.weights import cast_array

SMALLEST, LARGEST = 6e-8, 65504


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (1e-9, SMALLEST),
        (-1e-9, -SMALLEST),
        ([[1e-9, 0, -1e-12]], [[SMALLEST, 0, -SMALLEST]]),
        ([1e-9, 1], [0, 1]),
        ([0, 0], [0, 0]),
        ([1e9, -1e9, np.inf, -np.inf, np.nan], [LARGEST, -LARGEST, np.inf, -np.inf, np.nan]),
        ([], []),
    ],
)
def test_range_of_float16(given: object, wanted: object, dtype: type) -> None:
    cast = cast_array(np.array(given, dtype), onnx.TensorProto.FLOAT16)
    assert isinstance(cast, np.ndarray) and cast.dtype == np.float16
    np.testing.assert_array_equal(cast, np.array(wanted, np.float16))


def test_mean_of_no_token() -> None:
    """The sum of the mask under the division is kept from 0 by 1e-9."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    y = attend(b, x, Attention(), mask)
    kept = b.op("Unsqueeze", b.op("Cast", mask, to=1), b.const([2]))
    total = b.op("ReduceSum", b.op("Mul", y, kept), b.const([1]), keepdims=0)
    b.output(b.op("Div", total, b.op("Clip", b.op("ReduceSum", kept, b.const([1]), keepdims=0), b.const(1e-9))))
    feed = {"x": np.ones((2, 3, HIDDEN), np.float16), "attention_mask": np.array([[1, 1, 0], [0, 0, 0]])}
    result = fuse(b.model(), dtype="fp16")
    assert result.fused == {"FusedAttention": 1}
    (mean,) = run(result.model, feed)
    assert np.isfinite(mean).all() and not mean[1].any()
