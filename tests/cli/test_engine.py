"""bertfuse engine and run --engine: what they print and write, and their messages for wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bertfuse.runtime.trt import run as engine_run
from tests.commands import invoke
from tests.engines import fused, ops_in


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fused("bert", tmp_path_factory.mktemp("model"))


def test_help_has_examples() -> None:
    assert "bertfuse engine minilm" in " ".join(invoke("engine", "--help").stdout.split())


def test_layers_are_printed_and_counted(model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "m.plan"
    result = invoke("engine", model, "-o", plan, "--backend", "rtx", "--compute-capability", "8.9", "--workspace", "1G")
    rows = [line.replace("│", " ").split() for line in result.stdout.splitlines()]
    for op, count in ops_in(model).items():
        assert [op, "PLUGIN_V3", str(count)] in rows
    assert f"{sum(ops_in(model).values())} fused ops are plugin layers of " in result.stdout
    printed = " ".join(result.stdout.split())
    assert "compute capability 8.9" in printed and "input_ids: min 1x16, opt 8x40, max 32x40" in printed
    assert json.loads((tmp_path / "m.plan.json").read_text())["workspace_bytes"] == 1 << 30


def test_json_and_no_plugins(model: Path, tmp_path: Path) -> None:
    plan, shapes = tmp_path / "m.plan", "1x1:2x8:4x40"
    result = invoke("engine", model, "-o", plan, "--no-plugins", "--backend", "rtx", "--shapes", shapes, "--json")
    report = json.loads(result.stdout)
    assert result.stderr == "" and report == json.loads((tmp_path / "m.plan.json").read_text())
    assert report["plugins"] is None and report["shapes"]["input_ids"] == {"min": [1, 1], "opt": [2, 8], "max": [4, 40]}
    printed = invoke("engine", model, "-o", plan, "--no-plugins", "--backend", "rtx", "--overwrite").stdout
    assert "PLUGIN" not in printed and "were built from their bodies" in printed


def test_nothing_but_json_on_stdout(tmp_path: Path) -> None:
    """In a process of its own: no library below says anything there, of bfloat16 or else."""
    model = fused("bert", tmp_path, "bf16")
    command = [
        sys.executable,
        "-m",
        "bertfuse.cli",
        "engine",
        model,
        "-o",
        tmp_path / "m.plan",
        "--no-plugins",
        "--json",
    ]
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    assert ran.stderr == "" and json.loads(ran.stdout)["precision"] == "bfloat16"


def test_one_line_for_what_does_not_do(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(*arguments: object) -> str:
        result = invoke(*arguments, code=2)
        lines = [text for text in result.stderr.splitlines() if not text.startswith(("done ", "failed "))]
        assert len(lines) == 1 and lines[0].startswith("bertfuse: ") and result.stdout == ""
        return lines[0]

    plan = tmp_path / "m.plan"
    build = ("engine", model, "-o", plan, "--backend", "rtx")
    assert "--workspace '1 GiBi'" in line(*build, "--workspace", "1 GiBi")
    for size in ("99999999999999G", "9" * 5000):
        assert f"--workspace '{size}': write bytes" in line(*build, "--workspace", size)
    assert "builds for 7.5, 8.0" in line(*build, "--compute-capability", "9.0")
    assert "no input 'ids'" in line(*build, "--shapes", "ids:1x1:1x1:1x1")
    monkeypatch.setenv("BERTFUSE_TRT_LIBRARY", "/absent.so")
    assert "/absent.so: no such library" in line(*build)
    assert list(tmp_path.iterdir()) == []
    run = ("run", model, "--text", "word1", "--engine", plan)
    (model.parent / "tokenizer.json").write_text(TOKENIZER)
    assert f"{plan}: no such engine" in line(*run)
    invoke(*build, "--no-plugins")
    monkeypatch.setattr(engine_run, "compute_capability", lambda: (9, 0))
    assert "does not run on this GPU's compute capability 9.0" in line(*run)


TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[UNK]": 1, "word1": 2}, "unk_token": "[UNK]"},
    }
)
