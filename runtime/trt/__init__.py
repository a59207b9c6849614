"""TensorRT and TensorRT for RTX: engines out of fused files, with our plugins or with the op bodies, and their runs."""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "build_engine": "build",
    "EngineReport": "build",
    "engine_runner": "run",
    "load_backend": "backend",
    "load_plugins": "backend",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
