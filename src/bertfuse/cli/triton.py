"""bertfuse triton: a model repository for NVIDIA's Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Library, ModelFolder, Overwrite, Provider
from .output import Steps, command, print_json, stdout


def triton(
    model: ModelFolder,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Repository to write, or to add to.")],
    backend: Annotated[
        str,
        typer.Option(
            metavar="onnxruntime|tensorrt|python", help="What runs the model; python: one Python model does everything."
        ),
    ] = "onnxruntime",
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE.plan", help="The model's TensorRT engine, for --backend tensorrt.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's name. \\[default: the folder's]")] = None,
    libraries: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of libbertfuse_ort.so on the server.")
    ] = "/opt/bertfuse",
    max_batch_size: Annotated[int, typer.Option(min=1, help="Maximum texts that Triton puts in one batch.")] = 64,
    queue_delay: Annotated[
        int,
        typer.Option(min=0, metavar="MICROSECONDS", help="How long a request may wait for others to share its batch."),
    ] = 500,
    instances: Annotated[int, typer.Option(min=1, help="Copies of the model on each GPU, or on the CPU.")] = 1,
    provider: Provider = "cuda",
    library: Library = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a model repository for Triton: a model that takes texts, and the fused one that it calls.

    The first is a Python model: install bertfuse, onnxruntime and tokenizers for the server's Python.

    [bold]Examples[/]

      bertfuse triton minilm -o repository

      bertfuse triton minilm -o repository --backend tensorrt --plan minilm/model.plan

      bertfuse triton minilm -o repository --backend python --provider cpu
    """
    from bertfuse.errors import BertfuseError
    from bertfuse.runtime.session import PROVIDERS
    from bertfuse.serving.look import look_at
    from bertfuse.serving.triton.repository import Options, write_repository

    if provider not in PROVIDERS:
        raise BertfuseError(f"provider {provider!r} is unknown: choose one of {', '.join(PROVIDERS)}")
    with Steps(as_json) as steps:
        steps(f"Reading {model}")
        served = look_at(model, name=name, device=provider, library=library)
        steps(f"Writing {output}")
        options = Options(libraries, max_batch_size, queue_delay, instances)
        names = write_repository(served, output, backend=backend, plan=plan, options=options, overwrite=overwrite)
    if as_json:
        print_json({"repository": str(output), "models": names, "task": served.kind})
        return
    console = stdout()
    console.print(f"Wrote {' and '.join(names)} to {output}; texts go to {names[0]}", markup=False)


def add_to(app: typer.Typer) -> None:
    app.command()(command(triton))
