"""What every test shares: the custom-op library, and GPU tests skipped where there is no GPU."""

from __future__ import annotations

import importlib.abc
import os
import shutil
import sys
import tempfile
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
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


# Whoever needs one of these exports a model or starts a server.
_HEAVY = ("torch", "transformers", "ray")


class _QuickOnly(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Skips whatever imports a heavy package: a test module, or a test while it runs. Looking for one is no import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name) if name in _HEAVY else None
        return None if spec is None else ModuleSpec(name, self, origin=spec.origin)

    def create_module(self, spec: ModuleSpec) -> None:
        raise pytest.skip.Exception(f"not among the quick tests: imports {spec.name}", allow_module_level=True)

    def exec_module(self, module: object) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out slow tests, and those that import PyTorch")


def pytest_configure(config: pytest.Config) -> None:
    """One folder for exported models, shared by the worker processes: an export takes ten seconds."""
    if config.getoption("quick"):
        sys.meta_path.insert(0, _QuickOnly())
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="bertfuse-tests-")
        os.environ["BERTFUSE_TEST_MODELS"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        items[:] = [item for item in items if not {"gpu", "slow"} & set(item.keywords)]
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
