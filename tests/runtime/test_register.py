"""Registering the ops is idempotent, and says so where it cannot be."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from tests.tiny_models import exported, inputs


def test_twice_is_once(tmp_path: Path) -> None:
    fuse_file(exported(), tmp_path / "bare.onnx", functions=False)  # runs with the ops only
    options = onnxruntime.SessionOptions()
    for _ in range(3):
        bertfuse.register(options)
    session = onnxruntime.InferenceSession(tmp_path / "bare.onnx", options, providers=["CPUExecutionProvider"])
    assert session.run(None, inputs(1, 4))[0].shape == (1, 4, 32)
    assert bertfuse.InferenceSession(tmp_path / "bare.onnx", library="always", sess_options=options).uses_library


def test_other_settings_afterwards_are_refused() -> None:
    options = onnxruntime.SessionOptions()
    bertfuse.register(options)
    with pytest.raises(BertfuseError, match="already, with other settings"):
        bertfuse.register(options, tf32=True)
    with pytest.raises(BertfuseError, match="already, with other settings"):
        bertfuse.register(options, deterministic_rows=True)
