"""What doctor says of a GPU that something here cannot use; no GPU is needed. The rest: tests/cli/test_commands.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bertfuse.analysis import doctor
from bertfuse.runtime import native

FAKE_ONNXRUNTIME = """
import sys
names = ["CUDAExecutionProvider"]
class InferenceSession:
    def __init__(self, model, providers, **options):
        assert providers == names and isinstance(model, bytes)
        {opens}
    def get_providers(self):
        return names
"""
# As ONNX Runtime 1.31 logs it; the session then has the CPU provider alone.
LIBRARY = "libonnxruntime_providers_cuda.so"
LOGGED = f"\x1b[1;31mGet() [ONNXRuntimeError] : 1 : FAIL : Failed to load library {LIBRARY} with error: "
END = "\x1b[m"
MISSING = "libcudnn.so.9: cannot open shared object file: No such file or directory"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_gpus", lambda: [{"name": "NVIDIA H200"}])
    monkeypatch.setattr(doctor, "_provider_problem", lambda providers: [])
    monkeypatch.setattr(native, "gpu_architectures", lambda: ["80-real", "90"])


def test_the_library_can_use_no_gpu(listed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "gpus", lambda: iter(()))
    monkeypatch.setattr(doctor, "_why_no_gpu", lambda: "the driver is too old")
    problems = doctor.doctor()["problems"]
    assert problems == ["there is a GPU, but the library can use none: the driver is too old"]


def test_the_library_says_why_it_can_use_no_gpu() -> None:
    if next(native.gpus(), None):
        pytest.skip("the library can use the GPU here")
    assert doctor._why_no_gpu()


def test_one_gpu_cannot_be_asked(listed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_of_two() -> Iterator[native.Gpu]:
        yield native.Gpu(
            name=b"NVIDIA H200",
            compute_capability=90,
            code_architecture=90,
            ptx_architecture=90,
            backends=b"sm90 mma simt",
        )
        raise native.NativeError("out of memory")

    monkeypatch.setattr(native, "gpus", one_of_two)
    report = doctor.doctor()
    assert report["problems"] == ["the library cannot use GPU 1: out of memory"]
    assert [gpu["uses"] for gpu in report["gpu_code"]["gpus"]] == ["machine code for 9.0, kernels sm90, mma, simt"]


@pytest.mark.parametrize(
    ("opens", "reason"),
    [
        ("pass", None),
        (
            f"names[:] = ['CPU']; print({LOGGED + MISSING + END!r}, file=sys.stderr)",
            f"{MISSING}; pip install 'onnxruntime-gpu[",
        ),
        (
            "raise RuntimeError('CUDA failure 100: no CUDA-capable device is detected ; GPU=-1')",
            "no CUDA-capable device",
        ),
        ("sys.exit(1)", "it does not say why"),
    ],
    ids=["loads", "no cuDNN", "raises", "dies"],
)
def test_the_cuda_provider_is_opened(
    opens: str, reason: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "onnxruntime.py").write_text(FAKE_ONNXRUNTIME.format(opens=opens))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    problems = doctor._provider_problem(["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert len(problems) == (reason is not None)
    assert all(f"CUDA provider does not load: {reason}" in problem for problem in problems)
    assert capfd.readouterr() == ("", "")


def test_a_library_that_a_variable_names_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_ORT_LIBRARY", "/nowhere/lib.so")
    assert any("/nowhere/lib.so" in problem for problem in doctor.doctor()["problems"])
