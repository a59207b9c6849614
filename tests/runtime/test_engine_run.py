"""Running engines: what is checked before anything is loaded; on a GPU, the result."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from polygraphy.cuda import cuda

from bertfuse.errors import BertfuseError
from bertfuse.runtime import InferenceSession
from bertfuse.runtime.trt import build_engine, gpu
from bertfuse.runtime.trt import run as engine_run
from bertfuse.runtime.trt.run import EngineSession, engine_runner, shortest_sequence
from tests.engines import fused, original
from tests.tiny_models import inputs


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    build_engine(fused("bert", folder), folder / "model.plan", backend="rtx", shapes=["1x1:2x8:4x40"], plugins=False)
    return folder / "model.plan"


def changed(plan: Path, folder: Path, **entries: object) -> Path:
    """A copy of the plan whose description says something else."""
    copy = folder / "changed.plan"
    copy.write_bytes(plan.read_bytes())
    description = json.loads(Path(f"{plan}.json").read_text()) | entries
    Path(f"{copy}.json").write_text(json.dumps(description))
    return copy


def test_plans_that_cannot_run_here(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, match: str) -> None:
        with pytest.raises(BertfuseError, match=match) as caught:
            engine_runner(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)

    refused(tmp_path / "absent.plan", "no such engine")
    refused(original("bert"), "is an ONNX file; build an engine of it with 'bertfuse engine'")
    refused(changed(plan, tmp_path, version="1.6.0"), r"built with TensorRT for RTX 1\.6\.0, this is .*build it again")
    monkeypatch.setattr(engine_run, "compute_capability", lambda: None)
    refused(plan, "needs an NVIDIA GPU and its driver")
    monkeypatch.setattr(engine_run, "compute_capability", lambda: (9, 0))
    refused(plan, r"does not run on this GPU's compute capability 9\.0; build with --backend tensorrt")
    monkeypatch.setattr(engine_run, "compute_capability", lambda: (8, 6))
    refused(
        changed(plan, tmp_path, compute_capabilities=["8.9", "12.0"]), r"capability 8\.9, 12\.0, this GPU's is 8\.6"
    )
    monkeypatch.setattr(engine_run, "compute_capability", lambda: (8, 9))
    outputs = {"logits": {"dtype": "bf16", "shape": [-1, -1, 97]}}
    refused(changed(plan, tmp_path, outputs=outputs), "output 'logits' is bfloat16, which NumPy lacks")
    plugins = {"library": "x", "sha256": "y"}
    monkeypatch.setattr(engine_run, "compute_capability", lambda: (7, 5))
    with pytest.raises(BertfuseError, match=r"7\.5: the plugins' kernels begin with 8\.0; build with --no-plugins"):
        engine_runner(changed(plan, tmp_path, plugins=plugins))
    refused(changed(plan, tmp_path, plan_sha256="0"), "changed.plan.json beside it is another plan's; build it again")
    damaged = changed(plan, tmp_path)
    Path(f"{damaged}.json").write_text("{")
    refused(damaged, "cannot be read")
    for entries in (
        {"shapes": [1, 2]},
        {"shapes": {"input_ids": {"min": [1, 1]}}},
        {"shapes": {"input_ids": {"min": 1, "opt": 2, "max": 3}}},
        {"shapes": {"input_ids": {"min": ["1"], "opt": [2], "max": [3]}}},
        {"outputs": {"logits": "float"}},
        {"plugins": []} | {"inputs": None},
        {"plugins": {"library": "x"}},
    ):
        damaged = changed(plan, tmp_path, **entries)
        refused(damaged, "does not describe an engine")
        with pytest.raises(BertfuseError, match="does not describe an engine"):
            shortest_sequence(damaged)


def test_a_runner_for_the_right_gpu(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_run, "compute_capability", lambda: (8, 9))
    runner = engine_runner(plan, "mine")
    assert type(runner).__name__ == "TrtRunner" and runner.name == "mine"
    monkeypatch.undo()
    if gpu.compute_capability() is not None:
        return
    # As on the right kind of GPU with a driver that is too old: TensorRT's own words, in one line.
    monkeypatch.setattr(engine_run, "compute_capability", lambda: (8, 9))
    with (
        pytest.raises(BertfuseError, match=rf"^{plan}: TensorRT for RTX \S+: .*deserializeCudaEngine"),
        EngineSession(plan),
    ):
        pass


def test_the_cuda_runtime_that_pip_installs_is_offered_to_polygraphy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcudart.so.13").touch()
    monkeypatch.setattr(engine_run, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[tmp_path]))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    for _ in range(2):
        engine_run._offer_cuda_runtime()
        assert os.environ["LD_LIBRARY_PATH"] == f"/mine{os.pathsep}{folder}"
    assert str(folder) in cuda._find_cuda_lib_dirs()  # where polygraphy looks


def test_without_a_gpu_there_is_no_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(gpu.ctypes, "CDLL", missing)
    assert gpu.compute_capability() is None


@pytest.mark.gpu
def test_an_engine_computes_what_the_original_does(plan: Path) -> None:
    feed = inputs(3, 17)
    capability = gpu.compute_capability()
    assert capability is not None
    if capability[0] in (9, 10):  # TensorRT for RTX leaves the data centre's GPUs out
        with pytest.raises(BertfuseError, match="does not run on this GPU's compute capability"):
            EngineSession(plan)
        return
    with EngineSession(plan) as session:
        assert {value.name for value in session.get_inputs()} == set(feed)
        got = session.run(feed)
        with pytest.raises(BertfuseError, match="the engine takes"):
            session.run(inputs(5, 17))
    (want,) = InferenceSession(original("bert")).run(None, feed)
    # float32 sums in another order, over two layers and a head, on logits up to 10.
    np.testing.assert_allclose(got["logits"], want, rtol=1e-3, atol=1e-4)
