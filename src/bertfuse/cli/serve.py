"""bertfuse serve: models behind HTTP."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from .options import Library, Provider
from .output import command, stderr


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODEL_DIR...",
            help="Folders that 'bertfuse optimize' or 'export' wrote; requests use NAME, or the folder's name.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: every address of the machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of text-embeddings-inference's gRPC interface. \\[default: none]"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of a single model in answers. \\[default: the folder's]")
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            metavar="auto|embed|rerank|classify|sparse|late",
            help="auto: what each model was exported for; sparse: word weights of a masked language model (SPLADE).",
        ),
    ] = "auto",
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Engine processes, each with all models. \\[default: one for each GPU, one on a CPU]"),
    ] = None,
    http_processes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that check requests and tokenise. \\[default: half the cores for GPUs, 1 on a CPU]"
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores for each engine on a CPU. \\[default: all, shared]")
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="MIB",
            help="Memory of an engine's process that has run its largest batches: with more it does not start. "
            "\\[default: no limit]",
        ),
    ] = None,
    gpu_memory: Annotated[
        int | None, typer.Option(min=1, metavar="MIB", help="GPU memory for each model, in MiB. \\[default: no limit]")
    ] = None,
    warm: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS,...",
            help="Sizes of batches, in tokens, run before the server is ready. \\[default: 16; on a GPU 16,512,16384]",
        ),
    ] = None,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens in one batch. \\[default: 512 on a CPU, 16384 on a GPU]"),
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
    max_pixels: Annotated[
        int, typer.Option(min=1, metavar="PIXELS", help="Most pixels of a request's images together.")
    ] = 50_000_000,
    max_queued: Annotated[
        int, typer.Option(min=1, help="Requests that may wait for each engine; the next one gets 429.")
    ] = 512,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections of each HTTP process; then the one idle for longest is closed.")
    ] = 10_000,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="A request that takes longer gets 503.")] = 60.0,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="When stopped, how long requests under way may still take.")
    ] = 30.0,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="BERTFUSE_API_KEY", help="A key that requests must bring as a bearer token. Repeatable."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may ask from browsers; *: any. Repeatable.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="Speak HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The certificate's private key.")] = None,
    log_level: Annotated[
        str, typer.Option(metavar="error|warning|info|debug", help="info: a line for each request.")
    ] = "warning",
    log_format: Annotated[str, typer.Option(metavar="text|json", help="How logs are written.")] = "text",
    tracing: Annotated[
        bool, typer.Option("--tracing", help="Send OpenTelemetry spans to OTEL_EXPORTER_OTLP_ENDPOINT.")
    ] = False,
    deterministic_rows: Annotated[
        bool,
        typer.Option(
            "--deterministic-rows", help="On a GPU: a text has the same bits in any batch, more slowly (docs/gpu.md)."
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run by Ray Serve on this cluster; auto: the one that this machine is in; local: start one here.",
        ),
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="With --ray: add engines up to this many under load.")
    ] = None,
    target_requests: Annotated[
        int, typer.Option(min=1, help="With --max-replicas: requests to aim at for each engine.")
    ] = 64,
    provider: Provider = "cpu",
    library: Library = "auto",
) -> None:
    """Serve models over HTTP: OpenAI's /v1/embeddings, Cohere's /v1/rerank, text-embeddings-inference's routes.

    /docs lists all of them. It runs until interrupted. Needs pip install 'bertfuse\\[serve]'.

    [bold]Examples[/]

      bertfuse serve minilm --port 8000

      bertfuse serve minilm reranker --provider cuda --host 0.0.0.0 --auto-truncate

      bertfuse serve en=minilm --api-key secret --tls-certificate cert.pem --tls-key key.pem
    """
    from bertfuse.errors import BertfuseError
    from bertfuse.serving.options import check_installed, check_tls, devices_of, named_models, warm_sizes

    for option, value in (("--timeout", timeout), ("--drain", drain)):
        if not (math.isfinite(value) and value > 0):
            raise BertfuseError(f"{option} {value}: give seconds, more than 0")
    if grpc_port is not None and (ray is not None or grpc_port == port):
        raise BertfuseError(f"--grpc-port {grpc_port}: " + ("--ray has none" if ray else "is --port's number, too"))
    if memory is not None and ray is not None:
        raise BertfuseError("--memory: with --ray the cluster limits its processes")
    check_installed(ray is not None, grpc_port is not None)
    from bertfuse.serving.checks import Limits
    from bertfuse.serving.logs import FORMATS, LEVELS
    from bertfuse.serving.supervisor import Server, serve
    from bertfuse.serving.tracing import check_tracing

    for option, text, known in (("--log-level", log_level, LEVELS), ("--log-format", log_format, FORMATS)):
        if text not in known:
            raise BertfuseError(f"{option} {text}: choose from {', '.join(known)}")
    check_tls(tls_certificate, tls_key)
    if tracing:
        check_tracing()
    if max_replicas is not None and (ray is None or max_replicas < (replicas or 1)):
        why = "goes with --ray" if ray is None else f"is less than --replicas {replicas}"
        raise BertfuseError(f"--max-replicas {max_replicas} {why}")
    options = named_models(
        models,
        name,
        kind=task,
        library=library,
        max_length=max_length,
        max_batch_tokens=max_batch_tokens,
        deterministic_rows=deterministic_rows,
        on_gpu=provider == "cuda",
        here=ray is None,
    )
    limits = Limits(max_texts, max_body, auto_truncate, timeout, max_queued, max_connections, max_pixels)
    cores = len(os.sched_getaffinity(0))
    fronts = http_processes or (max(1, cores // 2) if provider == "cuda" else 1)
    console = stderr()

    def say(text: str) -> None:
        console.print(text, markup=False)

    server = Server(
        host,
        port,
        grpc_port=grpc_port,
        devices=devices_of(provider, replicas) if ray is None else (provider,),
        fronts=fronts,
        threads=threads,
        memory=None if gpu_memory is None else gpu_memory << 20,
        warm=warm_sizes(warm, provider),
        resident=None if memory is None else memory << 20,
        drain=drain,
        keys=tuple(api_key or ()),
        origins=tuple(cors_origin or ()),
        certificate=None if tls_certificate is None else str(tls_certificate),
        key=None if tls_key is None else str(tls_key),
        log_level=log_level,
        log_format=log_format,
        tracing=tracing,
        limits=limits,
    )
    if ray is None:
        serve(options, server, say)
        return
    from bertfuse.serving.on_ray import Scale, serve_on_ray

    serve_on_ray(options, server, Scale(replicas, max_replicas, target_requests, http_processes), ray, say)


def add_to(app: typer.Typer) -> None:
    app.command()(command(serve))
