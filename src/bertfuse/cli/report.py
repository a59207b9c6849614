"""The command that writes one HTML page about a fusion: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, grid
from .output import Steps, command, print_json, stdout


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that 'bertfuse optimize' wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PAGE.html", help="File to write. \\[default: report.html, here]"),
    ] = None,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="BxS,…", help="Batch x sequence sizes to time.")
    ] = "1x32,1x128",
    seconds: Annotated[float, typer.Option(help="About how long each model runs at each size; 0: no timing.")] = 1.0,
    texts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Texts to compare both models on, one on each line."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about DIR: drawings before and after, what was fused, accuracy, latency, environment.

    The page needs nothing beside it, no network either. Where 'bertfuse bench DIR -o DIR' has run since the model was
    fused, its figures are shown, and nothing is timed.

    [bold]Examples[/]

      bertfuse report minilm

      bertfuse report minilm -o minilm.html --seconds 0
    """
    from bertfuse.analysis.bench import check_seconds
    from bertfuse.analysis.report import PAGE_FILE, write_report
    from bertfuse.files import check_target
    from bertfuse.model_folder.files import model_pair
    from bertfuse.runtime.inputs import read_texts

    original, fused = model_pair(folder)
    target = output or Path(PAGE_FILE)
    check_target(target, [texts])
    check_seconds(seconds)
    with Steps(as_json) as steps:
        page = write_report(
            original,
            fused,
            target,
            seconds=seconds,
            sizes=grid(sizes, "--sizes"),
            texts=read_texts(texts) if texts else None,
            progress=steps,
        )
    if as_json:
        print_json({"page": str(page)})
    else:
        stdout().print(f"Wrote {page}", markup=False)


def add_to(app: typer.Typer) -> None:
    app.command()(command(report))
