"""ONNX in, fused ONNX out. Imported lazily: a C++ build reads the op descriptions with nothing but a bare Python."""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "fuse": "pipeline",
    "fuse_file": "pipeline",
    "explain": "pipeline",
    "FuseOptions": "options",
    "FusionResult": "result",
    "Miss": "result",
    "Part": "result",
    "OPS": "ops",
    "oracle": "dialect.reference",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
