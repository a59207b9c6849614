"""Commands that run models: run, compare, bench, doctor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .models import Json
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.runtime import Comparison
    from bertfuse.runtime.bench import BenchReport

Provider = Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the model runs.")]
Library = Annotated[
    str,
    typer.Option(
        metavar="auto|always|never",
        help="Whether the custom-op library is loaded. auto: not on the CPU, where the op bodies are faster.",
    ),
]


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of export or optimize, or an .onnx file.")],
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A text; give it again for more.")] = None,
    text_pair: Annotated[list[str] | None, typer.Option(help="Its second segment, as question's context.")] = None,
    file: Annotated[Path | None, typer.Option("--input", "-i", help="An .npz file with an array per input.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the outputs to this .npz file.")] = None,
    provider: Provider = "cpu",
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Run a model on text or arrays. A folder's fused model is taken where there is one.

    [bold]Examples[/]

      bertfuse run minilm --text "A man is eating." --text "Someone has a meal."

      bertfuse run clf/model.onnx --input batch.npz -o logits.npz
    """
    import numpy as np

    from bertfuse.errors import BertfuseError
    from bertfuse.runtime.answers import answers
    from bertfuse.runtime.inputs import find_model, fit_inputs, read_npz, text_inputs
    from bertfuse.runtime.session import InferenceSession, ort_errors, providers_of

    if bool(text) == (file is not None):
        raise BertfuseError("give either --text or --input")
    path = find_model(model)
    arrays = read_npz(file) if file else text_inputs(path.parent, text or [], text_pair)
    with Steps(as_json) as steps:
        steps(f"Loading {path}")
        session = InferenceSession(path, providers_of(provider), library=library)
        feed = fit_inputs(session, arrays, str(file) if file else "the tokenised text")
        steps("Running")
        with ort_errors(str(path)):
            results = session.run(None, feed)
    outputs = dict(zip((value.name for value in session.get_outputs()), results, strict=True))
    if output is not None:
        _save_npz(output, outputs)
    task = session.get_modelmeta().custom_metadata_map.get("bertfuse.task", "")
    said = answers(task, path.parent, feed, outputs)
    if as_json:
        data = {
            name: {"shape": list(a.shape), "dtype": str(a.dtype), "values": a.tolist()} for name, a in outputs.items()
        }
        print_json({"model": str(path), "task": task, "outputs": data, "answers": said})
        return
    console = stdout()
    rows = []
    for name, array in outputs.items():
        first = " ".join(f"{value:.4f}" for value in np.ravel(array)[:4].astype(float))
        rows.append([name, str(list(array.shape)), str(array.dtype), first + (" …" if array.size > 4 else "")])
    console.print(table("", ["output", "shape", "type", "first values"], rows))
    for index, answer in enumerate(said):
        name = text[index] if text else f"row {index}"
        console.print(f"{name}: {_say(answer)}", markup=False)
    if output is not None:
        console.print(f"Wrote {output}", markup=False)


def _say(answer: dict[str, Any]) -> str:
    def plain(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4f}"
        if isinstance(value, tuple):
            return "/".join(map(plain, value))
        return " ".join(map(plain, value)) if isinstance(value, list) else str(value)

    return ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in answer.items())


def _save_npz(path: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from bertfuse.graph_rewrite.io import replacing

    with replacing(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def compare(
    reference: Annotated[Path, typer.Argument(metavar="A.onnx", help="What the other one is measured against.")],
    other: Annotated[Path, typer.Argument(metavar="B.onnx")],
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="Real input; give it again for more.")] = None,
    file: Annotated[Path | None, typer.Option("--input", "-i", help="An .npz file with an array per input.")] = None,
    per_node: Annotated[
        bool, typer.Option("--per-node", help="Also compare the tensors that both graphs share, in order.")
    ] = False,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance. [default: by type]")] = None,
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance. [default: by type]")] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs, where none are given.")] = 0,
    provider: Provider = "cpu",
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Run two models on the same inputs and compare them with polygraphy. Exit 1 when their outputs disagree.

    Without --text and --input: random valid inputs, padded rows among them.

    [bold]Examples[/]

      bertfuse compare minilm/model.onnx minilm/model.fused.onnx --per-node

      bertfuse compare a.onnx b.onnx --text "A sentence." --atol 1e-5
    """
    from bertfuse.errors import BertfuseError
    from bertfuse.runtime import compare_models
    from bertfuse.runtime.inputs import find_model, read_npz
    from bertfuse.runtime.session import providers_of

    if text and file is not None:
        raise BertfuseError("give --text or --input, not both")
    with Steps(as_json) as steps:
        steps("Reading both models")
        comparison = compare_models(
            find_model(reference),
            find_model(other),
            inputs=read_npz(file) if file else None,
            texts=text,
            per_node=per_node,
            atol=atol,
            rtol=rtol,
            providers=providers_of(provider),
            library=library,
            seed=seed,
            progress=steps,
        )
    if as_json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison, per_node)
    if not comparison.passed:
        raise typer.Exit(1)


def print_comparison(comparison: Comparison, per_node: bool = False) -> None:
    """One row per output; of the inner tensors only how many agree and which one differs first."""
    console = stdout()
    rows = [
        [
            entry.name,
            f"{entry.absolute:.2e}",
            f"{entry.relative:.2e}",
            f"{entry.cosine:.8f}",
            "agrees" if entry.passed else f"differs ({entry.reason})",
        ]
        for entry in comparison.outputs
    ]
    console.print(table("", ["output", "largest abs. diff.", "relative", "least cosine", ""], rows))
    if not per_node:
        return
    agreed = sum(entry.passed for entry in comparison.tensors)
    console.print(f"{agreed} of {len(comparison.tensors)} tensors that both share agree")
    first = comparison.first_difference
    if first is not None:
        console.print(f"First to differ: {first.name}: {first.reason}", markup=False)


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
        report = measure(folder, grid=_grid(sizes), provider=provider, seconds=seconds, threads=threads, progress=steps)
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


def _grid(text: str) -> list[tuple[int, int]]:
    from bertfuse.errors import BertfuseError

    grid = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*[xX×]\s*(\d+)\s*", part)
        if found is None:
            raise BertfuseError(f"--sizes {part!r}: write batch x sequence, as in 1x128,8x128")
        grid.append((int(found[1]), int(found[2])))
    return grid


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
    for function in (run, compare, bench, doctor):
        app.command()(command(function))
