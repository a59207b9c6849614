"""Planted faults on a GPU: each is found, made small and repeated; a library of CUDA built with nvcc for it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from bertfuse.qualify import driver
from bertfuse.qualify.isolate import Trials, explain
from bertfuse.qualify.problem import parse
from bertfuse.qualify.worker import Settings, Worker
from tests.qualify.faulty import library

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(driver.device_count() == 0, reason="no NVIDIA GPU"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc to build kernels with planted faults"),
]

FAULTS = {
    "address": ("device", "CUDA error 700"),
    "trap": ("device", "CUDA error 71"),
    "hang": ("hang", "did not end"),
    "outside": ("memory", "1 behind y"),
    "input": ("memory", "writes its input x"),
    "nan": ("not finite", "is nan"),
    "random": ("not deterministic", "other bits each time"),
    "streams": ("streams", "beside another stream"),
    "cached": ("no kernel", "launched no kernel"),
    "foreign": ("foreign kernel", "cublas_lookalike"),
}
LARGE = str(parse("FusedGemm float32 rows=64 K=40 N=96 offset=4 constant tactic=-1 seed=5"))


@pytest.mark.parametrize("fault", FAULTS)
def test_found_made_small_and_repeated(fault: str, tmp_path: Path) -> None:
    # A trap takes the driver seconds to report where other processes keep the processor busy.
    patience = 2.0 if fault == "hang" else 20.0
    settings = Settings(str(library(fault, tmp_path, cuda=True)), "cuda:0", patience=patience)
    worker = Worker(settings)
    # Two streams need not overlap where other processes have the GPU between them.
    runs = 10 if fault == "streams" else 1
    try:
        answer = worker.run([LARGE] * runs)
    finally:
        worker.stop()
    findings = [tuple(finding) for verdict in answer.verdicts for finding in verdict["findings"]]
    reason = answer.fault or findings[0]
    finding = explain(reason, LARGE, [], Trials(settings, 8 if fault == "hang" else 40, time.monotonic() + 40))
    kind, text = FAULTS[fault]
    assert finding.kind == kind and text in finding.text and finding.repeats, finding
    assert parse(finding.problems[0]).work < parse(LARGE).work


def test_honest_kernels_have_no_findings(tmp_path: Path) -> None:
    worker = Worker(Settings(str(library("none", tmp_path, cuda=True)), "cuda:0"))
    try:
        answer = worker.run([LARGE, "FusedGemm float32 rows=0 K=3 N=4 tactic=-1 seed=1"])
    finally:
        worker.stop()
    assert answer.fault is None and [verdict["findings"] for verdict in answer.verdicts] == [[], []]
