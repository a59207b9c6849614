"""Floats that are fed to a half precision model: lengths and times stay float32, hidden states do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.attentions import HEADS, HIDDEN, Attention, attend
from tests.graph_rewrite.graphs import Builder, run

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
BATCH, LENGTH = 2, 6


def biased(b: Builder, y: str, bias: str) -> str:
    return attend(b, y, Attention(mask="subtract", parts={"mask": bias}))


def differences(b: Builder, t: str, y: str) -> str:
    """-|t_q - t_k| / 10 added to the scores."""
    gap = b.op("Abs", b.op("Sub", b.op("Unsqueeze", t, b.const([2])), b.op("Unsqueeze", t, b.const([1]))))
    return biased(b, y, b.op("Unsqueeze", b.op("Mul", gap, b.const(-0.1)), b.const([1])))


def by_key(b: Builder, t: str, y: str) -> str:
    return biased(b, y, b.op("Mul", b.op("Unsqueeze", t, b.const([1, 2])), b.const(-0.3)))


def least_mask(b: Builder, t: str, y: str) -> str:
    opposite = b.op("Sub", b.const(1.0), b.op("Unsqueeze", t, b.const([1, 2])))
    return biased(b, y, b.op("Mul", opposite, b.const(float(np.finfo(np.float32).min))))


def sines(b: Builder, t: str, y: str) -> str:
    angles = b.op("Mul", b.op("Unsqueeze", t, b.const([2])), b.const(0.7 ** np.arange(HIDDEN)))
    return b.op("Add", y, b.op("Sin", angles))


def sines_of_a_product(b: Builder, t: str, y: str) -> str:
    return b.op("Add", y, b.op("Cos", b.linear(t, 1, HIDDEN)))


def product_and_gelu(b: Builder, t: str, y: str) -> str:
    return b.op("Add", y, b.op("Mul", b.gelu(b.linear(t, 2, HIDDEN)), b.const(1e-5)))


def looked_up(b: Builder, t: str, y: str) -> str:
    index = b.op("Cast", b.op("Floor", b.op("Div", t, b.const(2.0))), to=TensorProto.INT64)
    rows = b.op("Gather", b.weight(3000, HIDDEN), index, axis=0)
    return b.op("Add", y, b.op("ReduceMean", rows, axes=[2], keepdims=0))


def divided(b: Builder, t: str, y: str) -> str:
    return b.op("Add", y, b.op("Div", b.op("Unsqueeze", t, b.const([1, 2])), b.const(70000.0)))


def since_the_last(b: Builder, t: str, y: str) -> str:
    age = b.op("Sub", t, b.op("ReduceMax", t, axes=[1], keepdims=1))
    return b.op("Add", y, b.op("Unsqueeze", b.op("Exp", age), b.const([2])))


def compared(b: Builder, t: str, y: str) -> str:
    return b.op("Where", b.op("Greater", t, b.const(2048.5)), y, b.op("Neg", y))


def beside_places(b: Builder, t: str, y: str) -> str:
    length = b.op("Squeeze", b.op("Slice", b.op("Shape", y), b.const([1]), b.const([2])), b.const([0]))
    places = b.op("Range", b.const(2049), b.op("Add", length, b.const(2049)), b.const(1))
    gap = b.op("Sub", t, b.op("Cast", places, to=FLOAT))
    return b.op("Add", y, b.op("Unsqueeze", b.op("Mul", gap, b.const(0.5)), b.const([2])))


def residual(b: Builder, t: str, y: str) -> str:
    return b.op("Add", y, t)


def projected(b: Builder, t: str, y: str) -> str:
    return b.op("Add", y, b.linear(b.op("Tanh", b.op("Mul", t, b.const(0.5))), HIDDEN, HIDDEN))


def features(b: Builder, t: str, y: str) -> str:
    return b.op("Add", y, b.op("Unsqueeze", b.linear(t, 12, HIDDEN), b.const([1])))


Spelling = Callable[[Builder, str, str], str]
# What is done with an input of which shape, from and to which numbers, and the type that the input is to have.
CASES: list[tuple[Spelling, tuple[int | str, ...], float, float, int]] = [
    (differences, ("B", "S"), 2049, 2059, FLOAT),
    (differences, ("B", "S"), 70_000, 70_010, FLOAT),
    (by_key, ("B", "S"), 20_490, 20_500, FLOAT),
    (least_mask, ("B", "S"), 0, 2, FLOAT),
    (sines, ("B", "S"), 2049, 4000, FLOAT),
    (sines_of_a_product, ("B", "S", 1), 2049, 4000, FLOAT),
    (product_and_gelu, ("B", "S", 2), 70_000, 90_000, FLOAT),
    (looked_up, ("B", "S", "S"), 2049, 4000, FLOAT),
    (looked_up, ("B", "S", HIDDEN), 2049, 4000, FLOAT),
    (divided, ("B",), 70_000, 90_000, FLOAT),
    (since_the_last, ("B", "S"), 2049, 2059, FLOAT),
    (since_the_last, (BATCH, LENGTH), 2049, 2059, FLOAT),
    (compared, ("B", "S", 1), 2048, 2050, FLOAT),
    (beside_places, ("B", "S"), 2049, 2055, FLOAT),
    (residual, ("B", "S", HIDDEN), -2, 3, HALF),
    (projected, ("B", "S", HIDDEN), -2, 3, HALF),
    (features, ("B", 12), -2, 3, HALF),
]


@pytest.mark.parametrize(("spelling", "shape", "low", "high", "kept"), CASES)
@pytest.mark.parametrize("seed", range(2))
def test_numbers_that_are_fed(
    spelling: Spelling, shape: tuple[int | str, ...], low: float, high: float, kept: int, seed: int
) -> None:
    b = Builder(seed=seed)
    x, t = b.input("x", ("B", "S", HIDDEN)), b.input("t", shape)
    b.output(spelling(b, t, attend(b, x, Attention(mask="none"))))
    model, random = b.model(), np.random.default_rng(seed)
    sizes = [{"B": BATCH, "S": LENGTH}.get(size, size) for size in shape]
    feed = {
        "x": random.standard_normal((BATCH, LENGTH, HIDDEN)).astype(np.float32),
        "t": random.integers(low, high, sizes).astype(np.float32),
    }
    (wanted,) = run(model, feed)
    for dtype in ("fp16", "bf16"):
        converted = fuse(model, dtype=dtype).model
        onnx.checker.check_model(converted, full_check=True)
        types = {value.name: value.type.tensor_type.elem_type for value in converted.graph.input}
        half = {"fp16": HALF, "bf16": TensorProto.BFLOAT16}[dtype]
        assert types == {"x": half, "t": FLOAT if kept == FLOAT else half}
    converted = fuse(model, dtype="fp16").model  # ONNX Runtime's CPU has no bfloat16
    given = {"x": feed["x"].astype(np.float16), "t": feed["t"].astype(np.float32 if kept == FLOAT else np.float16)}
    (result,) = run(converted, given)
    np.testing.assert_allclose(result.astype(np.float32), wanted, atol=1e-2, rtol=1e-2)


def slopes() -> np.ndarray:
    return (8 * 0.8 ** np.arange(HEADS)).reshape(1, HEADS, 1, 1)


def bias_by_key(b: Builder, y: str, how: str, length: int) -> str:
    """slope * place, in thousands: a row of scores is shifted by it, which the Softmax does not see."""
    if how == "constant":
        return b.const(slopes() * np.arange(length))
    if how == "constants":
        return b.op("Mul", b.op("Pow", b.const(0.5), b.const(-np.log2(slopes()))), b.const(1.0 * np.arange(length)))
    count = b.op("Slice", b.op("Shape", y), b.const([1]), b.const([2]))
    if how == "buffer":
        return b.op("Slice", b.const(slopes() * np.arange(2 * length)), b.const([0]), count, b.const([3]))
    places = b.op("Range", b.const(0), b.op("Squeeze", count, b.const([0])), b.const(1))
    return b.op("Mul", b.op("Cast", places, to=FLOAT), b.const(slopes()))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("how", ["computed", "buffer", "constant", "constants"])
def test_slopes_by_place(how: str, dtype: str) -> None:
    """Sums in the thousands of which the differences count: they and the Softmax are float32."""
    length = 300
    b = Builder()
    x = b.input("x", ("B", length if how.startswith("constant") else "S", HIDDEN))
    y = attend(b, x, Attention(mask="none"))
    b.output(biased(b, y, bias_by_key(b, y, how, length)))
    model = b.model()
    converted = fuse(model, dtype=dtype).model
    onnx.checker.check_model(converted, full_check=True)
    (softmax,) = (node for node in converted.graph.node if node.op_type == "Softmax")
    made = {node.output[0]: node for node in converted.graph.node}
    assert made[softmax.input[0]].op_type == "Add"
    assert all(
        made[name].op_type != "Cast" or made[name].attribute[0].i == FLOAT
        for name in made[softmax.input[0]].input
        if name in made
    )
    if dtype == "fp16":
        feed = {"x": np.random.default_rng(0).standard_normal((2, length, HIDDEN)).astype(np.float32)}
        (wanted,), (given,) = run(model, feed), run(converted, {"x": feed["x"].astype(np.float16)})
        np.testing.assert_allclose(given.astype(np.float32), wanted, atol=1e-2, rtol=1e-2)


def test_angles_that_are_looked_up() -> None:
    """A table of place * frequency, whose cosine is taken."""
    b = Builder()
    y = attend(b, b.input("x", ("B", "S", HIDDEN)), Attention(mask="none"))
    angles = np.outer(np.arange(4000), 10_000 ** (-np.arange(HIDDEN) / HIDDEN))
    b.output(b.op("Add", y, b.op("Cos", b.op("Gather", b.const(angles), b.ids("places"), axis=0))))
    model, random = b.model(), np.random.default_rng(0)
    feed = {"x": random.standard_normal((2, 6, HIDDEN)), "places": random.integers(2000, 4000, (2, 6))}
    (wanted,) = run(model, feed | {"x": feed["x"].astype(np.float32)})
    (given,) = run(fuse(model, dtype="fp16").model, feed | {"x": feed["x"].astype(np.float16)})
    np.testing.assert_allclose(given.astype(np.float32), wanted, atol=1e-2, rtol=1e-2)
