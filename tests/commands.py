"""Commands called in this process, and where `bertfuse optimize` puts the model before fusion."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from bertfuse.cli import app

ORIGINAL = Path("onnx", "model.onnx.original")


def invoke(*arguments: object, code: int | None = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert code is None or result.exit_code == code, (
        f"exit code {result.exit_code}\n{result.stdout}\n{result.stderr}\n{result.exception}"
    )
    return result


def said(*arguments: object, code: int | None = 0) -> Any:
    """The JSON document that is all of a command's stdout; with --json stderr is silent, too."""
    result = invoke(*arguments, "--json", code=code)
    assert result.stderr == ""
    return json.loads(result.stdout)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "bertfuse.cli", *map(str, arguments)]


def started_as_by_a_terminal(line: list[str]) -> subprocess.Popen[str]:
    """In a process group of its own, to which os.killpg(pid, SIGINT) is what a terminal does on Ctrl-C."""
    return subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore it, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
