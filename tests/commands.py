"""Commands called in this process, and where `bertfuse optimize` puts the model before fusion."""

from __future__ import annotations

import json
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
