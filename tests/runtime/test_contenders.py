"""Contenders that cannot be made say why in one line, and none is measured on less work than the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_models import exported

from bertfuse.runtime.contenders import optimizer_contender, pytorch_contender


def test_without_torch_its_contender_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported().parent
    monkeypatch.setitem(sys.modules, "torch", None)
    made = pytorch_contender(folder, {}, "cpu", None)
    assert made.run is None and "needs torch: pip install 'bertfuse[export]'" in made.absent


def test_sentence_encoders_are_not_measured_without_their_pooling(tmp_path: Path) -> None:
    metadata = {"bertfuse.task": "sentence-similarity"}
    made = [
        pytorch_contender(exported().parent, metadata, "cpu", None),
        optimizer_contender(exported().parent, metadata, "cpu", None, tmp_path),
    ]
    for contender in made:
        assert contender.run is None and contender.absent.startswith("left out for sentence-similarity: ")
