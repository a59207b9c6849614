"""FusedRMSNorm: norms that no other op has taken, as a pre-norm model's of its embeddings."""

from __future__ import annotations

import secrets

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from bertfuse.graph_rewrite import OPS, fuse
from tests.graph_rewrite.graphs import Builder, fused, refused

OP, N, SHAPE = "FusedRMSNorm", 24, ("B", "S")
HALVES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
# How x becomes x over the root of its mean square.
FORMS = ("div", "reciprocal", "one over", "power", "operator")


def rms_norm(b: Builder, x: str, gamma: str, form: str = "div", epsilon: float = 1e-6, axis: int = -1) -> str:
    if form == "operator":
        return b.op("RMSNormalization", x, gamma, axis=axis, epsilon=epsilon)
    dtype = np.float32  # of what is computed between Casts, too
    total = b.op("Add", b.mean(b.op("Mul", x, x)), b.const(epsilon, dtype=dtype))
    if form == "power":
        return b.op("Mul", b.op("Mul", x, b.op("Pow", total, b.const(-0.5, dtype=dtype))), gamma)
    root = b.op("Sqrt", total)
    if form == "div":
        return b.op("Mul", b.op("Div", x, root), gamma)
    inverse = b.op("Reciprocal", root) if form == "reciprocal" else b.op("Div", b.const(1.0, dtype=dtype), root)
    return b.op("Mul", gamma, b.op("Mul", x, inverse))


def builder(form: str = "div", **options) -> Builder:
    return Builder(opset=23 if form == "operator" else 18, **options)


