"""bertfuse engine: a fused file to a TensorRT engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, Overwrite, check_new
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.runtime.trt import EngineReport


def engine(
    model: Annotated[Path, typer.Argument(metavar="MODEL.fused.onnx", help="A fused model, or a folder with one.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.plan", help="Engine to write.")],
    backend: Annotated[
        str | None,
        typer.Option(metavar="tensorrt|rtx", help="TensorRT or TensorRT for RTX. \\[default: what is installed]"),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT:MIN:OPT:MAX",
            help="Such as input_ids:1x16:8x128:32x512, once per input; without INPUT it holds for all inputs."
            " \\[default: batch 1, 8, 32 and sequence 16, 128, 512, or the model's longest]",
        ),
    ] = None,
    compute_capability: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MAJOR.MINOR",
            help="GPUs to build for (TensorRT for RTX); give it again for more. \\[default: 8.0, 8.6, 8.9, 12.x]",
        ),
    ] = None,
    no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins",
            help="Build from the ops' definitions in standard operators: the engine then runs without our library.",
        ),
    ] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Allow TF32 in TensorRT's own float32 products (not in the plugins').")
    ] = False,
    timing_cache: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Timing cache to read and to add to (TensorRT).")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Maximum memory that a layer may use, such as 512M or 4G.")
    ] = None,
    expose: Annotated[
        bool,
        typer.Option("--expose", help="Make each fused op's result an output of the engine, for 'compare --per-node'."),
    ] = False,
    save_onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the ONNX file given to TensorRT, for trtexec.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Build a TensorRT engine, each fused op a plugin layer. FILE.plan.json beside it says how it was built.

    TensorRT for RTX builds without a GPU: pip install 'bertfuse\\[rtx]'.

    [bold]Examples[/]

      bertfuse engine minilm/onnx/model.onnx -o minilm/model.plan

      bertfuse engine minilm -o model.plan --backend rtx --compute-capability 8.9 --shapes 1x16:8x128:64x256
    """
    from bertfuse.model_folder.files import find_model
    from bertfuse.runtime.trt import build_engine

    check_new(output, overwrite)
    with Steps(as_json) as steps:
        report = build_engine(
            find_model(model),
            output,
            backend=backend,
            shapes=shapes or (),
            compute_capabilities=compute_capability or (),
            plugins=not no_plugins,
            tf32=tf32,
            timing_cache=timing_cache,
            workspace=None if workspace is None else _bytes(workspace),
            expose=expose,
            save_onnx=save_onnx,
            progress=steps,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        print_engine(report)


def _bytes(text: str) -> int:
    from bertfuse.errors import BertfuseError

    # 15 digits: more bytes than any GPU has, and with the largest unit more than TensorRT can count.
    found = re.fullmatch(r"(\d{1,15})\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    size = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()] if found else 0
    if not 0 < size < 1 << 60:
        raise BertfuseError(f"--workspace {text!r}: write bytes, or a number with K, M or G, as in 512M; below 2^60")
    return size


def print_engine(report: EngineReport) -> None:
    """The layers by kind, plugin layers first; then what was built for what."""
    from bertfuse.runtime.trt.backend import TITLES
    from bertfuse.runtime.trt.build import PLUGIN_LAYERS

    console = stdout()
    made = report.plugins["layers"] if report.plugins else {}
    kind = next((layer.kind for layer in report.layers if layer.kind in PLUGIN_LAYERS), "")
    rows = [[op, kind, str(count)] for op, count in made.items()]
    rows += [["", kind, str(count)] for kind, count in report.kinds.items() if kind not in made]
    shown = table("", ["plugin", "layer", "count"], rows)
    shown.columns[1].justify = "left"
    console.print(shown)
    if report.plugins:
        console.print(f"{sum(made.values())} fused ops are plugin layers of {report.plugins['library']}", markup=False)
    elif report.fused:
        console.print(f"{sum(report.fused.values())} fused ops were built from their bodies, without plugins")
    else:
        console.print("The model holds no fused op; 'bertfuse fuse' makes them.")
    for name, bounds in report.shapes.items():
        sizes = ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in bounds.items())
        console.print(f"{name}: {sizes}", markup=False)
    target = ", ".join(report.compute_capabilities)
    console.print(
        f"Wrote {report.plan} ({report.plan_bytes / 1e6:.1f} MB, {report.types}) for {TITLES[report.backend]}"
        f" {report.version}, compute capability {target}",
        markup=False,
    )


def add_to(app: typer.Typer) -> None:
    app.command()(command(engine))
