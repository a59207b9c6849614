"""The command that gives a fused model 8-bit weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, Overwrite, check_new
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.quantization import Quantized


def quantize(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder that export or optimize wrote, or an .onnx file.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="What to write: a folder, or an .onnx file."),
    ],
    to: Annotated[str, typer.Option(metavar="int8|fp8", help="The type of the weights. fp8: for GPUs.")] = "int8",
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts, one per line, or an .npz file of inputs: one half to calibrate with, the other to judge on.",
        ),
    ] = None,
    activations: Annotated[
        str,
        typer.Option(
            metavar="token|tensor",
            help="token: each row of activations has a scale of its own. tensor: each tensor has one, by the "
            "calibration data, which is coarser.",
        ),
    ] = "token",
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A layer, or an op, that stays in float; may be repeated.")
    ] = None,
    min_cosine: Annotated[
        float | None,
        typer.Option(metavar="COSINE", help="Keep the layers that cost most in float until answers agree so far."),
    ] = None,
    residual: Annotated[
        bool,
        typer.Option(
            "--residual",
            help="Round residuals to int8, too: half-precision models hand them on in the 8 bits that products read.",
        ),
    ] = False,
    weight_scales: Annotated[
        str,
        typer.Option(
            metavar="channel|tensor",
            help="channel: a weight has a scale for each output channel. tensor: it has one, which is coarser; with "
            "--residual FasterTransformer's int8 mode 2.",
        ),
    ] = "channel",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Give a model's products and word embeddings 8-bit weights: about a quarter of the size, and faster on CPUs.

    A model that is not fused is fused first. Prints the error that each layer has, what stayed in float and why, and,
    with calibration data, how the answers of both models differ.

    [bold]Examples[/]

      bertfuse quantize minilm -o minilm-int8 --calibration texts.txt

      bertfuse quantize fused.onnx -o int8.onnx --calibration inputs.npz --min-cosine 0.999

      bertfuse quantize minilm -o minilm-int8 --keep EmbedLayerNorm

      bertfuse quantize minilm-fp16 -o minilm-fp8 --to fp8 --calibration texts.txt
    """
    from bertfuse.quantization import quantize as make
    from bertfuse.quantization import quantize_folder

    check_new(output, overwrite, str(model))
    whole_folder = model.is_dir() and output.suffix != ".onnx"
    with Steps(as_json) as steps:
        found = (quantize_folder if whole_folder else make)(
            model,
            output,
            to=to,
            calibration=calibration,
            activations=activations,
            keep=keep or (),
            min_cosine=min_cosine,
            residual=residual,
            weight_scales=weight_scales,
            progress=steps,
        )
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found, output)


def _print(found: Quantized, output: Path) -> None:
    console = stdout()
    rows = [
        [
            f"{layer.name} ({layer.op})",
            "x".join(map(str, layer.shape)),
            f"{layer.scale_least:.2e} to {layer.scale_most:.2e}",
            "" if layer.kept else "by row" if layer.x_scale is None else f"{layer.x_scale:.2e}",
            f"{layer.error:.2%}",
            layer.kept or "quantised",
        ]
        for layer in found.layers
    ]
    console.print(table("", ["layer", "weight", "scales", "input's scale", "error", ""], rows))
    if found.judgement is not None:
        console.print(f"{found.judgement.counted} by both models, float and quantised:")
        for line in found.judgement.lines():
            console.print(f"  {line}", markup=False)
    for message in found.messages:
        console.print(message, markup=False)
    megabytes = [size / 1e6 for size in (found.bytes_before, found.bytes_after)]
    console.print(f"Wrote {output}: {megabytes[0]:.1f} MB before, {megabytes[1]:.1f} MB after", markup=False)


def add_to(app: typer.Typer) -> None:
    app.command()(command(quantize))
