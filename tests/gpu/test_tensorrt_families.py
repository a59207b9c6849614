"""What docs/coverage.md fuses, in TensorRT 8.6 itself, against ONNX Runtime's float32 of the file before fusion.

Needs what test_tensorrt_engines.py needs. With pytest-xdist, `--dist load --maxschedchunk 1` keeps the order: every
family once in float16, then once in float32, then BERT's other tasks.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertfuse.graph_rewrite import fuse_file  # noqa: E402
from bertfuse.runtime.trt.model import prepare  # noqa: E402
from tests.gpu.tensorrt_runner import QUICKEST, Runner, needed  # noqa: E402
from tests.model_coverage.families import FAMILIES, LONGEST  # noqa: E402
from tests.model_coverage.files import Recipe, feed, make  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow, needed()]
SIZES = ((1, 1), (2, 7), (3, 33))
MOST = {"fp32": 1e-4, "fp16": 2e-2}  # of the norm
# Nothing is fused; no tokens; an export of one size.
WITHOUT = ("mobilebert", "vit", "funnel")
_FAMILIES = [
    family
    for family in FAMILIES.values()
    if family.checkpoint is None and family.name not in WITHOUT and not family.sees
]
CASES = [(family.name, family.tasks[0]) for family in _FAMILIES]
_OTHERS = [("bert", task) for task in FAMILIES["bert"].tasks[1:]]
FORMS = [(*case, dtype) for cases in (CASES, _OTHERS) for dtype in ("fp16", "fp32") for case in cases]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner.ours()


def exported(family: str, task: str) -> Path:
    if not hasattr(transformers, FAMILIES[family].config):
        pytest.skip(f"transformers {transformers.__version__} has no {FAMILIES[family].config}")
    folder = Path(os.environ["BERTFUSE_TEST_MODELS"]) / "coverage"
    return make(Recipe(family, task, "torchscript", "eager", 17), folder)[0]


@pytest.mark.parametrize(("family", "task", "dtype"), FORMS)
def test_family(family: str, task: str, dtype: str, runner: Runner, tmp_path: Path) -> None:
    source = exported(family, task)
    fuse_file(source, tmp_path / "fused.onnx", dtype=dtype)
    ready = prepare(tmp_path / "fused.onnx", tmp_path / "ready.onnx", plugins=True, older_parser=True)
    session = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    bounds = {value.name: ((1, 1), (2, 7), (4, LONGEST)) for value in session.get_inputs()}
    plan, layers = runner.build(tmp_path / "ready.onnx", [bounds], dtype == "fp16", QUICKEST)
    assert layers == sum(ready.ops.values()) > 0
    context = runner.load(plan).context()
    for size in SIZES:
        given = feed(session, *size)
        outputs = context.run(given)
        seen = given["attention_mask"] != 0
        for value, wanted in zip(session.get_outputs(), session.run(None, given), strict=True):
            got = outputs[value.name].float().cpu().numpy()
            assert got.shape == wanted.shape and np.isfinite(got).all()
            rows = seen if wanted.shape[:2] == seen.shape else ...
            error = np.linalg.norm(got[rows] - wanted[rows]) / np.linalg.norm(wanted[rows])
            print(f"{family}, {task} {dtype} {size} {value.name}: error {error:.2e}")
            assert error < MOST[dtype]
