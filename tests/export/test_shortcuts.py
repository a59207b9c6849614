"""What the exporter is spared changes no byte of what it writes, and is put back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from onnxscript._internal import ast_utils, values
from onnxscript.rewriter import _matcher, _rewrite_rule
from torch.onnx._internal.exporter import _registration, _schemas
from torch.onnx._internal.fx.passes import type_promotion

from bertfuse.export import export_model, exporters
from bertfuse.export.decomposition import decomposed_where_needed
from bertfuse.export.shortcuts import shortcuts
from tests.tiny_models import build


def _counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[None]:
    """A call for each entry."""
    calls: list[None] = []
    original: Callable[..., Any] = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[None]]:
    return {
        "exports": _counted(monkeypatch, torch.onnx, "export"),
        "signatures": _counted(monkeypatch, _schemas, "op_signature_from_function"),
        "parses": _counted(monkeypatch, ast_utils, "get_src_and_ast"),
        "tries": _counted(monkeypatch, _matcher.SimplePatternMatcher, "match"),
        "runs": _counted(monkeypatch, torch.fx.Interpreter, "call_function"),
    }


@pytest.mark.parametrize("task", ["sentence-similarity", "fill-mask"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_the_same_bytes_with_less_work(
    task: str, dtype: str, tmp_path: Path, counts: dict[str, list[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("fill-mask" if task == "fill-mask" else "sentence-similarity")
    made, done = [], []
    for context in (decomposed_where_needed, shortcuts):
        monkeypatch.setattr(exporters, "shortcuts", context)
        made.append(export_model(model, tmp_path / context.__name__, task=task, dtype=dtype).read_bytes())
        done.append({name: len(calls) for name, calls in counts.items()})
        for calls in counts.values():
            calls.clear()
    assert made[0] == made[1]
    before, after = done
    assert before["exports"] == after["exports"] == 1, "it was done again without the shortcuts"
    assert after["signatures"] < before["signatures"] / 5, (before, after)
    assert after["parses"] < before["parses"] / 5, (before, after)
    assert after["tries"] < before["tries"] / 5, (before, after)
    assert after["runs"] < before["runs"] / 5, (before, after)


def test_patches_are_of_one_thread_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    places = (
        (type_promotion._TypePromotionInterpreter, "run_node"),
        (_registration.ONNXRegistry, "from_torchlib"),
        (values.TracedOnnxFunction, "function_ir"),
        (_rewrite_rule.RewriteRule, "try_rewrite"),
    )
    before = [vars(owner)[name] for owner, name in places]
    monkeypatch.setattr(_registration.ONNXRegistry, "from_torchlib", classmethod(lambda cls: "as it was"))
    found: list[Any] = []
    with shortcuts() as shortcut:
        assert all(vars(owner)[name] is not old for (owner, name), old in zip(places, before, strict=True))
        thread = threading.Thread(target=lambda: found.append(_registration.ONNXRegistry.from_torchlib()))
        thread.start()
        thread.join()
    monkeypatch.undo()
    assert found == ["as it was"] and not shortcut.others
    assert [vars(owner)[name] for owner, name in places] == before


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (type_promotion._TypePromotionInterpreter, "_maybe_promote_node"),
        (_registration.OnnxDecompMeta, "__post_init__"),
        (_matcher, "SimplePatternMatcher"),
        (values.TracedOnnxFunction, "function_ir"),
    ],
)
def test_a_release_with_other_insides_is_left_alone(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = type_promotion._TypePromotionInterpreter.run_node
    monkeypatch.delattr(owner, name)
    with shortcuts():
        patched = type_promotion._TypePromotionInterpreter.run_node is not run
        assert patched == (name != "_maybe_promote_node")
