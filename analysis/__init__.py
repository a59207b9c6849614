"""Looking at models and machines: comparison, benchmark, report, tuning, the doctor, and the demo of `make demo`."""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "compare_models": "compare",
    "compare_subjects": "compare",
    "Subject": "subjects",
    "Comparison": "compare",
    "OutputDifference": "differences",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
