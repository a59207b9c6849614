"""The command that measures kernels: tune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, grid
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.analysis.tuning import TuningReport


def tune(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Fused .onnx file, or folder of 'bertfuse optimize'.")],
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="BxS,…", help="Batch x sequence sizes that you run.")
    ] = "1x128,8x128,32x128",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Tuning file to write, or to add to. \\[default: tuning.tsv beside the model]",
        ),
    ] = None,
    device: Annotated[int, typer.Option(min=0, help="Number of the GPU.")] = 0,
    milliseconds: Annotated[float, typer.Option(min=0.1, help="How long to run each tactic.")] = 20.0,
    tf32: Annotated[bool, typer.Option("--tf32", help="Also measure float32 products with TF32's precision.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the kernels' tactics on this machine's GPU for your shapes, and write the fastest to a file.

    A tactic replaces the built-in choice where it takes at least 10% less time, measured alone. Each is first checked
    against a float64 reference, in a process of its own: one that is wrong or crashes is left out, with the reason.

    Sessions read the file that BERTFUSE_TUNING or bertfuse.register(options, tuning=FILE) names. Rows for other devices
    and shapes that are in the file already are kept, unless they name tactics that this library does not have.

    [bold]Examples[/]

      bertfuse tune minilm --shapes 1x128,32x128

      bertfuse tune model.fused.onnx --shapes 16x384 -o tuning.tsv
    """
    from bertfuse.analysis.tuning import tune as measure

    with Steps(as_json) as steps:
        report = measure(
            model,
            grid(shapes, "--shapes"),
            output,
            device=device,
            milliseconds=milliseconds,
            tf32=tf32,
            progress=steps,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        print_tuning(report)


def print_tuning(report: TuningReport) -> None:
    """A row for each problem: the tactic chosen, its time, and that of the tactic used without tuning."""
    rows = []
    for choice in report.choices:
        gain = choice.default_microseconds / choice.microseconds
        kept = "the same" if choice.tactic == choice.default_tactic else choice.default_tactic
        rows.append([
            choice.problem, str(choice.launches), choice.tactic, f"{choice.microseconds:.2f}", kept,
            f"{choice.default_microseconds:.2f}", f"{gain:.2f}",
        ])  # fmt: skip
    console = stdout()
    columns = ["problem", "launches", "chosen tactic", "us", "without tuning", "us", "gain"]
    console.print(table(f"Microseconds of one launch on {report.device}", columns, rows))
    for problem, tactics in report.rejected.items():
        for tactic, reason in tactics.items():
            console.print(f"Not used, {tactic} of {problem}: {reason}", markup=False, soft_wrap=True)
    for row in report.left_out:
        console.print(f"Left out, since this library does not take it: {' '.join(row.split())}", markup=False)
    console.print(f"Wrote {report.file}; use it with BERTFUSE_TUNING={report.file}", markup=False)


def add_to(app: typer.Typer) -> None:
    app.command()(command(tune))
