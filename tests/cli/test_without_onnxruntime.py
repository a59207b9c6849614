"""bertfuse requires neither onnxruntime nor onnxruntime-gpu: where both are missing it says which to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import exported

ROOT = Path(__file__).parents[2]
LINE = "onnxruntime is not installed: pip install 'bertfuse[cpu]', or 'bertfuse[gpu]' for NVIDIA GPUs, not both"


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['onnxruntime'] = None\n" + code
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [("run", "--text", "a"), ("fuse", "-o", "out.onnx"), ("compare", exported)])
def test_commands(arguments: tuple) -> None:
    command, *rest = (str(part()) if callable(part) else part for part in arguments)
    ran = python("from bertfuse.cli import main; main()", command, exported(), *rest)
    assert ran.returncode == 2 and ran.stderr.splitlines()[-1] == f"bertfuse: {LINE}", ran.stderr
    assert "Traceback" not in ran.stderr


def test_python() -> None:
    ran = python(
        "import bertfuse\ntry:\n    bertfuse.Encoder\nexcept bertfuse.BertfuseError as error:\n    print(error)"
    )
    assert ran.stdout == f"{LINE}\n", ran.stderr


def test_other_missing_modules_are_not_taken_for_it() -> None:
    ran = python("sys.modules['onnx'] = None\nimport bertfuse\nbertfuse.fuse")
    assert ran.returncode == 1 and "onnxruntime is not installed" not in ran.stderr


def test_neither_is_required() -> None:
    code = (ROOT / "cmake" / "requirements.py").as_posix()
    for extras, want in (((), set()), (("cpu",), {"onnxruntime"}), (("gpu",), {"onnxruntime-gpu"})):
        made = subprocess.run([sys.executable, code, *extras], capture_output=True, text=True, check=True).stdout
        assert {line.split(">")[0] for line in made.splitlines() if line.startswith("onnxruntime")} == want
