"""The library with planted faults: built once, then copied under the name of each fault."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bertfuse.qualify.campaign import Report
from bertfuse.qualify.kernels import qualify_kernels

SOURCE = Path(__file__).with_name("faulty.cc")
INCLUDE = Path(__file__).parents[2] / "plugins" / "include"


@functools.cache
def _built(cuda: bool) -> Path:
    target = Path(tempfile.mkdtemp(prefix="bertfuse-faulty-")) / "faulty_none.so"
    compiler = ["nvcc", "-x", "cu", "-Xcompiler", "-fPIC"] if cuda else ["c++", "-fPIC"]
    subprocess.run(
        [*compiler, "-std=c++17", "-O1", "-shared", f"-I{INCLUDE}", str(SOURCE), "-o", str(target), "-ldl"], check=True
    )
    return target


def library(fault: str, folder: Path, *, cuda: bool = False) -> Path:
    """A library that has that fault; "none": an honest one."""
    return Path(shutil.copy(_built(cuda), folder / f"faulty_{fault}.so"))


def hunt_of_a_segfault(folder: Path, **options: Any) -> Report:
    """Twelve problems of a library that ends the process."""
    return qualify_kernels(
        devices="cpu",
        library=library("segfault", folder),
        minutes=20,
        seed=3,
        ops="FusedGemm",
        dtypes="float32",
        count=12,
        workers=2,
        **options,
    )
