"""The benchmark on a GPU, as far as no GPU is needed: its check that our kernels ran, and everyone's float type."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.measuring import gpu_contenders as module
from bertfuse.measuring.contenders import Contender, Fitting, float_type
from bertfuse.measuring.gpu_contenders import (
    CUDA,
    GpuOptions,
    check_profile,
    cuda_session,
    gpu_contenders,
    output_shape,
)
from tests.tiny_models import LAYERS, exported, inputs


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


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an original; what the benchmark needs a GPU for is left out. Sessions are of files that exist."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.onnx", "config.json"):
        (folder / name).write_bytes((exported().parent / name).read_bytes())

    def session(name: str, path: Path, library: str, options: GpuOptions, notes: str) -> Contender:
        assert library == ("always" if name == "fused, library" else "never")
        return Contender(name, lambda feed: None, notes, details={"dtype": float_type(path)})

    monkeypatch.setattr(module, "_session_contender", session)
    monkeypatch.setattr(module, "kernels_run", lambda *arguments: {})
    monkeypatch.setattr(
        module, "_pytorch", lambda name, *rest: Contender(name, lambda feed: None, details={"dtype": rest[2].dtype})
    )
    return folder


@pytest.mark.parametrize(
    ("original", "fused", "asked", "runs"),
    [
        (None, None, None, "fp32"),
        (None, "fp16", None, "fp16"),
        (None, "fp16", "fp32", "fp32"),
        (None, None, "fp16", "fp16"),
        ("fp16", "fp32", None, "fp32"),
        ("fp16", None, "fp16", "fp16"),
    ],
)
def test_all_contenders_have_one_type(
    original: str | None, fused: str | None, asked: str | None, runs: str, measured: Path, tmp_path: Path
) -> None:
    source, target = measured / "model.onnx", measured / "model.fused.onnx"
    if original == "fp16":
        module.half_precision(exported(), source)
    fuse_file(source, target, dtype=fused)
    made = gpu_contenders(measured, GpuOptions(asked), {}, tmp_path, lambda line: None)
    assert {contender.details["dtype"] for contender in made if contender.run} == {runs}
    for contender in made:
        if original == "fp16" and runs == "fp32" and contender.name == "original ONNX":
            assert contender.absent == "model.onnx is fp16, which is not converted to fp32"
        else:
            assert contender.run is not None, (contender.name, contender.absent)


def test_a_fused_file_that_the_others_cannot_match_is_refused(measured: Path, tmp_path: Path) -> None:
    fuse_file(exported(), measured / "model.fused.onnx", dtype="bf16")
    with pytest.raises(BertfuseError, match=r"model\.fused\.onnx: is bf16, .*; give --dtype fp32 or fp16"):
        gpu_contenders(measured, GpuOptions(), {}, tmp_path, lambda line: None)


def test_ragged_models_get_real_tokens_and_every_output_has_a_shape(tmp_path: Path) -> None:
    """As far as no GPU is needed: what would be bound there."""
    path = tmp_path / "ragged.onnx"
    fuse_file(exported("text-classification"), path, padding="ragged")
    session = bertfuse.InferenceSession(path)
    feed = inputs(3, 9)
    taken = Fitting(session)(feed)
    assert set(taken) == {value.name for value in session.get_inputs()}
    assert len(taken["input_ids"]) == feed["attention_mask"].sum() < 27
    given = session.get_inputs(), taken
    outputs = session.get_outputs()
    for value, array in zip(outputs, session.run(None, taken), strict=True):
        assert output_shape(value, *given) == list(array.shape)
    # Whatever the file calls the axis.
    pooled = SimpleNamespace(shape=["axis_3", 32])
    assert output_shape(pooled, *given) == [3, 32]
