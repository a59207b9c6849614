"""Commands that look at what runs, and how fast: bench, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .models import Json
from .options import Provider, grid
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.runtime.bench import BenchReport


def bench(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that 'bertfuse optimize' wrote.")],
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="BxS,…", help="Batch x sequence sizes to measure.")
    ] = "1x32,1x128,8x128",
    seconds: Annotated[float, typer.Option(help="About how long each one runs at each size.")] = 2.0,
    threads: Annotated[int | None, typer.Option(help="Threads of each. [default: its own]")] = None,
    provider: Provider = "cpu",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Folder for bench.json and bench.png. [DIR]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the fused model against the original, ONNX Runtime's own optimizer, and PyTorch.

    Medians over interleaved rounds, after warm-up; the table goes to bench.json and bench.png, too.

    [bold]Examples[/]

      bertfuse bench minilm

      bertfuse bench minilm --sizes 1x128,32x384 --seconds 5 -o results
    """
    from bertfuse.graph_rewrite.io import replacing
    from bertfuse.runtime.bench import bench as measure
    from bertfuse.runtime.bench import plot

    target = output or folder
    with Steps(as_json) as steps:
        report = measure(
            folder, grid=grid(sizes, "--sizes"), provider=provider, seconds=seconds, threads=threads, progress=steps
        )
        steps("Writing bench.json and bench.png")
        with replacing(target / "bench.json") as temporary:
            import json

            temporary.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
        plot(report, target / "bench.png")
    if as_json:
        print_json(report.to_dict())
    else:
        print_bench(report)
        stdout().print(f"Wrote {target / 'bench.json'} and {target / 'bench.png'}", markup=False)


def print_bench(report: BenchReport) -> None:
    """Milliseconds per contender and size, and how many times as fast as the original."""
    console = stdout()
    first = report.contenders[0]
    rows = []
    for name in report.contenders:
        row = [name]
        for size in report.sizes:
            timing = report.at(name, size)
            spread = f"{timing.low:.1f}-{timing.high:.1f}"
            row.append(f"{timing.median:.2f} ({spread})\n{report.at(first, size).median / timing.median:.2f}x")
        rows.append(row)
    sizes = [f"{batch} x {sequence}" for batch, sequence in report.sizes]
    title = f"Milliseconds: median (middle half), speed against {first}"
    console.print(table(title, ["", *sizes], rows))
    for name, notes in report.notes.items():
        console.print(f"{name}: {notes}", markup=False)
        fused = report.details.get(name, {}).get("fused")
        if fused:
            console.print("  fused " + ", ".join(f"{op} {count}" for op, count in fused.items()), markup=False)
    for name, reason in report.absent.items():
        console.print(f"{name}: not measured: {reason}", markup=False)


def doctor(as_json: Json = False) -> None:
    """Say what is installed, which libraries load with which ops, and which providers there are. Exit 1 on a problem.

    [bold]Examples[/]

      bertfuse doctor

      bertfuse doctor --json
    """
    from bertfuse.runtime.doctor import doctor as examine

    with Steps(as_json) as steps:
        steps("Looking around")
        report = examine()
    if as_json:
        print_json(report)
    else:
        console = stdout()
        rows = [["bertfuse", report["bertfuse"]], ["python", report["python"]], ["platform", report["platform"]]]
        rows += [[name, version or "not installed"] for name, version in report["packages"].items()]
        ops = report["ops"]
        rows.append([f"ops (domain {ops['domain']}, version {ops['version']})", ", ".join(ops["names"])])
        for runtime, entry in report["libraries"].items():
            state = f"{entry['path']}: loads, brings {', '.join(entry['ops']) or 'no op'}"
            rows.append([f"library for {runtime}", entry["error"] or state])
        rows.append(["providers", ", ".join(report["providers"]) or "none"])
        rows.append(["GPU", "; ".join(" ".join(gpu.values()) for gpu in report["gpus"]) or "none"])
        made = table("", ["", "found"], rows)
        made.columns[1].justify = "left"
        console.print(made)
        for problem in report["problems"]:
            console.print(f"problem: {problem}", markup=False)
    if report["problems"]:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    for function in (bench, doctor):
        app.command()(command(function))