def node_of(model: onnx.ModelProto) -> tuple[onnx.NodeProto, dict[str, float]]:
    """The model's one such node, and its attributes."""
    (node,) = (n for n in model.graph.node if n.op_type == OP)
    return node, {a.name: helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("read", ["once", "as the residual, too"])
def test_found_in_every_form(read: str, form: str) -> None:
    b = builder(form)
    x = b.op("Gather", b.weight(10, N), b.ids())
    y = rms_norm(b, x, b.weight(N), form, 1e-5)
    b.output(y, *([] if read == "once" else [b.op("Neg", x)]))
    result = fused(b.model(), optimise=form != "operator")
    assert result.fused == result.expected == {OP: 1} and not result.misses
    _, attributes = node_of(result.model)
    assert attributes["epsilon"] == np.float32(1e-5) and not attributes.get("gamma_offset")


def test_rows_of_any_size() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    for _ in range(12):
        columns, rank = int(random.integers(1, 70)), int(random.integers(2, 5))
        form, epsilon = str(random.choice(FORMS[:-1])), float(10.0 ** random.uniform(-6, -1))
        b = builder(seed=int(random.integers(1 << 20)))
        x = b.input("x", [*(("B", "S", "T")[: rank - 1]), columns])
        b.output(rms_norm(b, x, b.weight(columns), form, epsilon))
        assert fused(b.model()).fused == {OP: 1}


def in_float32(dtype: np.dtype, gamma: np.ndarray) -> onnx.ModelProto:
    """A norm as Gemma has it: of 16-bit rows, in float32, scaled by 1 + weight."""
    b = builder(dtype=dtype)
    x = b.op("Cast", b.input("x", (*SHAPE, N)), to=onnx.TensorProto.FLOAT)
    y = rms_norm(b, x, b.op("Add", b.const(gamma, dtype=np.float32), b.const(1.0, dtype=np.float32)))
    b.output(b.op("Cast", y, to=helper.np_dtype_to_tensor_dtype(dtype)))
    return b.model()


@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("dtype", HALVES)
def test_gammas_near_one_are_stored_as_their_difference(dtype: str, source: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    kind = HALVES[dtype]
    weight = np.random.default_rng(seed).uniform(-0.2, 0.2, N).astype(kind).astype(np.float32)
    model = fuse(in_float32(np.dtype(source), weight), dtype=dtype).model
    node, attributes = node_of(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}[node.input[1]]
    assert attributes["gamma_offset"] == 1 and stored.dtype == kind
    np.testing.assert_allclose(stored.astype(np.float32), weight, rtol=2**-8, atol=2**-23)
    assert "Cast" not in {n.op_type for n in model.graph.node if n.input[0] == "x"}


def test_between_casts_with_the_offset() -> None:
    weight = np.linspace(-0.2, 0.2, N).astype(np.float16).astype(np.float32)
    result = fused(in_float32(np.dtype(np.float16), weight), tol=2e-3)
    assert result.fused == {OP: 1} and node_of(result.model)[1]["gamma_offset"] == 1


def test_a_gamma_that_is_computed() -> None:
    b = builder()
    b.output(rms_norm(b, b.input("x", (*SHAPE, N)), b.op("Neg", b.input("gamma", (N,)))))
    refused(b.model(), "constant vector", OP)


@pytest.mark.parametrize("columns", [1, (1, N)], ids=str)
def test_a_gamma_of_another_shape(columns: int | tuple[int, int]) -> None:
    b = builder()
    gamma = b.weight(columns) if isinstance(columns, int) else b.weight(*columns)
    b.output(rms_norm(b, b.input("x", (*SHAPE, N)), gamma))
    refused(b.model(), "1 long" if columns == 1 else "constant vector", OP)


def test_another_axis_than_the_last() -> None:
    b = builder("operator")
    b.output(rms_norm(b, b.input("x", (*SHAPE, 3, N)), b.weight(3, N), "operator", axis=-2))
    refused(b.model(), "the last axis alone", OP, optimise=False)


def test_float64_is_left() -> None:
    b = builder(dtype=np.float64)
    x = b.input("x", (*SHAPE, N))
    root = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", x, x)), b.const(1e-6)))
    b.output(b.op("Mul", b.op("Div", x, root), b.weight(N)))
    refused(b.model(), "float64", OP)


def test_a_norm_behind_a_block_is_that_blocks() -> None:
    b = builder()
    x, residual = b.input("x", (*SHAPE, 16)), b.input("residual", (*SHAPE, N))
    total = b.op("Add", b.linear(x, 16, N), residual)
    b.output(rms_norm(b, total, b.weight(N)), b.op("Neg", total), rms_norm(b, residual, b.weight(N)))
    result = fused(b.model())
    assert result.fused == result.expected == {"FusedGemmResidualNorm": 1, OP: 1}


def test_level_basic_has_none() -> None:
    b = builder()
    b.output(rms_norm(b, b.input("x", (*SHAPE, N)), b.weight(N)))
    result = fused(b.model(), level="basic")
    assert not result.fused and not result.expected


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_the_kernel_computes_what_the_body_does(dtype: str, library) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    weight = random.uniform(-0.3, 0.3, N).astype(np.float32)
    model = fuse(in_float32(np.dtype(np.float32), weight), dtype=dtype).model
    x = random.standard_normal((3, 7, N)).astype(np.float32 if dtype == "fp32" else np.float16)
    found = []
    for kernels in (False, True):
        options = onnxruntime.SessionOptions()
        if kernels:
            options.register_custom_ops_library(str(library))
            del model.functions[:]  # so that nothing else can run it
        name = model.graph.input[0].name
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found.append(session.run(None, {name: x.astype(session_type(session))})[0].astype(np.float64))
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * (1 + weight)
    for y in found:
        np.testing.assert_allclose(y, wanted, rtol=2e-3, atol=2e-3 if dtype == "fp16" else 1e-5)


def session_type(session: onnxruntime.InferenceSession) -> type:
    return np.float16 if "float16" in session.get_inputs()[0].type else np.float32


def test_it_is_of_rows_that_may_be_packed() -> None:
    assert OPS[OP].packed_inputs == ("row_count",)
