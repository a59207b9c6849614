"""Gammas of RMSNorms in half precision: what is near 1 is stored as its difference from 1."""

from __future__ import annotations

import secrets

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite import variants
from tests.graph_rewrite.graphs import Builder
from tests.graph_rewrite.variants import Variant

N, SHAPE = 24, ("B", "S")
HALVES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def sandwich(gammas: tuple[np.ndarray, np.ndarray], dtype: type = np.float32) -> onnx.ModelProto:
    """A product that is normalised, a residual, and the norm of their sum; norms in float32, as Gemma's are."""
    b = Builder(dtype=dtype)
    half = np.dtype(dtype) == np.float16

    def norm(x: str, gamma: np.ndarray) -> str:
        wide = b.op("Cast", x, to=onnx.TensorProto.FLOAT) if half else x
        root = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", wide, wide)), b.const(1e-6, dtype=np.float32)))
        y = b.op("Mul", b.op("Div", wide, root), b.const(gamma, dtype=np.float32))
        return b.op("Cast", y, to=onnx.TensorProto.FLOAT16) if half else y

    product = norm(b.linear(b.input("x", (*SHAPE, 16)), 16, N), gammas[0])
    total = b.op("Add", product, b.input("residual", (*SHAPE, N)))
    b.output(norm(total, gammas[1]), b.op("Neg", total))
    return b.model()


def stored(model: onnx.ModelProto) -> tuple[float, list[np.ndarray]]:
    """The offset of the model's one residual norm, and its gammas as they lie in the file: product_gamma first."""
    (node,) = (n for n in model.graph.node if n.op_type == "FusedGemmResidualNorm")
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    offset = next((a.f for a in node.attribute if a.name == "gamma_offset"), 0.0)
    return offset, [values[node.input[7]].reshape(-1), values[node.input[3]]]


@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("dtype", HALVES)
def test_near_one_the_difference_is_stored(dtype: str, source: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    # What a model of that type has as its weight, to which it adds 1 in float32.
    differences = [random.uniform(-0.2, 0.2, N).astype(HALVES[dtype]).astype(np.float32) for _ in range(2)]
    model = sandwich(tuple(1 + d for d in differences), np.float32 if source == "float32" else np.float16)
    offset, gammas = stored(fuse(model, dtype=dtype).model)
    assert offset == 1
    for gamma, difference in zip(gammas, differences, strict=True):
        assert gamma.dtype == HALVES[dtype]
        # 1 + d has as many bits behind the point as float32; of d itself nothing is lost but what that sum rounded.
        np.testing.assert_allclose(gamma.astype(np.float32), difference, rtol=2**-8, atol=2**-23)


@pytest.mark.parametrize("dtype", HALVES)
def test_far_from_one_gammas_are_stored_as_they_are(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    gammas = tuple(np.random.default_rng(seed).uniform(0.01, 0.3, (2, N)).astype(np.float32))
    offset, found = stored(fuse(sandwich(gammas), dtype=dtype).model)
    assert offset == 0
    for gamma, given in zip(found, gammas, strict=True):
        np.testing.assert_array_equal(gamma, given.astype(HALVES[dtype]))


def test_float32_keeps_its_gammas() -> None:
    gammas = (np.linspace(0.8, 1.2, N, dtype=np.float32), np.linspace(1.3, 0.7, N, dtype=np.float32))
    offset, found = stored(fuse(sandwich(gammas)).model)
    assert offset == 0
    for gamma, given in zip(found, gammas, strict=True):
        np.testing.assert_array_equal(gamma, given)


def of_heads(model: onnx.ModelProto) -> tuple[float, list[np.ndarray]]:
    (node,) = (n for n in model.graph.node if n.op_type == "FusedAttentionVariant")
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    offset = next((a.f for a in node.attribute if a.name == "gamma_offset"), 0.0)
    return offset, [values[node.input[i]].astype(np.float64) for i in (5, 6)]


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_of_heads_lose_no_more_than_by_rounding_alone(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    before = variants.model(Variant(norm=True), seed)
    none, wanted = of_heads(fuse(before).model)
    offset, found = of_heads(fuse(before, dtype=dtype).model)
    assert none == 0 and offset in (0, 1)
    lost = sum(np.square(gamma + offset - want).sum() for gamma, want in zip(found, wanted, strict=True))
    rounded = (want.astype(np.float32).astype(HALVES[dtype]).astype(np.float64) for want in wanted)
    assert lost <= sum(np.square(gamma - want).sum() for gamma, want in zip(rounded, wanted, strict=True))


def test_a_layer_norm_behind_a_normalised_product_keeps_its_gamma() -> None:
    """What is added to the product's gamma is not added to LayerNorm's."""
    b = Builder()
    root = b.op(
        "Sqrt", b.op("Add", b.mean(b.op("Mul", y := b.linear(b.input("x", (*SHAPE, 16)), 16, N), y)), b.const(1e-6))
    )
    product = b.op("Mul", b.op("Div", y, root), b.const(np.linspace(0.9, 1.1, N)))
    total = b.op("Add", product, b.input("residual", (*SHAPE, N)))
    b.output(b.layer_norm(total, N, epsilon=1e-6), b.op("Neg", total))
    model = b.model()
    _, (_, gamma) = stored(fuse(model).model)
    offset, (product_gamma, narrow) = stored(fuse(model, dtype="fp16").model)
    assert offset == 1 and np.abs(product_gamma).max() < 0.2
    np.testing.assert_array_equal(narrow, gamma.astype(np.float16))
