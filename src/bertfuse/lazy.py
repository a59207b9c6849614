"""What packages export, imported on first use: a missing extra then hurts only its user."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose `exports` are names and the modules in it that have them."""

    def get(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{exports[name]}", package), name)

    return get
