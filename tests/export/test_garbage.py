"""Exporting and fusing look for garbage among new objects alone, and leave the collector as they found it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import bertfuse.export.model
from bertfuse import garbage
from bertfuse.export import export_model
from bertfuse.garbage import only_new_garbage
from tests.tiny_models import save_checkpoint


class Held:
    """What can be referred to weakly, in a cycle that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_old_objects_are_left_alone_until_the_end() -> None:
    before, old = gc.get_freeze_count(), Held()
    dead = weakref.ref(old)
    with only_new_garbage():
        del old
        with only_new_garbage():
            pass
        new = weakref.ref(Held())
        gc.collect()
        assert dead() is not None, "the outermost of nested ones was over with the inner one"
        assert new() is None
    gc.collect()
    assert dead() is None and gc.get_freeze_count() <= before


def test_what_a_program_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_AT_START", -1)
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with pytest.raises(ZeroDivisionError), only_new_garbage():
            1 / 0  # noqa: B018
        assert gc.get_freeze_count() == pytest.approx(count, rel=0.01) and count > 0
    finally:
        gc.unfreeze()


def test_a_process_that_ends_does_not_look_at_old_objects() -> None:
    program = """
import atexit, gc
before = gc.get_freeze_count()
atexit.register(lambda: print(gc.get_freeze_count() - before))  # runs after what is registered later
from bertfuse.garbage import only_new_garbage
with only_new_garbage():
    pass
kept = [[] for _ in range(50_000)]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50_000


def test_a_large_torch_model_is_gone_when_fusion_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_checkpoint(tmp_path / "source")
    models: list[Any] = []
    run_exporter = bertfuse.export.model.run_exporter

    def remember(prepared: Any, *arguments: Any, **options: Any) -> Any:
        models.append(weakref.ref(prepared))
        return run_exporter(prepared, *arguments, **options)

    monkeypatch.setattr(bertfuse.export.model, "run_exporter", remember)
    monkeypatch.setattr(bertfuse.export.model, "_ROOM", 0)  # as if it were large
    alive: list[bool] = []
    export_model(source, tmp_path / "made", then=lambda path: alive.append(models[0]() is not None))
    assert alive == [False]
