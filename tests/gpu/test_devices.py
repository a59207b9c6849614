"""A second GPU: kernels, sessions and measuring run on the device of their tensors, whichever is current."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")

from bertfuse.graph_rewrite.ops import FAMILY_OPS, MODEL_OPS  # noqa: E402
from tests.gpu.harness import GPU, poisoned  # noqa: E402
from tests.gpu.kernels import Bound, library_file, native  # noqa: E402
from tests.gpu.test_limits import calls  # noqa: E402
from tests.gpu.test_sessions import CUDA, fed, large  # noqa: E402
from tests.one_node import model  # noqa: E402

pytestmark = [*GPU, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


@pytest.fixture(autouse=True)
def _first_device():
    torch.cuda.set_device(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("op", [op for op in MODEL_OPS if op not in FAMILY_OPS])  # what calls() has
def test_kernel_runs_where_its_tensors_are(op, dtype):
    inputs, attributes, shapes, _ = calls(op, 256, dtype)
    results = []
    for device in (0, 1):
        with torch.cuda.device(device):
            there = [None if tensor is None else tensor.to(f"cuda:{device}") for tensor in inputs]
            outputs = [poisoned(*shape, dtype=dtype) for shape in shapes]
            bound = Bound(op, there, outputs, attributes)
        torch.cuda.synchronize(device)
        bound.run()
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(device)
        results.append([y.cpu() for y in outputs])
    for first, second in zip(*results, strict=True):
        assert torch.isfinite(first).all() and torch.equal(first, second)


@pytest.mark.parametrize("op", MODEL_OPS)
def test_session_runs_on_its_device(op):
    case = large(op)
    results = []
    for device in (0, 1):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.register_custom_ops_library(str(library_file()))
        providers = [(CUDA, {"device_id": str(device)})]
        session = onnxruntime.InferenceSession(model(case).SerializeToString(), options, providers)
        results.append(session.run(None, fed(case)))  # leaves its device current: ONNX Runtime does
    for first, second in zip(*results, strict=True):
        assert np.array_equal(first, second)


def test_tactics_of_a_call_on_another_device_are_measured():
    inputs, attributes, shapes, _ = calls("FusedGemm", 256, torch.float16)
    bound = Bound("FusedGemm", inputs, [poisoned(*shapes[0], dtype=torch.float16)], attributes)
    bound.call.device_id = 1
    assert len(native.time_tactics("FusedGemm", bound.call, 1.0, library_file())) == bound.tactics()
    assert torch.cuda.current_device() == 0
