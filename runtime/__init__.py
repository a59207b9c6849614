"""Running models: sessions with the custom-op library, and what feeds them. Engines of TensorRT: the package trt."""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "library_path": "library",
    "register": "library",
    "InferenceSession": "session",
    "ragged": "ragged_inputs",
    "random_inputs": "inputs",
    "text_inputs": "inputs",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
