"""Ops that write their rows in 8 bits, and products of such rows: kernels and bodies against the rule in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bertfuse.graph_rewrite import oracle
from bertfuse.graph_rewrite.dialect.quantized import quantized_rows
from bertfuse.qualify.tolerances import TOLERANCES
from tests.cases import Case
from tests.one_node import model, run, session
from tests.plugins.test_quantized_ops import _body, _check, _fails, _seeds
from tests.quantized_cases import FLOAT8, INT8, attention, embedding, of_quantized, product, writing


def _writers(weight_type: np.dtype) -> list[Case]:
    cases = []
    for seed in _seeds():
        case = (embedding(seed), attention(seed), attention(seed), product(seed, weight_type))[min(seed % 6, 3)]
        if case.op != "FusedGemm":
            cases.append(writing(case))
    return cases


def _rule(case: Case, y: np.ndarray, divides: bool) -> tuple[np.ndarray, np.ndarray]:
    """y, as it came out, in 8 bits, and the rows' scales [..., 1].

    `divides`: as ONNX Runtime computes a body, where it makes a / b of a * (1 / b).
    """
    zero, smooth, scale = (case.inputs.get(name) for name in ("y_zero_point", "y_smooth", "y_tensor_scale"))
    if scale is None:
        return quantized_rows(y, zero.dtype, smooth)
    with np.errstate(all="ignore"):
        y = y.astype(np.float32)
        if divides:
            scaled = y / scale if smooth is None else y * (smooth / scale)
        else:
            inverse = np.float32(1) / scale
            scaled = y * (inverse if smooth is None else smooth * inverse)
    scales = np.full((*y.shape[:-1], 1), np.float64(scale))
    if zero.dtype != INT8:
        return quantized_rows(scaled, zero.dtype, scale=1.0)[0], scales
    return np.clip(np.rint(scaled) + np.float32(zero), -128, 127), scales


def _check_written(case: Case, runner: onnxruntime.InferenceSession, divides: bool = False) -> None:
    """y is the oracle's; its 8 bits are those of y as it came out. `divides`: as in _rule()."""
    wanted = oracle(case.op, case.inputs, case.attributes)
    y, *_, quantized, scale = run(runner, case, [array.shape for array in wanted])
    tolerance = TOLERANCES[case.op, case.dtype]
    finite = np.isfinite(wanted[0])
    # Rows of a word whose scale is 0, or of gammas that are, are no matter of tolerance.
    size = np.maximum(np.max(np.abs(wanted[0]), initial=1, where=finite), 1)
    with np.errstate(all="ignore"):
        wrong = np.abs(y - wanted[0]) > size * (tolerance.atol + tolerance.rtol * np.abs(wanted[0]))
    assert not (wrong & finite).any(), f"{case}: {y[wrong & finite][:3]}, expected {wanted[0][wrong & finite][:3]}"
    numbers, scales = _rule(case, y, divides)
    assert np.array_equal(np.isnan(scale), np.isnan(scales[..., 0])), case
    there = ~np.isnan(scale)
    # (Vectorised reductions of a row may round its sum of magnitudes otherwise; its largest is exact.)
    np.testing.assert_array_equal(scale[there], scales[..., 0][there].astype(np.float32), err_msg=str(case))
    found, expected = quantized.astype(np.float32)[there], numbers.astype(np.float32)[there]
    # Of a NaN in a row with a given scale an integer is nothing in particular in bodies, and 0 in kernels.
    there = ~np.isnan(y.astype(np.float32)[~np.isnan(scale)])
    np.testing.assert_array_equal(found[there], expected[there], err_msg=str(case))


@pytest.mark.parametrize("weight_type", [INT8, FLOAT8])
@pytest.mark.parametrize("constants", [True, False])
def test_kernels_of_quantized_rows(weight_type: np.dtype, constants: bool, library: Path) -> None:
    for seed in _seeds():
        case = of_quantized(seed, weight_type)
        _check(case, session(model(case, constants=constants), library))


@pytest.mark.parametrize("weight_type", [INT8, FLOAT8])
def test_bodies_of_quantized_rows(weight_type: np.dtype) -> None:
    for seed in _seeds():
        case = of_quantized(seed, weight_type)
        if all(array is None or array.size for array in case.inputs.values()):
            _check(case, _body(case, opset=19 if weight_type == FLOAT8 else (14, 17, 21)[seed % 3]))


@pytest.mark.parametrize("weight_type", [INT8, FLOAT8])
def test_kernels_that_write(weight_type: np.dtype, library: Path) -> None:
    for case in _writers(weight_type):
        _check_written(case, session(model(case), library))


@pytest.mark.parametrize("weight_type", [INT8, FLOAT8])
def test_bodies_that_write(weight_type: np.dtype) -> None:
    for case in _writers(weight_type):
        if all(array is None or array.size for array in case.inputs.values()):
            _check_written(case, _body(case, opset=19), divides=True)


def test_what_does_not_fit(library: Path) -> None:
    """Rows in 8 bits without scales, of another type than the weight, two rows of factors."""
    case = next(c for c in map(of_quantized, _seeds()) if c.op == "FusedGemm" and c.inputs["x"].size)
    without = {**case.inputs, "x_row_scale": None}
    _fails(Case(case.op, "", without, {}, case.dtype), library, "'x_quantized' is int8, and its scales 'x_row_scale'")
    other = {**case.inputs, "x_quantized": case.inputs["x_quantized"].astype(FLOAT8)}
    _fails(Case(case.op, "", other, {}, case.dtype), library, "no kernel def matches")
    case = next(c for c in _writers(INT8) if c.op == "FusedGemmLayerNorm" and c.inputs["x"].size)
    rows = {**case.inputs, "y_smooth": np.ones((2, len(case.inputs["gamma"])), np.float32)}
    shape = (*case.inputs["x"].shape[:-1], len(case.inputs["weight"]))
    with pytest.raises(Exception, match="'y_smooth' has 2 rows, expected 1"):
        run(
            session(model(Case(case.op, "", rows, {}, case.dtype)), library),
            Case(case.op, "", rows, {}, case.dtype),
            [shape, shape, shape[:-1]],
        )
