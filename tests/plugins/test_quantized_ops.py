"""Ops with 8-bit weights: kernels and bodies against the rule in float64, and what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from bertfuse.graph_rewrite import functions, oracle
from bertfuse.qualify.tolerances import TOLERANCES
from tests.cases import Case
from tests.one_node import model, run, session
from tests.quantized_cases import FLOAT8, embedding, product

COUNT = 60


def _seeds() -> list[int]:
    start = int(os.environ.get("BERTFUSE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"BERTFUSE_TEST_SEED={start}")
    return [start + index for index in range(COUNT)]


def _check(case: Case, runner: onnxruntime.InferenceSession) -> None:
    wanted = oracle(case.op, case.inputs, case.attributes)
    for got, expected in zip(run(runner, case, [array.shape for array in wanted]), wanted, strict=True):
        assert got.shape == expected.shape, case
        with np.errstate(all="ignore"):
            assert np.array_equal(np.isnan(got), np.isnan(expected)), f"{case}: NaN elsewhere"
            tolerance = TOLERANCES[case.op, case.dtype]
            # The table is for results of about 1; here a product's terms may be larger than what they sum up to.
            size = np.maximum(np.nanmax(np.abs(expected), initial=0), 1)
            most = float(np.finfo(got.dtype).max)  # beyond which is an infinity
            off = np.abs(np.clip(got.astype(np.float64), -most, most) - np.clip(expected, -most, most))
            wrong = off > size * (tolerance.atol + tolerance.rtol * np.abs(expected))
        assert not wrong.any(), f"{case}: {got[wrong][:3]}, expected {expected[wrong][:3]}"


def _body(case: Case, opset: int = 17) -> onnxruntime.InferenceSession:
    proto = model(case, constants=True)
    proto.opset_import[0].version = opset
    data_type = TensorProto.FLOAT if case.dtype == "float32" else TensorProto.FLOAT16
    functions.attach(proto, {proto.graph.node[0].output[0]: data_type})
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def float8_product(seed: int) -> Case:
    return product(seed, FLOAT8)


@pytest.mark.parametrize("make", [product, float8_product, embedding])
@pytest.mark.parametrize("constants", [True, False])
def test_kernels(make, constants: bool, library: Path) -> None:
    """Also of weights that are no constants, which are packed in each run."""
    for seed in _seeds():
        case = make(seed)
        _check(case, session(model(case, constants=constants), library))


@pytest.mark.parametrize("make", [product, embedding])
def test_bodies(make) -> None:
    for seed in _seeds():
        case = make(seed)
        if not all(array is None or array.size for array in case.inputs.values()):
            continue  # ONNX Runtime's MatMulInteger gives an operand without elements back as it is
        _check(case, _body(case, opset=(14, 17, 18, 21)[seed % 4] if case.dtype == "float32" else 17))


def test_float8_bodies() -> None:
    for seed in _seeds():
        case = product(seed, FLOAT8)
        if case.dtype == "float32" and case.inputs["x"].size:  # without elements ONNX Runtime fails at Mul
            _check(case, _body(case, opset=19))


@pytest.mark.parametrize("limit", ["baseline", "avx2", "avx512", "avx512vnni"])
def test_narrower_instruction_sets(limit: str) -> None:
    if os.environ.get("BERTFUSE_CPU_ISA"):
        pytest.skip("already running with a limit")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", __file__, "-k", "kernels"]
    finished = subprocess.run(
        command, env={**os.environ, "BERTFUSE_CPU_ISA": limit}, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stdout[-2000:]


def _fails(case: Case, library: Path, message: str) -> None:
    with pytest.raises(Exception, match=message):
        shape = (*case.inputs["x"].shape[:-1], len(case.inputs["weight"]))
        run(session(model(case), library), case, [shape])


def test_scales_that_do_not_fit(library: Path) -> None:
    """A weight of int8 without scales, scales of a float weight, two rows of factors."""
    seeds = iter(_seeds())
    case = next(c for c in map(product, seeds) if c.op == "FusedGemm" and c.dtype == "float32" and c.inputs["x"].size)
    n, k = case.inputs["weight"].shape
    without = {**case.inputs, "weight_scale": None, "x_smooth": None, "x_scale": None}
    _fails(Case(case.op, "", without, {}), library, "'weight' is int8, and its scales 'weight_scale' are missing")
    floats = {**case.inputs, "weight": np.ones((n, k), np.float32)}
    _fails(Case(case.op, "", floats, {}), library, "'weight' is float32, and its scales 'weight_scale' are given")
    rows = {**case.inputs, "x_smooth": np.ones((2, k), np.float32)}
    _fails(Case(case.op, "", rows, {}), library, "'x_smooth' has 2 rows, expected 1")
