"""The tests, a folder for each package, and what several of them need."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]  # where a process of its own finds the package `tests`


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills, in the first process of a test run that asks for it; do not write into it."""
    folder = Path(os.environ["BERTFUSE_TEST_MODELS"]) / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            scratch = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(scratch, ignore_errors=True)
            make(scratch)
            scratch.rename(folder)
    return folder
