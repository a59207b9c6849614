"""What a worker process does with a problem: the tasks that `Settings.task` names. Loaded before workers are forked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bertfuse.runtime import native

from .check import Checker
from .devices import open_device

if TYPE_CHECKING:
    from .worker import Settings


def checks(settings: Settings) -> Checker:
    """The checks of check.py."""
    from .reference import reference

    native.load_library(Path(settings.library))
    native.load_cublaslt()
    return Checker(Path(settings.library), open_device(settings.device), reference(settings.reference, settings.device))
