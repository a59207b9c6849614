"""bertfuse serve: a model behind HTTP."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from .options import Library, ModelFolder, Provider
from .output import command, stderr


def serve(
    model: ModelFolder,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: every address of the machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name in answers. \\[default: the folder's]")] = None,
    task: Annotated[
        str, typer.Option(metavar="auto|embed|rerank|classify", help="auto: what the model was exported for.")
    ] = "auto",
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Copies of the model. \\[default: one for each GPU, one on a CPU]")
    ] = None,
    max_replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Add replicas up to this many under load. \\[default: no more than --replicas]"),
    ] = None,
    http_processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that check requests and tokenise. \\[default: 4 on a GPU, 1 on a CPU]"),
    ] = None,
    target_requests: Annotated[
        int, typer.Option(min=1, help="With --max-replicas: requests to aim at for each replica.")
    ] = 64,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens in one batch. \\[default: 2048 on a CPU, 32768 on a GPU]"),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens in a text. \\[default: as the folder says]")
    ] = None,
    auto_truncate: Annotated[
        bool,
        typer.Option(
            "--auto-truncate", help="Cut longer texts, unless a request says otherwise. Without this they are refused."
        ),
    ] = False,
    max_texts: Annotated[int, typer.Option(min=1, help="Maximum texts in one request.")] = 2048,
    max_body: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Largest request.")] = 8_000_000,
    max_ongoing: Annotated[int, typer.Option(min=1, help="Requests that a replica works on at a time.")] = 256,
    max_queued: Annotated[int, typer.Option(min=1, help="Requests that may wait; the next one gets 429.")] = 512,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="A request that takes longer gets 503.")] = 60.0,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="When stopped, how long requests under way may still take.")
    ] = 30.0,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on this Ray cluster; auto: the one that this machine is in. \\[default: this machine alone]",
        ),
    ] = None,
    provider: Provider = "cpu",
    library: Library = "auto",
) -> None:
    """Serve a model over HTTP: OpenAI's /v1/embeddings, or text-embeddings-inference's /rerank or /classify.

    It answers /health, /metrics and /info, too, and runs until interrupted. Needs pip install 'bertfuse\\[serve]'.

    [bold]Examples[/]

      bertfuse serve minilm --port 8000

      bertfuse serve minilm --provider cuda --host 0.0.0.0 --auto-truncate

      bertfuse serve reranker --replicas 1 --max-replicas 4
    """
    from bertfuse.errors import BertfuseError
    from bertfuse.serving.application import Scale, serve_model
    from bertfuse.serving.requests import Limits
    from bertfuse.serving.served import look_at

    for option, value in (("--timeout", timeout), ("--drain", drain)):
        if not (math.isfinite(value) and value > 0):
            raise BertfuseError(f"{option} {value}: give seconds, more than 0")
    if max_replicas is not None and max_replicas < (replicas or 1):
        raise BertfuseError(f"--max-replicas {max_replicas} is less than --replicas {replicas}")
    served = look_at(
        model,
        kind=task,
        name=name,
        device=provider,
        library=library,
        max_length=max_length,
        max_batch_tokens=max_batch_tokens,
    )
    limits = Limits(
        max_texts=max_texts,
        max_body_bytes=max_body,
        auto_truncate=auto_truncate,
        timeout=timeout,
        max_ongoing=max_ongoing,
        max_queued=max_queued,
    )
    console = stderr()
    serve_model(
        served,
        limits,
        Scale(replicas, max_replicas, target_requests, http_processes),
        host=host,
        port=port,
        address=ray,
        drain=drain,
        say=lambda text: console.print(text, markup=False),
    )


def add_to(app: typer.Typer) -> None:
    app.command()(command(serve))
