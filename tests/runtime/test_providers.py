"""Where a session runs and how exactly: said, and as it was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from bertfuse.errors import BertfuseError
from bertfuse.measuring.subjects import Subject
from bertfuse.runtime import session as sessions
from bertfuse.runtime.session import CPU, CUDA, InferenceSession


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "small", values[:1], values[1:])
    file = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    return file


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """onnxruntime as it is where the CUDA provider's libraries are missing: it leaves the provider out, and goes on."""
    asked: list[dict[str, Any]] = []
    original = onnxruntime.InferenceSession.__init__

    def init(self, model, sess_options=None, providers=None, **options: Any) -> None:
        asked.append({"providers": providers, **options})
        left = [entry for entry in providers if (entry[0] if isinstance(entry, tuple) else entry) != CUDA]
        original(self, model, onnxruntime.SessionOptions(), providers=left or [CPU])

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", init)
    monkeypatch.setattr(sessions, "_register", lambda *_, **__: False)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    return asked


def test_a_provider_that_was_left_out_is_told(path, without_gpu) -> None:
    with pytest.warns(RuntimeWarning, match=f"left {CUDA} out; .*the session runs on {CPU}"):
        session = InferenceSession(path, [CUDA, CPU])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [-1, -1]


def test_an_error_where_only_that_one_was_asked_for(path, without_gpu) -> None:
    with pytest.raises(BertfuseError, match=f"small.onnx: ONNX Runtime left {CUDA} out"):
        InferenceSession(path, [CUDA])


def test_a_comparison_does_not_take_the_cpu_for_a_gpu(path, without_gpu) -> None:
    with pytest.raises(BertfuseError, match=f"small.onnx: runs on {CPU}, since ONNX Runtime left {CUDA} out"):
        Subject.parse(f"{path}@cuda").session()
    assert Subject.parse(f"{path}@cpu").session().get_providers() == [CPU]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("tf32", "own", "wanted"), [(False, {}, 0), (True, {}, 1), (False, {"use_tf32": 1}, 1)])
def test_tf32_only_where_it_was_asked_for(path, without_gpu, tf32: bool, own: dict[str, int], wanted: int) -> None:
    InferenceSession(path, [(CUDA, own), CPU], tf32=tf32)
    InferenceSession(path, [CUDA, CPU], tf32=tf32, provider_options=[own, {}])
    first, second = without_gpu
    assert first["providers"] == [(CUDA, {"use_tf32": wanted}), CPU] and first["enable_fallback"] == 0
    assert second["providers"] == [CUDA, CPU] and second["provider_options"] == [{"use_tf32": wanted}, {}]


def test_the_cpu_alone_says_nothing(path, recwarn: pytest.WarningsRecorder) -> None:
    InferenceSession(path, [CPU])
    InferenceSession(path)
    assert not recwarn.list
