"""bertfuse compare: two or more models or engines on the same inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, Library, Provider
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.measuring.compare import Comparison


def compare(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="Model or engine that the others are compared with.")
    ],
    others: Annotated[
        list[str], typer.Argument(metavar="OTHER...", help="One or more of FILE, FILE@HOW, or an engine's FILE.plan.")
    ],
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="Real input; give it again for more.")] = None,
    texts: Annotated[
        Path | None,
        typer.Option("--texts", metavar="FILE", help="Real inputs, one on each line."),
    ] = None,
    file: Annotated[Path | None, typer.Option("--input", "-i", help="An .npz file with an array per input.")] = None,
    per_node: Annotated[
        bool, typer.Option("--per-node", help="Also compare the inner tensors that both graphs have, in order.")
    ] = False,
    bisection: Annotated[
        bool,
        typer.Option(
            "--bisect",
            help="Find the first tensor that differs, and how much of it is its own nodes' doing.",
        ),
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a self-contained HTML page.")] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance. \\[default: by type]")] = None,
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance. \\[default: by type]")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs, where none are given.")] = 0,
    provider: Provider = "cpu",
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Run models and engines on the same inputs and compare them with polygraphy. Exit 1 when outputs disagree.

    FILE@HOW says how that file runs: HOW is cpu, cpu+library (with the custom-op library), cuda (with it) or
    cuda-library (without it). A reference without HOW runs on the CPU; for the others --provider and --library then
    say how. A .plan file runs in TensorRT. Without --text, --texts and --input the inputs are random but valid, with
    padding. Where one of the models has 8-bit weights, vectors are compared by their cosine, and of several texts it is
    said how similarities, nearest neighbours or labels differ.

    [bold]Examples[/]

      bertfuse compare minilm/onnx/model.onnx.original minilm --per-node

      bertfuse compare minilm minilm@cuda minilm/model.plan --html report.html

      bertfuse compare a.onnx b.onnx --text "A sentence." --atol 1e-5 --bisect

      bertfuse compare minilm minilm-int8 --texts texts.txt
    """
    from bertfuse.analysis.compare_page import write_page
    from bertfuse.errors import BertfuseError
    from bertfuse.files import check_target
    from bertfuse.measuring.compare import compare_subjects
    from bertfuse.measuring.subjects import Subject
    from bertfuse.runtime.inputs import read_npz, read_texts

    if sum(given is not None for given in (text or None, texts, file)) > 1:
        raise BertfuseError("give --text, --texts or --input, one of them")
    subjects = [Subject.parse(reference), *(Subject.parse(other, provider, library) for other in others)]
    if html is not None:
        check_target(html, [file, texts, *(subject.path for subject in subjects)])
    with Steps(as_json) as steps:
        steps("Reading the models")
        comparisons = compare_subjects(
            subjects,
            inputs=read_npz(file) if file else None,
            texts=read_texts(texts) if texts else text,
            per_node=per_node,
            bisection=bisection,
            atol=atol,
            rtol=rtol,
            seed=seed,
            progress=steps,
        )
        if html is not None:
            steps(f"Writing {html}")
            write_page(comparisons, html)
    if as_json:
        found = [comparison.to_dict() for comparison in comparisons]
        print_json(found[0] if len(found) == 1 else {"comparisons": found, "passed": all(f["passed"] for f in found)})
    else:
        for comparison in comparisons:
            print_comparison(comparison, per_node)
        if html is not None:
            stdout().print(f"Wrote {html}", markup=False)
    if not all(comparison.passed for comparison in comparisons):
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
            entry.verdict,
        ]
        for entry in comparison.outputs
    ]
    title = f"{comparison.other} against {comparison.reference}"
    if comparison.left_out:
        console.print(comparison.left_out, markup=False)
    console.print(table(title, ["output", "largest abs. diff.", "relative", "least cosine", ""], rows))
    if comparison.judgement is not None:
        for line in (f"{comparison.judgement.counted} by both:", *comparison.judgement.lines()):
            console.print(line, markup=False)
    if per_node:
        agreed = sum(entry.passed for entry in comparison.tensors)
        console.print(f"{agreed} of {len(comparison.tensors)} tensors that both share agree")
        first = comparison.first_difference
        if first is not None:
            console.print(f"First to differ: {first.name}: {first.reason}", markup=False)
    if comparison.bisection is not None:
        from bertfuse.analysis.compare_page import bisection_text

        console.print(bisection_text(comparison.bisection), markup=False)


def add_to(app: typer.Typer) -> None:
    app.command()(command(compare))
