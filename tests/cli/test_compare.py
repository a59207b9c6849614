"""bertfuse compare: several models, how each runs, bisection, the page; exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bertfuse.cli import app
from bertfuse.graph_rewrite import fuse_file
from tests.tiny_models import exported


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fused") / "model.fused.onnx"
    fuse_file(exported(), path)
    return path


def invoke(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["compare", *(str(argument) for argument in arguments)])
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    return result


def test_several_models(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = invoke(exported(), model, f"{model}@cpu+library", "--per-node", "--bisect", "--html", page)
    printed = " ".join(result.stdout.split())
    assert printed.count("tensors that both share agree") == 2 and "(cpu+library) against" in printed
    assert printed.count("no output differs") == 2 and page.read_text().startswith("<!doctype html>")
    report = json.loads(invoke(exported(), model, f"{model}@cpu+library", "--json").stdout)
    assert report["passed"] and [entry["passed"] for entry in report["comparisons"]] == [True, True]
    alone = json.loads(invoke(exported(), model, "--json").stdout)
    assert alone["passed"] and "comparisons" not in alone


def test_a_difference_is_exit_code_1_and_still_a_page(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    strict = ("--atol", 0, "--rtol", 0, "--bisect", "--html", page)
    result = invoke(exported(), f"{model}@cpu+library", *strict, code=1)
    assert "beyond tolerance by themselves" in " ".join(result.stdout.split()) and "differs first" in page.read_text()


def test_one_line_for_what_does_not_do(model: Path, tmp_path: Path) -> None:
    for arguments, culprit in (
        ((exported(), f"{model}@tpu"), "@tpu: no such file, and 'tpu' is not a way to run one"),
        ((exported(), tmp_path / "absent.onnx"), "absent.onnx: no such file"),
        ((exported(), model, "--html", tmp_path), f"{tmp_path}: is a folder"),
        ((exported(), model, "--text", "a", "--input", "b.npz"), "give --text, --texts or --input, one of them"),
    ):
        result = invoke(*arguments, code=2)
        lines = [line for line in result.stderr.splitlines() if not line.startswith(("done ", "failed "))]
        assert len(lines) == 1 and culprit in lines[0] and result.stdout == ""
    assert list(tmp_path.iterdir()) == []
