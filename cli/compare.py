"""bertfuse compare: two or more models or engines on the same inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .models import Json
from .options import Library, Provider
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.runtime import Comparison


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


def add_to(app: typer.Typer) -> None:
    app.command()(command(compare))
