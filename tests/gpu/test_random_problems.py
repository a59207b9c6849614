"""Random problems of every op, dtype and tactic on all GPUs here, padded and packed: a short hunt of qualify's."""

from __future__ import annotations

import os

import pytest

from bertfuse.graph_rewrite.ops import MODEL_OPS
from bertfuse.qualify import driver
from bertfuse.qualify.kernels import qualify_kernels
from bertfuse.qualify.problem import DTYPES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(driver.device_count() == 0, reason="no NVIDIA GPU")]
COUNT = int(os.environ.get("BERTFUSE_RANDOM_PROBLEMS", "600"))


def test_random_problems() -> None:
    report = qualify_kernels(devices="cuda", minutes=10, count=COUNT)
    findings = "\n".join(f"{finding.kind}: {finding.text}\n{finding.command}" for finding in report.findings)
    assert not report.findings, f"seed {report.seed}\n{findings}"
    padded = {(op, dtype) for op, dtype in report.by(1, 2) if "packed" not in dtype and op in MODEL_OPS}
    assert padded >= {(op, dtype) for op in MODEL_OPS for dtype in DTYPES}
    print(f"{report.total} problems; not supported: {report.unsupported}")
