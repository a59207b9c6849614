"""What every test shares: the custom-op library, and GPU tests skipped where there is no GPU."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import onnxruntime
import pytest


@lru_cache
def _no_gpu() -> str | None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "this onnxruntime has no CUDA provider (install bertfuse[gpu])"
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU on this machine"
    return None


def pytest_configure(config: pytest.Config) -> None:
    """One folder for exported models, shared by the worker processes: an export takes ten seconds."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="bertfuse-tests-")
        os.environ["BERTFUSE_TEST_MODELS"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _no_gpu()
    if reason is None:
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def library() -> Path:
    """The custom-op library for ONNX Runtime. A missing one is a failure, not a skip."""
    from bertfuse.runtime import library_path

    return Path(library_path("onnxruntime"))
