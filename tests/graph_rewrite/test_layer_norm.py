"""LayerNormalization and its spelled-out forms, seen through FusedGemmLayerNorm."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.encoders_of_ids import encoder, ids_and_mask
from tests.graph_rewrite.graphs import Builder, assert_agree, fused, normalised, refused

N = 24


def spelled_out(b: Builder, x: str, square: str = "pow", twice: bool = False, swap: bool = False, **wrong) -> str:
    """The nine operators. `wrong` replaces one part of them."""
    axis = wrong.get("axis", -1)
    centred = b.op("Sub", x, b.mean(x, (wrong.get("mean_axis", axis),)))
    numerator = b.op("Sub", x, b.mean(x, (wrong.get("second_axis", axis),))) if twice else centred
    exponent = b.const(wrong.get("power", 2.0))
    squared = b.op("Pow", centred, exponent) if square == "pow" else b.op("Mul", centred, centred)
    variance = b.mean(squared, (wrong.get("variance_axis", axis),))
    epsilon = b.const(wrong.get("epsilon", 1e-5))
    total = b.op("Add", *((epsilon, variance) if swap else (variance, epsilon)))
    quotient = b.op("Div", wrong.get("numerator", numerator), b.op("Sqrt", total))
    gamma = wrong.get("gamma") or b.const(1 + 0.2 * b.random.standard_normal(N))
    beta = wrong.get("beta") or b.weight(N)
    scaled = b.op("Mul", *((gamma, quotient) if swap else (quotient, gamma)))
    return b.op("Add", *((beta, scaled) if swap else (scaled, beta)))


def residual_sum(b: Builder, swap: bool = False, shape: tuple[int | str, ...] = ("B", "S")) -> str:
    x = b.linear(b.input("x", (*shape, 16)), 16, N)
    residual = b.input("residual", (*shape, N))
    return b.op("Add", *((residual, x) if swap else (x, residual)))


SPELLINGS = list(itertools.product(("pow", "mul"), (False, True), (False, True), (-1, 2), (13, 17, 18, 21)))


@pytest.mark.parametrize(("square", "twice", "swap", "axis", "opset"), SPELLINGS)
def test_spelled_out(square: str, twice: bool, swap: bool, axis: int, opset: int) -> None:
    b = Builder(opset)
    b.output(spelled_out(b, residual_sum(b, swap), square, twice, swap, axis=axis))
    result = fused(b.model())
    assert result.fused == result.expected == {"FusedGemmLayerNorm": 1}


@pytest.mark.parametrize("axis", [-1, 2, None])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, None, 0.1])
def test_standard_operator(axis: int | None, epsilon: float | None) -> None:
    b = Builder()
    attributes = {k: v for k, v in {"axis": axis, "epsilon": epsilon}.items() if v is not None}
    b.output(b.op("LayerNormalization", residual_sum(b), b.weight(N), b.weight(N), **attributes))
    result = fused(b.model())
    assert result.fused == {"FusedGemmLayerNorm": 1}
    (node,) = (n for n in result.model.graph.node if n.op_type == "FusedGemmLayerNorm")
    got = next(a.f for a in node.attribute if a.name == "epsilon")
    assert got == pytest.approx(1e-5 if epsilon is None else epsilon)


def test_without_beta() -> None:
    b = Builder()
    b.output(b.op("LayerNormalization", residual_sum(b), b.weight(N), axis=-1))
    assert fused(b.model()).fused == {"FusedGemmLayerNorm": 1}


def test_float16() -> None:
    b = Builder(dtype=np.float16)
    b.output(b.layer_norm(residual_sum(b), N))
    assert fused(b.model(), tol=5e-3).fused == {"FusedGemmLayerNorm": 1}


FLOAT, HALF, DOUBLE = 1, 10, 11


def _vectors(b: Builder, dtype: type) -> tuple[str, str]:
    return b.const(1 + 0.2 * b.random.standard_normal(N), dtype=dtype), b.const(
        b.random.standard_normal(N), dtype=dtype
    )


def between_casts(b: Builder, x: str) -> str:
    """The whole of it in float32."""
    wide = b.op("Cast", x, to=FLOAT)
    return b.op("Cast", b.op("LayerNormalization", wide, *_vectors(b, np.float32), axis=-1), to=HALF)


def spelled_out_between_casts(b: Builder, x: str) -> str:
    gamma, beta = _vectors(b, np.float32)
    b.dtype = np.dtype(np.float32)
    y = spelled_out(b, b.op("Cast", x, to=FLOAT), gamma=gamma, beta=beta)
    b.dtype = np.dtype(np.float16)
    return b.op("Cast", y, to=HALF)


def variance_in(to: int, dtype: type):
    def make(b: Builder, x: str) -> str:
        """As torchscript writes a float16 model at opset 14: x - mean(x) goes up, the quotient comes down."""
        centred = b.op("Cast", b.op("Sub", x, b.mean(x)), to=to)
        variance = b.mean(b.op("Pow", centred, b.const(2.0, dtype=dtype)))
        root = b.op("Sqrt", b.op("Add", variance, b.const(1e-5, dtype=dtype)))
        quotient = b.op("Cast", b.op("Div", centred, root), to=HALF)
        gamma, beta = _vectors(b, np.float16)
        return b.op("Add", b.op("Mul", quotient, gamma), beta)

    return make


def scaled_in_half(b: Builder, x: str) -> str:
    """Statistics in float32, gamma and beta in float16."""
    b.dtype = np.dtype(np.float32)
    wide = b.op("Cast", x, to=FLOAT)
    centred = b.op("Sub", wide, b.mean(wide))
    root = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", centred, centred)), b.const(1e-5)))
    quotient = b.op("Cast", b.op("Div", centred, root), to=HALF)
    b.dtype = np.dtype(np.float16)
    gamma, beta = _vectors(b, np.float16)
    return b.op("Add", b.op("Mul", quotient, gamma), beta)


CASTS = {
    "named": between_casts,
    "spelled out": spelled_out_between_casts,
    "variance in double": variance_in(DOUBLE, np.float64),
    "variance in float": variance_in(FLOAT, np.float32),
    "scaled in half": scaled_in_half,
}


@pytest.mark.parametrize("name", list(CASTS))
@pytest.mark.parametrize("opset", [17, 18])
def test_float16_with_statistics_in_another_type(name: str, opset: int) -> None:
    b = Builder(opset, np.float16)
    b.output(CASTS[name](b, residual_sum(b)))
    result = fused(b.model(), tol=5e-3)
    assert result.fused == result.expected == {"FusedGemmLayerNorm": 1}
    (node,) = (n for n in result.model.graph.node if n.op_type == "FusedGemmLayerNorm")
    types = {t.name: t.data_type for t in result.model.graph.initializer}
    assert {types[name] for name in node.input[4:6]} == {HALF}


def test_a_sum_that_stays_in_float32() -> None:
    """Under autocast the residual stream is float32, projections float16: no op mixes them."""
    b = Builder(dtype=np.float16)
    x = b.op("Cast", b.linear(b.input("x", ("B", "S", 16)), 16, N), to=FLOAT)
    total = b.op("Add", x, b.input("residual", ("B", "S", N), np.float32))
    b.output(b.op("Cast", b.op("LayerNormalization", total, *_vectors(b, np.float32), axis=-1), to=HALF))
    result = fused(b.model(), tol=5e-3)
    assert not result.fused


WRONG = {
    "mean over the sequence": ({"mean_axis": 1}, "expected the last axis alone"),
    "variance over the sequence": ({"variance_axis": 1}, "expected the last axis alone"),
    "third power": ({"power": 3.0}, "expected Pow(x - mean(x), 2)"),
    "epsilon is a vector": ({"epsilon": np.full(N, 1e-5)}, "expected a constant epsilon"),
    "epsilon beyond its range": ({"epsilon": 2.0}, "epsilon is 2.0"),
}


@pytest.mark.parametrize("name", list(WRONG))
@pytest.mark.parametrize("opset", [17, 18])
def test_near_misses(name: str, opset: int) -> None:
    changes, reason = WRONG[name]
    b = Builder(opset)
    b.output(spelled_out(b, residual_sum(b), **changes))
    refused(b.model(), reason, "FusedGemmLayerNorm")


@pytest.mark.parametrize("second_axis", [0, 1])
def test_second_difference_of_another_mean(second_axis: int) -> None:
    b = Builder()
    b.output(spelled_out(b, residual_sum(b), twice=True, second_axis=second_axis))
    refused(b.model(), "", "FusedGemmLayerNorm")


def test_numerator_of_another_tensor() -> None:
    b = Builder()
    total = residual_sum(b)
    b.output(spelled_out(b, total, numerator=total))
    refused(b.model(), "expected x - mean(x)", "FusedGemmLayerNorm")


@pytest.mark.parametrize("which", ["gamma", "beta"])
@pytest.mark.parametrize("form", ["spelled out", "named"])
def test_scale_or_shift_not_constant(which: str, form: str) -> None:
    b = Builder()
    total = residual_sum(b)
    given = {which: b.input(which, (N,))}
    b.output(spelled_out(b, total, **given) if form == "spelled out" else b.layer_norm(total, N, **given))
    refused(b.model(), "constant vector", "FusedGemmLayerNorm")


@pytest.mark.parametrize("which", ["gamma", "beta"])
@pytest.mark.parametrize("shape", [(1, N), (5, N), (1,), ()])
def test_scale_or_shift_of_wrong_shape(which: str, shape: tuple[int, ...]) -> None:
    b = Builder()
    total = residual_sum(b)
    b.output(spelled_out(b, total, **{which: b.weight(*shape)}))
    refused(b.model(), "", "FusedGemmLayerNorm")


def test_axis_that_is_not_the_last() -> None:
    b = Builder()
    total = residual_sum(b, shape=(2, 5))
    b.output(b.op("LayerNormalization", total, b.weight(5, N), b.weight(5, N), axis=1))
    refused(b.model(), "normalises from axis 1", "FusedGemmLayerNorm")


@pytest.mark.parametrize("output", [1, 2])
@pytest.mark.parametrize("how", ["exposed", "used"])
def test_statistics_needed(output: int, how: str) -> None:
    b = Builder()
    parts = b.op("LayerNormalization", residual_sum(b), b.weight(N), b.weight(N), outputs=3, axis=-1)
    b.output(parts[0], parts[output] if how == "exposed" else b.op("Neg", parts[output]), shape=("B", "S", None))
    refused(b.model(), "mean or deviation is used", "FusedGemmLayerNorm")


@pytest.mark.parametrize("op", ["ReduceMean", "Sub", "Pow", "Add", "Sqrt", "Div", "Mul"])
@pytest.mark.parametrize("how", ["exposed", "used"])
def test_interior_needed_elsewhere(op: str, how: str) -> None:
    b = Builder()
    total = residual_sum(b)
    spelled_out(b, total)
    last = b.nodes[-1].output[0]
    start = next(i for i, n in enumerate(b.nodes) if n.output[0] == total)
    tensor = next(n.output[0] for n in b.nodes[start + 1 :] if n.op_type == op)
    b.output(last, tensor if how == "exposed" else b.op("Neg", tensor))
    refused(b.model(), "", "FusedGemmLayerNorm")


def test_rms_norm_is_none() -> None:
    b = Builder()
    x = residual_sum(b)
    root = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", x, x)), b.const(1e-5)))
    b.output(b.op("Add", b.op("Mul", b.op("Div", x, root), b.weight(N)), b.weight(N)))
    counts, reasons = normalised(b.model())
    assert "LayerNorm" not in counts
    assert "squares something else, expected x - mean(x)" in " ".join(reasons.values())
    assert fused(b.model()).fused == {"FusedGemmResidualNorm": 1}


def test_not_affine() -> None:
    b = Builder()
    x = residual_sum(b)
    centred = b.op("Sub", x, b.mean(x))
    root = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", centred, centred)), b.const(1e-5)))
    b.output(b.op("Div", centred, root))
    refused(b.model(), "expected one Mul", "FusedGemmLayerNorm")


@pytest.mark.parametrize("padding", ["keep", "remove"])
def test_outputs_that_nothing_uses(padding: str) -> None:
    """Mean and deviation have names, and no reader: what is fused gives one output."""
    model = encoder()
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            node.output.extend([f"{node.output[0]}_mean", f"{node.output[0]}_deviation"])
    result = fuse(model, padding=padding)
    assert result.fused["FusedGemmLayerNorm"] == 2 and result.fused["EmbedLayerNorm"] == 1
    onnx.checker.check_model(result.model, full_check=True)
    assert_agree(model, result.model, ids_and_mask(2, 5), 1e-4)
