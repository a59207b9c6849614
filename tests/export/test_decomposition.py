"""A program that the exporter can write as it was captured is not traced again; any other is, and computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import torch

from bertfuse.export import export_model, exporters
from bertfuse.export.decomposition import Shortcut
from tests.tiny_models import build, inputs, reference


class Plain(torch.nn.Module):
    """Operators with other names, and some that change nothing."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = (x > 0) & (x < 2)
        kept = mask.to(torch.int64).to(torch.int64) | (x > 3).to(torch.int64)
        return x.reshape(x.shape).reshape(x.shape[0], -1), kept, (x.to("cpu") * 2).reshape(x.shape)


class InPlace(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x * 2
        row = made[:, 0]
        made.add_(1)
        return made, row


class Composed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.nn.functional.huber_loss(x, x * 3, reduction="none"),)


class WithoutGradient(torch.nn.Module):
    """A program within the program."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", enabled=False):
            found = x @ x.transpose(1, 2)
        return (found,)


@pytest.fixture
def shortcuts(monkeypatch: pytest.MonkeyPatch) -> list[Shortcut]:
    """Those of every export."""
    made: list[Shortcut] = []
    context = exporters.shortcuts

    class Watched:
        def __enter__(self) -> Shortcut:
            self._context = context()
            made.append(self._context.__enter__())
            return made[-1]

        def __exit__(self, *raised: Any) -> None:
            self._context.__exit__(*raised)

    monkeypatch.setattr(exporters, "shortcuts", Watched)
    return made


def _exported(module: torch.nn.Module, path: Path) -> Any:
    shapes = {"x": {0: "batch", 1: "sequence"}}
    options = {"dynamic_shapes": shapes, "input_names": ["x"], "opset_version": 20, "verbose": False}
    onnx_ir.save(exporters._by_dynamo(module.eval(), (torch.ones(2, 7, 4),), options), path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("module", "taken"), [(Plain, True), (InPlace, False), (Composed, False), (WithoutGradient, None)]
)
def test_the_same_numbers(module: type, taken: bool | None, tmp_path: Path, shortcuts: list[Shortcut]) -> None:
    session = _exported(module(), tmp_path / "made.onnx")
    assert taken is None or shortcuts[0].taken == taken
    seed = torch.seed() % (1 << 31)
    print("seed", seed)
    generator = torch.Generator().manual_seed(seed)
    for shape in ((2, 7, 4), (1, 1, 4), (3, 5, 4)):
        x = torch.randn(shape, generator=generator) * 3
        for got, want in zip(session.run(None, {"x": x.numpy()}), module()(x), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


def test_an_encoder_is_not_decomposed(tmp_path: Path, shortcuts: list[Shortcut]) -> None:
    model = build("sentence-similarity")
    path = export_model(model, tmp_path, task="sentence-similarity")
    assert [shortcut.taken for shortcut in shortcuts] == [True]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names, feed = [value.name for value in session.get_outputs()], inputs(3, 5)
    for got, want in zip(session.run(None, feed), reference(model, feed, names), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_what_the_exporter_cannot_write_after_all_is_decomposed(
    tmp_path: Path, shortcuts: list[Shortcut], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = torch.onnx.export

    def fails_at_first(*arguments: Any, **options: Any) -> Any:
        found = export(*arguments, **options)
        if len(shortcuts) == 1 and not failed:
            failed.append(True)
            raise RuntimeError("no ONNX function")
        return found

    failed: list[bool] = []
    monkeypatch.setattr(torch.onnx, "export", fails_at_first)
    assert len(_exported(Plain(), tmp_path / "made.onnx").get_outputs()) == 3
    assert failed and shortcuts[0].taken
    assert torch.export.ExportedProgram.run_decompositions.__module__.startswith("torch.")
