"""Subgraphs of constants, evaluated in the types that the graph declares."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto

from bertfuse.graph_rewrite.constants import Constants


def computed(op: str, *inputs: Any, **attributes: Any) -> gs.Variable:
    given = [t if isinstance(t, gs.Tensor) else gs.Constant(f"c{i}", np.asarray(t)) for i, t in enumerate(inputs)]
    output = gs.Variable(f"{op}_out")
    gs.Node(op, attrs=attributes, inputs=given, outputs=[output])
    return output


def value(tensor: gs.Tensor) -> np.ndarray | None:
    return Constants(17).value(tensor)


CASES = {
    "a root cut off": (computed("Cast", computed("Sqrt", np.float32(48)), to=TensorProto.INT64), np.int64(6)),
    "a truth": (computed("Cast", computed("Cast", np.int64(2), to=TensorProto.BOOL), to=7), np.int64(1)),
    "unsigned": (computed("Sub", np.uint8(1), np.uint8(2)), np.uint8(255)),
    "a power of whole numbers": (computed("Pow", np.int64(7), np.int64(5)), np.int64(7**5)),
    "rows": (computed("Gather", np.arange(6).reshape(2, 3), np.array([[1, 0]])), np.array([[[3, 4, 5], [0, 1, 2]]])),
    "half": (computed("Mul", np.float16(2048), np.float16(1.0005)), np.float16(2048) * np.float16(1.0005)),
    "bfloat16": (computed("Cast", np.float32(-1e4), to=TensorProto.BFLOAT16), np.array(-9984, ml_dtypes.bfloat16)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_typed(name: str) -> None:
    tensor, wanted = CASES[name]
    found = value(tensor)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def test_sizes_that_are_known() -> None:
    shape = computed("Shape", gs.Variable("x", np.float32, ["B", 12, "S", 64]))
    assert value(shape) is None
    assert value(computed("Gather", shape, np.int64(0))) is None
    size = computed("Slice", shape, np.array([-1]), np.array([1 << 62]))
    np.testing.assert_array_equal(value(computed("Sqrt", computed("Cast", size, to=1))), np.float32([8]))
    both = computed("Concat", computed("Gather", shape, np.array([0])), size, axis=0)
    assert value(both) is None and value(computed("Gather", both, np.array([1]))).tolist() == [64]


@pytest.mark.parametrize(
    "tensor",
    [
        computed("Div", np.int64(3), np.int64(0)),
        computed("Mod", np.int32(np.iinfo(np.int32).min), np.int32(-1)),
        computed("Expand", np.int64(1), np.array([1 << 20, 1 << 20])),
        computed("ConstantOfShape", np.array([1 << 40])),
        computed("Range", np.int64(0), np.int64(1 << 40), np.int64(1)),
        computed("Add", np.zeros((1 << 12, 1)), np.zeros((1, 1 << 12))),
        computed("Range", np.zeros(0, np.int64), np.int64(4), np.int64(1)),
        computed("Mod", np.int64(4)),
        computed("RandomNormalLike", np.float32(1)),
        computed("Add", gs.Variable("given", np.int64, []), np.int64(1)),
        computed("Add", np.int64(1), np.float32(1)),
    ],
    ids=lambda tensor: tensor.name,
)
def test_no_value(tensor: gs.Tensor) -> None:
    """Nothing that ends the process or fills the memory, nothing random, nothing that hangs on an input."""
    assert value(tensor) is None
