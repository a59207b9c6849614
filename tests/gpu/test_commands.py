"""tune, bench and doctor on a GPU, end to end on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

from bertfuse.cli import app
from bertfuse.export import export_model
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.io import open_model
from bertfuse.measuring.gpu_contenders import GpuOptions, _pytorch
from bertfuse.quantization import quantize
from bertfuse.runtime import native
from bertfuse.runtime.ragged_inputs import ragged
from bertfuse.runtime.session import InferenceSession
from tests.tiny_models import LAYERS, beside_config, build, inputs

pytestmark = pytest.mark.gpu
CUDA = ["CUDAExecutionProvider"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not native.gpu_architectures():
        pytest.skip("the library was built without CUDA kernels")
    folder = tmp_path_factory.mktemp("gpu")
    # Heads of 32 and rows of 64: sizes that the tensor cores take. As many positions as the longest workload has.
    model = build(hidden_size=64, num_attention_heads=2, intermediate_size=128, max_position_embeddings=128)
    beside_config(export_model(model, folder, exporter="torchscript", attention="eager", opset=17))
    fuse_file(folder / "model.onnx", folder / "model.fused.onnx", dtype="fp16")
    return folder


def said(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return json.loads(result.stdout)


def test_doctor_names_the_code_in_use() -> None:
    report = said("doctor")
    uses = [gpu["uses"] for gpu in report["gpu_code"]["gpus"]]
    assert uses and all(use.startswith(("machine code for ", "PTX of ")) for use in uses)


def test_tune_writes_what_sessions_use(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tuning.tsv"
    report = said("tune", folder, "--shapes", "2x16,4x32", "-o", file, "--milliseconds", 0.5)
    problems = [choice["problem"] for choice in report["choices"]]
    assert len(problems) == len(set(problems)) and len(problems) >= 2 * 4
    assert all(choice["microseconds"] <= choice["default_microseconds"] for choice in report["choices"])
    assert file.read_text().count(report["device"]) == len(problems)
    feed = inputs(4, 32)
    results = []
    for tuning in (None, file):
        session = InferenceSession(folder / "model.fused.onnx", CUDA, library="always", tuning=tuning)
        results.append(session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})[0])
    assert "does not fit" not in capfd.readouterr().err
    assert np.abs(results[0].astype(np.float32) - results[1]).max() < 0.02


@pytest.mark.parametrize("to", ["int8", "fp8"])
def test_tune_of_a_quantized_model(to: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if to == "fp8" and next(native.gpus()).compute_capability < 89:
        pytest.skip("8-bit floats want compute capability 8.9")
    model, file = tmp_path / "model.onnx", tmp_path / "tuning.tsv"
    made = build(hidden_size=64, num_attention_heads=2, intermediate_size=128, max_position_embeddings=128)
    exported = export_model(made, tmp_path / "float", opset=20, dtype="fp16")
    calibration = {name: np.concatenate([array] * 4) for name, array in inputs(4, 32).items()}
    quantize(exported, model, to=to, calibration=calibration, results=True)
    report = said("tune", model, "--shapes", "4x32", "-o", file, "--milliseconds", 0.5)
    products = [choice for choice in report["choices"] if f"float16-{to} " in choice["problem"]]
    assert not report["rejected"] and len(products) >= 4, report
    assert all(choice["measured"] > 1 for choice in products)
    feed, results = inputs(4, 32), []
    for tuning in (None, file):
        session = InferenceSession(model, CUDA, library="always", tuning=tuning)
        results.append(session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})[0])
    assert "does not fit" not in capfd.readouterr().err
    assert np.abs(results[0].astype(np.float32) - results[1]).max() < 0.02


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_tune_of_a_model_without_padding(padding: str, folder: Path, tmp_path: Path, capfd: Any) -> None:
    """What is measured is packed, has its name, and is used."""
    model, file = tmp_path / "model.onnx", tmp_path / "tuning.tsv"
    fuse_file(folder / "model.onnx", model, dtype="fp16", padding=padding)
    report = said("tune", model, "--shapes", "4x32,40x128", "-o", file, "--milliseconds", 0.5)
    choices = {choice["problem"]: choice for choice in report["choices"]}
    assert not report["rejected"]
    packed = [choice for problem, choice in choices.items() if problem.endswith(" packed")]
    assert [choice["problem"] for choice in packed] == [
        f"FusedAttention float16 {count}x{rows}x2x32 packed" for count, rows in ((4, 128), (40, 5120))
    ]
    if any("sm90" in choice["tactic"] for choice in choices.values()):
        assert all(choice["measured"] >= 7 for choice in packed)  # one more than padded sequences have, and others'
    tokens = {"input_ids": [[5] * 32, [7] * 9, [8] * 20, [9]], "token_type_ids": [[0] * 32, [0] * 9, [0] * 20, [0]]}
    feed = ragged(tokens)
    if padding == "remove":
        mask = np.arange(32)[None] < np.array([32, 9, 20, 1])[:, None]
        feed = {"attention_mask": mask.astype(np.int64)}
        for name, rows in tokens.items():
            feed[name] = np.array([row + [0] * (32 - len(row)) for row in rows])
    results = []
    for tuning in (None, file):
        session = InferenceSession(model, CUDA, library="always", tuning=tuning)
        results.append(session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})[0])
    assert "does not fit" not in capfd.readouterr().err
    assert np.abs(results[0].astype(np.float32) - results[1]).max() < 0.02


@pytest.mark.parametrize("graph", [[], ["--cuda-graph"]], ids=["launched", "captured"])
def test_bench_of_unequal_lengths(folder: Path, tmp_path: Path, graph: list[str]) -> None:
    workloads = ["--ragged", "sentences:4", "--ragged", "9,31,1,0,20"]
    report = said("bench", folder, "--provider", "cuda", "--seconds", "0.05", *workloads, *graph, "-o", tmp_path)
    names = {timing["contender"] for timing in report["timings"]}
    assert {"fused, library", "padding removed, library"} <= names | set(report["absent"])
    assert "padding removed, library" not in report["absent"], report["absent"]
    assert {(timing["batch"], timing["sequence"]) for timing in report["timings"]} == {(4, 128), (5, 31)}
    assert len(report["options"]["workloads"]) == 2


@pytest.mark.parametrize("options", [["--dtype", "fp16", "--cuda-graph"], ["--tf32"]], ids=" ".join)
def test_bench(folder: Path, tmp_path: Path, options: list[str]) -> None:
    if options == ["--tf32"]:
        fuse_file(folder / "model.onnx", tmp_path / "model.fused.onnx")
        for name in ("model.onnx", "config.json"):
            (tmp_path / name).write_bytes((folder / name).read_bytes())
        folder = tmp_path
    sizes = ["--sizes", "1x8,2x32", "--seconds", "0.05"]
    report = said("bench", folder, "--provider", "cuda", *sizes, *options, "-o", tmp_path)
    contenders = {"original ONNX", "ORT optimizer", "fused, library", "PyTorch"}
    # ONNX Runtime captures no graph of a model with nodes on the CPU, as the exporter's has for its shapes.
    for contender, reason in report["absent"].items():
        assert contender == "original ONNX" and "--cuda-graph" in options and "graph capture" in reason, reason
    assert {timing["contender"] for timing in report["timings"]} == contenders - set(report["absent"])
    assert report["details"]["fused, library"]["fused"]["FusedAttention"] == LAYERS
    assert all(0 < timing["low"] <= timing["median"] <= timing["high"] for timing in report["timings"])
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_graphs_of_several_sizes_keep_their_inputs(folder: Path) -> None:
    """Or one that was captured first reads what has taken the place of its ids since."""
    torch = pytest.importorskip("torch")
    metadata = {entry.key: entry.value for entry in open_model(folder / "model.onnx")[0].metadata_props}
    feeds = [inputs(2, 8), inputs(4, 16)]
    options = GpuOptions("fp16", cuda_graph=True)
    contender = _pytorch("PyTorch", folder, metadata, options, feeds[0])
    assert contender.run is not None
    contender.run(feeds[1])
    others = [torch.full((2, 8), 1 << 40, device="cuda") for _ in range(1000)]
    contender.run(feeds[0])  # an id out of range ends the process's CUDA context
    assert (torch.stack(others) == 1 << 40).all()


def test_bench_refuses_a_library_without_the_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused nodes that run as their bodies are found by the profile."""
    from bertfuse.measuring import gpu_contenders

    def without_library(path: Path, library: str, *arguments: Any, **changes: Any) -> onnxruntime.InferenceSession:
        return original(path, "never", *arguments, **changes)

    original = gpu_contenders.cuda_session
    monkeypatch.setattr(gpu_contenders, "cuda_session", without_library)
    result = CliRunner().invoke(app, ["bench", str(folder), "--provider", "cuda", "--sizes", "1x8"])
    assert result.exit_code == 2 and "not every fused op ran as our CUDA kernel" in result.stderr, result.stderr
