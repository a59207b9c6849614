"""A process that speaks HTTP: uvicorn over a socket that the supervisor keeps. Started by `supervisor.py`."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from typing import Any

import uvicorn

from bertfuse.errors import BertfuseError

from .app import Access, application
from .checks import Limits
from .child import commands, configuration, run, say
from .engines import Engines
from .front import Front
from .logs import set_up
from .metrics import Metrics
from .protocol import Protocol
from .served import Served

KEEP_ALIVE = 75  # seconds; longer than the 60 of usual load balancers, which would find closed connections otherwise


async def _serve(settings: dict[str, Any]) -> None:
    _raise_file_limit()
    set_up(settings["log_level"], settings["log_format"])
    metrics = Metrics()
    engines = Engines(settings["sockets"], metrics.retries.inc)
    started: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    front: Front | None = None
    drained: set[asyncio.Task[None]] = set()
    server: uvicorn.Server | None = None

    def do(command: dict[str, Any]) -> None:
        if "models" in command:
            started.put_nowait(command)
        elif "drain" in command and front is not None and server is not None:
            drained.add(asyncio.create_task(_drain(front, server, command["drain"])))

    loop = asyncio.get_running_loop()
    # Held by this name: the loop keeps no task alive by itself.
    following = loop.create_task(commands(do, lambda: os._exit(0)))
    models = settings["models"] or (await started.get())["models"]
    limits = Limits(**settings["limits"])
    try:
        front = Front([Served.of_dict(model) for model in models], limits, engines, metrics)
    except BertfuseError as error:
        say("failed", message=str(error))
        return
    front.tokenizers = settings["fronts"]
    app = application(front, Access(tuple(settings["keys"]), tuple(settings["origins"])))
    if settings["tracing"]:
        from .tracing import traced

        app = traced(app)
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        limit_concurrency=limits.max_connections,
        backlog=4096,
        ssl_certfile=settings["certificate"],
        ssl_keyfile=settings["key"],
    )
    server = _Server(config)
    await engines.wait_ready(limits.timeout)
    say("ready")
    await server.serve(sockets=[socket.socket(fileno=settings["listener"])])
    following.cancel()


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals to the supervisor."""

    def capture_signals(self) -> Any:
        import contextlib

        return contextlib.nullcontext()


async def _drain(front: Front, server: uvicorn.Server, seconds: float) -> None:
    """New requests get 503; those in work are answered, for at most `seconds`."""
    front.draining = True
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while front.ongoing and loop.time() < end:
        await asyncio.sleep(0.02)
    say("drained", left=front.ongoing)
    server.should_exit = True
    server.force_exit = True


def _raise_file_limit() -> None:
    """Each connection is a file, and 1,024 are the usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # invalid requests and slow readers are no news
    run(_serve(configuration()))
