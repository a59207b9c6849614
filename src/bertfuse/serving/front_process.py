"""A process that speaks HTTP: uvicorn over a socket that the supervisor keeps. Started by `supervisor.py`."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
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
BACKLOG = 4096  # connections that wait to be accepted
FILES = 256  # that this process has open beside its connections


async def _serve(settings: dict[str, Any]) -> None:
    most = _raise_file_limit()
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

    def end() -> None:
        if settings["tracing"]:
            from .tracing import flush

            flush()
        os._exit(0)

    loop = asyncio.get_running_loop()
    # Held by this name: the loop keeps no task alive by itself.
    following = loop.create_task(commands(do, end))
    models = settings["models"] or (await started.get())["models"]
    limits = Limits(**settings["limits"])
    try:
        front = Front([Served.of_dict(model) for model in models], limits, engines, metrics)
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
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            limit_concurrency=min(limits.max_connections, most),
            backlog=BACKLOG,
            ssl_certfile=settings["certificate"],
            ssl_keyfile=settings["key"],
        )
        config.load()
    except (BertfuseError, OSError) as error:  # OSError: of the certificate
        say("failed", message=str(error))
        return
    server = _Server(config)
    if front.pictures is not None:
        await front.pictures.start()
    await engines.wait_ready(limits.timeout)
    rpc: Any = None
    if settings["grpc"] is not None:
        from .rpc.server import listen

        try:
            rpc = await listen(front, settings["grpc"], settings["keys"], settings["certificate"], settings["key"])
        except OSError as error:
            say("failed", message=str(error))
            return
    listener = socket.socket(fileno=settings["listener"])
    listener.listen(BACKLOG)  # here: uvicorn does so when it has been said that the server is ready
    say("ready")
    await server.serve(sockets=[listener])
    if rpc is not None:
        await rpc.stop(0.5)
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


def _raise_file_limit() -> int:
    """How many connections there may be. Each is a file, of which 1,024 are the usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return sys.maxsize if most == resource.RLIM_INFINITY else max(most // 2, most - FILES)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # invalid requests and slow readers are no news
    run(_serve(configuration()))
