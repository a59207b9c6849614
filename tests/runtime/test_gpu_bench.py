"""The benchmark's check that our CUDA kernels ran, on profiles of sessions where they did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from tiny_models import LAYERS, exported, inputs

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.runtime.gpu_bench import CUDA, GpuOptions, check_profile, cuda_session


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "model.fused.onnx"
    fuse_file(exported(), path)
    return path


def profile(path: Path, library: bool, folder: Path) -> list[dict[str, Any]]:
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    if library:
        bertfuse.register(options)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = inputs(2, 9)
    session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})
    return json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))


def test_cpu_kernels_are_not_measured(fused: Path, tmp_path: Path) -> None:
    events = profile(fused, True, tmp_path)
    with pytest.raises(BertfuseError, match=rf"FusedAttention 0 of {LAYERS}.*FusedAttention {LAYERS} on CPUExec"):
        check_profile(fused, events)
    for event in events:
        if (event.get("args") or {}).get("provider"):
            event["args"]["provider"] = CUDA
    assert check_profile(fused, events)["FusedAttention"] == LAYERS
    # One node that ran as its body instead.
    lost = next(event for event in events if (event.get("args") or {}).get("op_name") == "FusedGemmGelu")
    events.remove(lost)
    with pytest.raises(BertfuseError, match=rf"\(FusedGemmGelu {LAYERS - 1} of {LAYERS}\)"):
        check_profile(fused, events)


def test_op_bodies_are_not_measured(fused: Path, tmp_path: Path) -> None:
    with pytest.raises(BertfuseError, match="not every fused op ran as our CUDA kernel"):
        check_profile(fused, profile(fused, False, tmp_path))


def test_a_model_without_fused_ops_is_refused() -> None:
    with pytest.raises(BertfuseError, match="has no fused op"):
        check_profile(exported(), [])


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="this onnxruntime has the CUDA provider")
def test_an_onnxruntime_without_cuda_is_refused(fused: Path) -> None:
    with pytest.raises(BertfuseError, match="this onnxruntime has no CUDAExecutionProvider"):
        cuda_session(fused, "always", GpuOptions())
