"""A whole model against its original: on the CPU here, with the library's kernels; on a GPU by the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tiny_models import exported

from bertfuse.qualify import whole
from bertfuse.qualify.whole import whole_model


def test_a_right_model_has_no_findings() -> None:
    report = whole_model(Path(exported("fill-mask")), provider="cpu", dtypes=("fp32", "fp16"), sizes=5, seed=3)
    assert len(report.runs) == 10 and not report.findings and not report.absent
    assert {(run.batch, run.sequence) for run in report.runs} >= {(1, 1), (200, 2)}
    assert max(run.error for run in report.runs if run.dtype == "fp16") > 1e-6  # it was not float32 that ran


def test_a_wrong_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that fusion would have changed."""
    fuse = whole.fuse_file

    def spoilt(source: Path, target: Path, **options: object) -> None:
        fuse(source, target, **options)
        model = onnx.load(str(target))
        weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
        array = numpy_helper.to_array(weight).copy()
        array[: len(array) // 2] *= np.float32(1.5)
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
        onnx.save(model, str(target))

    monkeypatch.setattr(whole, "fuse_file", spoilt)
    report = whole_model(Path(exported("fill-mask")), provider="cpu", dtypes=("fp32",), sizes=3, seed=3)
    assert report.findings and "of the largest output off" in report.findings[0].wrong
