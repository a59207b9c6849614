"""docs/deployment.md: its programs for ONNX Runtime are run as they stand there, the others are at least programs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bertfuse.graph_rewrite import fuse_file
from bertfuse.runtime import InferenceSession
from tests.tiny_models import exported

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deployment")
    fuse_file(exported(), path / "model.fused.onnx", functions=False)  # so that nothing but the library runs it
    return path


def test_python_for_onnx_runtime(folder: Path) -> None:
    code = blocks("python")[0] + "\nprint([value.name for value in session.get_outputs()])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout == "['last_hidden_state', 'pooler_output']\n", ran.stderr


def test_other_python_is_python() -> None:
    for block in blocks("python"):
        ast.parse(block)


def _headers() -> Path | None:
    for base in (*sorted(ROOT.glob(".cache/onnxruntime-*")), Path("/usr/include/onnxruntime"), Path("/usr/include")):
        found = next(base.rglob("onnxruntime_cxx_api.h"), None) if base.is_dir() else None
        if found is not None:
            return found.parent
    return None


def test_cpp_for_onnx_runtime(folder: Path, library: Path) -> None:
    headers, compiler = _headers(), shutil.which("c++")
    if headers is None or compiler is None:
        pytest.skip("no compiler, or ONNX Runtime's headers are in none of the usual places")
    (source,) = blocks("cpp")
    (folder / "serve.cc").write_text(source)
    (runtime,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*")
    (folder / "libonnxruntime.so.1").symlink_to(runtime)
    command = [compiler, "-std=c++17", f"-I{headers}", "serve.cc", str(runtime), "-Wl,-rpath,$ORIGIN", "-o", "serve"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    # Its token ids are English BERT's; the tiny model has fewer words.
    wrong = subprocess.run(["./serve", "model.fused.onnx", library], cwd=folder, capture_output=True, text=True)
    assert wrong.returncode != 0 and "word_table" in wrong.stderr
    (folder / "serve.cc").write_text(source.replace("101, 1037, 2158, 102", "2, 37, 58, 3"))
    subprocess.run(command, cwd=folder, check=True)
    ran = subprocess.run(
        ["./serve", "model.fused.onnx", library], cwd=folder, capture_output=True, text=True, check=True
    )
    ids = np.array([[2, 37, 58, 3]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    want = InferenceSession(folder / "model.fused.onnx").run(["last_hidden_state"], feed)[0]
    assert float(ran.stdout) == pytest.approx(float(want[0, 0, 0]), abs=1e-5)
