"""What a build takes of CUDA: the kernels of the GPUs that are here, and none where something is missing, in a line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(None in map(shutil.which, ("cmake", "nvcc", "ninja")), reason="needs cmake, ninja and nvcc"),
]


def configured(folder: Path, gpus: str, *settings: str) -> tuple[str, str]:
    """What CMake says of the kernels, and their architectures, on a machine with these GPUs."""
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nprintf '{gpus}'\n[ -n '{gpus}' ]\n")
    tool.chmod(0o755)
    command = ["cmake", "-S", ROOT, "-B", folder / "build", "-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}"]
    command += ["-DBERTFUSE_ORT=OFF", *settings]
    environment = os.environ | {"PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = [line for line in ran.stdout.splitlines() if "CUDA kernels: " in line]
    assert len(said) == 1 and "Warning" not in ran.stderr, ran.stdout + ran.stderr
    rules = (folder / "build" / "build.ninja").read_text()
    return said[0].removeprefix("-- CUDA kernels: "), " ".join(sorted(set(re.findall(r"code=\[([^\]]+)\]", rules))))


def test_no_gpu(tmp_path: Path) -> None:
    said, code = configured(tmp_path, "", "-DBERTFUSE_CUDA=AUTO")
    assert said.startswith("left out (no GPU of compute capability 7.5 or newer is here") and not code
    assert (tmp_path / "build" / "cuda_left_out.txt").read_text().startswith("no GPU")  # for `bertfuse doctor`


def test_nvcc_and_no_cutlass(tmp_path: Path) -> None:
    said, code = configured(tmp_path, "9.0\\n", "-DBERTFUSE_CUDA=AUTO", "-DBERTFUSE_CUTLASS_INCLUDE_DIR=/nowhere")
    assert said == "left out (the Hopper kernels need CUTLASS 4.2's headers: docs/gpu.md)" and not code


def test_the_gpus_that_are_here(tmp_path: Path) -> None:
    said, code = configured(tmp_path, "8.0\\n8.6\\n8.0\\n", "-DBERTFUSE_CUDA=AUTO")
    assert said == "built in"
    assert set(re.findall(r"sm_(\w+)", code)) == {"80", "86"}
