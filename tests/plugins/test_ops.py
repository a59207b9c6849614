"""Every op as a one-node model in ONNX Runtime with the library on the CPU, against the float64 oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bertfuse.graph_rewrite import oracle
from bertfuse.graph_rewrite.ops import MODEL_OPS, OPS
from bertfuse.qualify.tolerances import assert_close
from tests.cases import FLOATS, Case, cases, make_case, shapes
from tests.one_node import as_float64, model, run, session

ALL = [case for op in MODEL_OPS for dtype in FLOATS for case in cases(op, dtype)]


def _check(case: Case, runner: onnxruntime.InferenceSession) -> None:
    expected = oracle(case.op, as_float64(case.inputs), dict(case.attributes))
    actual = run(runner, case, [array.shape for array in expected])
    for got, want in zip(actual, expected, strict=True):
        assert_close(got, want, case.op, case.dtype, case.error_scale)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_against_the_oracle(case: Case, library: Path) -> None:
    _check(case, session(model(case), library))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", MODEL_OPS)
def test_weights_as_initialisers(op: str, dtype: str, library: Path) -> None:
    case = next(case for case in cases(op, dtype) if case.label == "primes")
    _check(case, session(model(case, constants=True), library))


@pytest.mark.parametrize("op", MODEL_OPS)
@pytest.mark.parametrize("known", ["known", "free", "unknown"])
def test_shape_inference(op: str, known: str, library: Path) -> None:
    case = next(case for case in cases(op) if case.label == "primes")
    runner = session(model(case, shapes=known, constants=known == "free"), library)
    # Older releases die of an absent optional input while they ask for shapes, so they are not given any.
    recent = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 24)
    inferred = recent or not OPS[op].optional_inputs
    expected = oracle(op, as_float64(case.inputs), dict(case.attributes))
    for output, tensor, array in zip(runner.get_outputs(), OPS[op].outputs, expected, strict=True):
        if not inferred or (known == "unknown" and tensor.leading):
            assert output.shape == []  # not even the rank is known
            continue
        assert len(output.shape) == array.ndim
        if known == "known":
            assert output.shape == list(array.shape)
        elif known == "free":
            # The last axis comes from the weights; the first ones are the input's, by name.
            source = runner.get_inputs()[0].name
            first = case.inputs[source].ndim - 1 if op == "RotaryTables" else 0  # of tokens the last axis counts
            assert output.shape[0] == f"{source}_{first}"
            assert isinstance(output.shape[-1], int) and output.shape[-1] == array.shape[-1]
        else:
            assert not any(isinstance(axis, int) and axis < 0 for axis in output.shape)
    _check(case, runner)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["baseline", "avx2"])
def test_narrower_instruction_sets(limit: str) -> None:
    if os.environ.get("BERTFUSE_CPU_ISA"):
        pytest.skip("already running with a limit")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    command += ["-k", "test_against_the_oracle and (primes or minilm or masked or large)"]
    finished = subprocess.run(
        command, env={**os.environ, "BERTFUSE_CPU_ISA": limit}, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stdout[-2000:]


def test_one_session_in_many_threads(library: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    pairs = []
    for op in MODEL_OPS:
        case = next(case for case in cases(op) if case.label == "primes")
        pairs.append((case, session(model(case, constants=True), library)))
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(_check, case, runner) for _ in range(10) for case, runner in pairs]:
            future.result()


def test_result_does_not_depend_on_the_number_of_threads(library: Path) -> None:
    for op in MODEL_OPS:
        case = make_case(op, next(shape for shape in shapes(op) if shape.label in ("minilm", "bert")))
        results = []
        for threads in (1, 3):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            options.register_custom_ops_library(str(library))
            runner = onnxruntime.InferenceSession(model(case).SerializeToString(), options)
            results.append(runner.run(None, {k: v for k, v in case.inputs.items() if v is not None}))
        for one, three in zip(*results, strict=True):
            np.testing.assert_allclose(one, three, rtol=1e-5, atol=1e-5)
