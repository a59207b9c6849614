"""The library for hosts that only dlopen a plugin library: it registers the plugins beside it, or says why not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bertfuse.graph_rewrite import OPS
from bertfuse.runtime import library_path

LOAD = """
import ctypes, sys
if sys.argv[2] != "none":
    from bertfuse.runtime.trt import load_backend
    backend = load_backend("rtx")
ctypes.CDLL(sys.argv[1])
if sys.argv[2] != "none":
    registry = backend.trt.get_plugin_registry()
    print(*(op for op in sys.argv[3:] if registry.get_creator(op, "1", "bertfuse")))
"""


def loaded(library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD, str(library), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran


def test_every_op_is_registered_by_dlopen_alone() -> None:
    ran = loaded(library_path("tensorrt").with_name("libbertfuse_trt_autoload.so"), "rtx", *OPS)
    assert ran.stdout.split() == list(OPS) and ran.stderr == ""


def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    alone = tmp_path / "libbertfuse_trt_autoload.so"
    shutil.copy(library_path("tensorrt").with_name(alone.name), alone)
    ran = loaded(alone, "none")
    assert ran.stderr == (
        f"bertfuse: {tmp_path}/libbertfuse_trt.so: not registered: no TensorRT is loaded in this process yet\n"
    )
    ran = loaded(alone, "rtx", *OPS)
    assert ran.stdout.split() == [] and "not registered: it is missing, or the TensorRT" in ran.stderr
