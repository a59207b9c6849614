"""The command that hunts faults: qualify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .models import Json
from .output import Steps, command, print_json

FOUND = 1


def qualify(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file whose mutants are fused and compared.")],
    minutes: Annotated[float, typer.Option(min=0.01, help="How long it hunts.")] = 8.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the random numbers.  \\[default: drawn and printed]")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="At most so many mutants.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PATH", help="Where findings are written as they come.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Hunt for what is wrong on this machine. Exit code 0: nothing found; 1: findings; 2: bad input.

    [bold]Examples[/]

      bertfuse qualify model.onnx --minutes 2
    """
    from bertfuse.qualify.mutants import hunt

    with Steps(as_json) as steps:
        report = hunt(model, minutes=minutes, seed=seed, count=count, out=output, progress=steps)
    if as_json:
        print_json(report.to_dict())
    else:
        report.show()
    if report.findings:
        raise typer.Exit(FOUND)


def add_to(app: typer.Typer) -> None:
    app.command()(command(qualify))
