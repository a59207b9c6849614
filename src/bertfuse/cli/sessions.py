"""Commands that look at what runs, and how fast: bench, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, Provider, grid
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.analysis.bench import BenchReport
    from bertfuse.measuring.gpu_contenders import GpuOptions


def bench(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that 'bertfuse optimize' wrote.")],
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes", metavar="BxS,…", help="Batch x sequence sizes to measure. \\[default: 1x32,1x128,8x128]"
        ),
    ] = None,
    ragged: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORKLOAD",
            help="Measure texts of unequal lengths in place of --sizes: sentences, passages or pairs (sentences:16: "
            "of 16), lengths (9,31,77), or a file with a text on each line. Give it again for more.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="About how long the slowest contender runs at each size.")] = 2.0,
    threads: Annotated[
        int | None, typer.Option(help="On the CPU: threads of each contender. \\[default: its own choice]")
    ] = None,
    provider: Provider = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="fp32|fp16", help="On a GPU: type that all contenders run in. \\[default: the fused model's]"
        ),
    ] = None,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="On a GPU: replay each run as a CUDA graph.")
    ] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="On a GPU: allow TF32 in float32 products, for all contenders.")
    ] = False,
    tuning: Annotated[
        Path | None, typer.Option(metavar="FILE", help="On a GPU: tuning file that 'bertfuse tune' wrote.")
    ] = None,
    engine: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.plan", help="On a GPU: measure this TensorRT engine, too. Give it again for more."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Also write bench.json and bench.png to this folder; in DIR explain and report show them.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the fused model against the original, ONNX Runtime's own optimizer, and PyTorch.

    Contenders warm up, then take turns, forwards and backwards; medians are printed. On the CPU each file runs in its
    own float type, which the table names. On a GPU all run in the same type, and a profile is taken first: nothing is
    measured unless every fused op runs as our CUDA kernel.

    [bold]Examples[/]

      bertfuse bench minilm

      bertfuse bench minilm --sizes 1x128,32x384 --seconds 5 -o results

      bertfuse bench minilm --ragged sentences:16 --ragged 9,31,14,77

      bertfuse bench minilm --provider cuda --dtype fp16 --cuda-graph --engine minilm/model.plan
    """
    from bertfuse.analysis.bench import GRID, plot
    from bertfuse.analysis.bench import bench as measure
    from bertfuse.errors import BertfuseError
    from bertfuse.files import check_target, replacing
    from bertfuse.model_folder.files import model_pair

    model_pair(folder)
    if sizes is not None and ragged:
        raise BertfuseError("--ragged takes the place of --sizes: give one of them")
    files = [output / name for name in ("bench.json", "bench.png")] if output is not None else []
    for file in files:
        check_target(file)
    if provider == "cuda":
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)  # it warns of every tensor that is bound on the GPU
    gpu = _gpu_options(provider, dtype=dtype, cuda_graph=cuda_graph, tf32=tf32, tuning=tuning and str(tuning))
    with Steps(as_json) as steps:
        report = measure(
            folder,
            grid=GRID if sizes is None else grid(sizes, "--sizes"),
            provider=provider,
            seconds=seconds,
            threads=threads,
            gpu=gpu,
            ragged=ragged or (),
            engines=engine or (),
            progress=steps,
        )
        if files:
            steps("Writing bench.json and bench.png")
            with replacing(files[0]) as temporary:
                import json

                temporary.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
            plot(report, files[1])
    if as_json:
        print_json(report.to_dict())
    else:
        print_bench(report)
        if files:
            stdout().print(f"Wrote {' and '.join(map(str, files))}", markup=False)


def _gpu_options(provider: str, **options: Any) -> GpuOptions | None:
    from bertfuse.errors import BertfuseError
    from bertfuse.measuring.gpu_contenders import DTYPES, GpuOptions

    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given and provider != "cuda":
        raise BertfuseError(f"{given[0]} is for GPUs: give --provider cuda, too")
    if options["dtype"] not in (None, *DTYPES):
        raise BertfuseError(f"--dtype {options['dtype']!r} is unknown: choose one of {', '.join(DTYPES)}")
    return GpuOptions(**options) if provider == "cuda" else None


def print_bench(report: BenchReport) -> None:
    """Milliseconds per contender and size, and how many times as fast as the original where there is a difference."""
    from bertfuse.analysis.bench import figure

    console = stdout()
    first = report.contenders[0]
    rows = []
    for name in report.contenders:
        row = [report.label(name)]
        for size in report.sizes:
            timing = report.at(name, size)
            spread = f"{figure(timing.low)}-{figure(timing.high)}"
            base = report.at(first, size)
            alike = name != first and timing.overlaps(base)
            speed = "no difference" if alike else f"{base.median / timing.median:.2f}x"
            row.append(f"{figure(timing.median)} ({spread})\n{speed}")
        rows.append(row)
    sizes = [f"{batch} x {sequence}" for batch, sequence in report.sizes]
    title = ", ".join([f"Milliseconds: median (middle half), speed against {first}", *report.conditions])
    console.print(table(title, ["", *sizes], rows))
    for line in report.padding_lines:
        console.print(line, markup=False)
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
    from bertfuse.analysis.doctor import doctor as examine

    with Steps(as_json) as steps:
        steps("Checking packages, libraries and GPUs")
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
        rows += gpu_code_rows(report["gpu_code"])
        made = table("", ["", "found"], rows)
        made.columns[1].justify = "left"
        console.print(made)
        for problem in report["problems"]:
            console.print(f"problem: {problem}", markup=False)
    if report["problems"]:
        raise typer.Exit(1)


def gpu_code_rows(code: dict[str, Any] | None) -> list[list[str]]:
    """What GPU code the library holds, and what each GPU uses of it."""
    if code is None:
        return []
    if not code["machine_code"]:
        return [["GPU code of the library", f"none: built without CUDA kernels ({code['left_out']})"]]
    held = f"machine code for {', '.join(code['machine_code'])}"
    if code["ptx"]:
        held += f"; PTX of {', '.join(code['ptx'])} for what comes later"
    rows = [["GPU code of the library", held]]
    rows += [[f"  {gpu['name']} ({gpu['compute_capability']}) uses", gpu["uses"] or "nothing"] for gpu in code["gpus"]]
    return rows


def add_to(app: typer.Typer) -> None:
    for function in (bench, doctor):
        app.command()(command(function))
