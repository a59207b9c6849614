"""What all threads of a process share is left alone: one that fuses must not change it, not even for a moment."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from bertfuse.graph_rewrite import io
from tests.graph_rewrite.attentions import Attention, model


def test_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that other threads make while it is 0 can be written by anyone."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("changes the umask"))
            io.save_model(model(Attention()), tmp_path / "model.onnx")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.onnx").stat().st_mode) == 0o640


def test_nothing_large_is_imported(tmp_path: Path) -> None:
    """PyTorch takes longer to import than a small model to fuse."""
    onnx.save(model(Attention()), tmp_path / "model.onnx")
    script = f"import sys; from bertfuse.graph_rewrite import fuse; fuse({str(tmp_path / 'model.onnx')!r})\n"
    script += "print({'torch', 'transformers', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()"], done.stdout
