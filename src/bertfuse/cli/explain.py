"""The command that says, layer by layer and op by op, what fusion matches and where it breaks: explain."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .fusion import print_passes
from .models import Level, OutputRows, metadata
from .options import Json, grid
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.graph_rewrite import FusionResult, Part


def explain(
    model: Annotated[
        Path, typer.Argument(metavar="IN", help="Model to look at: an .onnx file, its folder, or a checkpoint.")
    ],
    level: Level = "full",
    padding: Annotated[
        str | None,
        typer.Option(metavar="keep|remove|ragged", help="As for fuse. \\[default: as in the folder's fused model]"),
    ] = None,
    output_rows: OutputRows = False,
    shapes: Annotated[
        str | None,
        typer.Option(metavar="BxS,…", help="Also say which kernels a GPU runs at these sizes, and what chose them."),
    ] = None,
    device: Annotated[int, typer.Option(min=0, help="With --shapes: number of the GPU.")] = 0,
    tuning: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --shapes: tuning file that 'bertfuse tune' wrote.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say for each op of each encoder layer whether it is fused, or which node stopped that and why.

    Nothing is written. Of a checkpoint without an ONNX file a temporary export is looked at. Where 'bertfuse bench DIR
    --ragged … -o DIR' has run since the model was fused, the share of padding and the time saved are shown, too.

    [bold]Examples[/]

      bertfuse explain model.onnx

      bertfuse explain minilm --level basic --json

      bertfuse explain minilm --padding remove

      bertfuse explain minilm-fp16 --shapes 1x128,32x128
    """
    from bertfuse.analysis.tactics import chosen_tactics
    from bertfuse.errors import BertfuseError
    from bertfuse.graph_rewrite import explain as examine
    from bertfuse.graph_rewrite.io import open_model
    from bertfuse.graph_rewrite.quantization import quantized_weights
    from bertfuse.graph_rewrite.spec import PADDING_KEY
    from bertfuse.model_folder.files import find_model

    with Steps(as_json) as steps, tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        sizes = grid(shapes, "--shapes") if shapes is not None else []
        try:
            path, fused = find_model(model, prefer_fused=False), find_model(model)
        except BertfuseError:
            from bertfuse.inference.prepare import is_checkpoint

            if not is_checkpoint(model):
                raise
            from bertfuse.export import export_model

            path = fused = export_model(model, Path(scratch, "export"), progress=steps)
        if padding is None:
            padding = (metadata(fused).get(PADDING_KEY) if fused != path else None) or "keep"
        say = lambda step: steps(f"Reading {model}: {step}")  # noqa: E731
        options = {"padding": padding, "output_rows": output_rows}
        result = examine(path, level=level, progress=say, **options)
        measured = _padding_measured(fused) if padding != "keep" else []
        named = model if path.is_relative_to(scratch) else path
        chosen = chosen_tactics(fused, sizes, device=device, tuning=tuning) if sizes else []
        quantized = quantized_weights(open_model(fused)[0])
    if as_json:
        shown: dict[str, Any] = {"measured": measured, "tactics": [tactic.to_dict() for tactic in chosen]}
        if quantized is not None:
            shown["quantized"] = asdict(quantized)
        filled = {name: value for name, value in shown.items() if value}
        print_json({"model": str(named)} | explanation(result) | filled)
    else:
        print_explanation(result)
        if quantized is not None:
            stdout().print(f"{fused}: {quantized}", markup=False, soft_wrap=True)
        for line in measured:
            stdout().print(f"measured: {line}", markup=False, soft_wrap=True)
        if chosen:
            rows = [[one.problem, str(one.launches), one.tactic, one.chosen_by] for one in chosen]
            stdout().print(table(f"Kernels on GPU {device}", ["problem", "launches", "tactic", "chosen by"], rows))


def _padding_measured(fused: Path) -> list[str]:
    """How much of batches was padding, and what leaving it out saved, where `bench --ragged` has run since."""
    from bertfuse.model_folder.files import folder_of

    if not (folder_of(fused) / "bench.json").is_file():
        return []
    from bertfuse.analysis.report.collect import measured

    report = measured(fused)
    return report.padding_lines if report is not None else []


def explanation(result: FusionResult) -> dict[str, Any]:
    """Every part of the result as plain data."""
    return {
        "layers": result.layers,
        "expected": dict(result.expected),
        "fused": dict(result.fused),
        "nodes": {"before": result.nodes[0], "after": result.nodes[1]},
        "parts": [part.to_dict() for part in result.parts],
        "messages": list(result.messages),
        "passes": [report.to_dict() for report in result.passes],
    }


def print_explanation(result: FusionResult) -> None:
    """A heading for each layer, a line for each op in it, and under a miss what was found and what was wanted."""
    console = stdout()
    width = max((len(part.op) for part in result.parts), default=0)
    for layer in sorted({part.layer for part in result.parts}):
        console.print(f"[bold]{result.layer_name(layer)}[/]")
        for part in (part for part in result.parts if part.layer == layer):
            state = "[red]missed [/]" if part.miss else "[green]matched[/]"
            console.print(f"  {part.op:{width}}  {state}  ", end="")
            console.print(summary(part), markup=False, soft_wrap=True)
            for name, text in details(part):
                console.print(f"      {name:<8}  {text}", markup=False, soft_wrap=True)
    print_passes(result)
    for message in result.messages:
        console.print(message, markup=False)
    fused, expected = sum(result.fused.values()), sum(result.expected.values())
    if expected:
        console.print(
            f"{fused} of {expected} expected ops match in {result.layers} layers;"
            f" {result.nodes[0]} nodes before, {result.nodes[1]} after"
        )


def summary(part: Part) -> str:
    """Where the op is and, if it matched, how many nodes it replaces and with which attributes."""
    if part.miss:
        return f"at {part.anchor}"
    values = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in part.attributes.items()
    ]
    return f"at {part.anchor}: " + ", ".join([f"{len(part.replaced)} nodes", *values])


def details(part: Part) -> list[tuple[str, str]]:
    """What is worth a line of its own: where a match broke, what was found and wanted, a hint, a remark."""
    if part.miss is None:
        return [("note", part.note)] if part.note else []
    miss = part.miss
    lines = [
        ("broke at", f"{miss.node}: {miss.place}" if miss.place else miss.node),
        ("found", miss.found),
        ("expected", miss.wanted),
        ("hint", miss.hint),
    ]
    return [(name, text) for name, text in lines if text]


def add_to(app: typer.Typer) -> None:
    app.command()(command(explain))
