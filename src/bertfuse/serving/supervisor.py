"""One machine's server: an engine process for each GPU or for the CPU, processes that speak HTTP, and their restarts.

This process computes nothing, and imports nothing large. It keeps the listening sockets, one for each front
(SO_REUSEPORT: the kernel spreads connections over them), so that connections to a front that dies wait for the next
one instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bertfuse.errors import BertfuseError

from .checks import Limits
from .heads import Shared, share
from .served import ModelOptions, Served

# What an answer to a client that does not read it may take before the kernel gives the connection up.
UNREAD_MS = 60_000
BACKOFF = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before a child is started again, by its quick deaths in a row
QUICK = 10.0  # seconds: a child that lived longer starts the count anew
END = 5.0  # seconds that a child has to end by itself


@dataclass(frozen=True)
class Server:
    """How `bertfuse serve` runs on one machine.

    Args:
        grpc_port: of text-embeddings-inference's gRPC interface; None: there is none.
        devices: of each engine: "cpu", "cuda:0".
        fronts: processes that speak HTTP.
        threads: cores for each engine on a CPU; None: all.
        memory: bytes of a GPU that each model may take; None: all.
        warm: tokens of the batches that an engine runs before it is ready.
        resident: bytes that an engine's process may take; None: any.
        drain: seconds that requests in work may still take when the server is stopped.
    """

    host: str
    port: int
    grpc_port: int | None = None
    devices: tuple[str, ...] = ("cpu",)
    fronts: int = 1
    threads: int | None = None
    memory: int | None = None
    warm: tuple[int, ...] = (16,)
    resident: int | None = None
    drain: float = 30.0
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None
    log_level: str = "warning"
    log_format: str = "text"
    tracing: bool = False
    limits: Limits = field(default_factory=Limits)


def serve(models: Sequence[ModelOptions], server: Server, say: Callable[[str], None] = print) -> None:
    """Serves until SIGINT or SIGTERM, then answers what is in work, and returns.

    Raises BertfuseError where a model cannot be served, or the port is taken.
    """
    with contextlib.ExitStack() as stack:
        listeners = stack.enter_context(_listening(server))
        folder = Path(tempfile.mkdtemp(prefix="bertfuse-serve-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        shared = share(models, server.devices[0] != "cpu", folder)
        asyncio.run(_Supervisor(models, server, listeners, folder, say, shared).run())


class _Child:
    """A process that is started again whenever it ends, until `stop`."""

    def __init__(self, kind: str, settings: Callable[[], dict[str, Any]], pass_fds: Sequence[int] = ()) -> None:
        self._kind, self._settings, self._pass_fds = kind, settings, pass_fds
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.drained = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._task = asyncio.create_task(self._keep())

    def tell(self, **command: Any) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(orjson.dumps(command) + b"\n")

    async def stop(self) -> None:
        """Ends it: the end of its stdin is its sign, and after END seconds it is killed."""
        self._stopping = True
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), END)
            except (TimeoutError, asyncio.TimeoutError):
                self._process.kill()
        self._task.cancel()

    async def _keep(self) -> None:
        deaths = 0
        while not self._stopping:
            begun = time.monotonic()
            try:
                message = await self._run()
            except Exception as error:
                message = f"cannot be started: {error}"
            if self._stopping:
                break
            if not self.ready.done():
                self.ready.set_exception(BertfuseError(message))
                return
            print(f"bertfuse: the {self._kind} process {message}; starting it again", file=sys.stderr, flush=True)
            deaths = 0 if time.monotonic() - begun > QUICK else deaths + 1
            await asyncio.sleep(BACKOFF[min(deaths, len(BACKOFF) - 1)])

    async def _run(self) -> str:
        """Until the process has ended; what came of it, in words."""
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"bertfuse.serving.{self._kind}_process",
            stdin=pipe,
            stdout=pipe,
            pass_fds=self._pass_fds,
            start_new_session=True,  # Ctrl-C in a terminal is for the supervisor alone
            limit=1 << 24,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(orjson.dumps(self._settings()) + b"\n")
        failed = ""
        while line := await process.stdout.readline():
            with contextlib.suppress(orjson.JSONDecodeError):  # what a library prints is no event
                event = orjson.loads(line)
                if event["event"] == "ready" and not self.ready.done():
                    self.ready.set_result(event)
                elif event["event"] == "failed":
                    failed = event["message"]
                elif event["event"] == "drained":
                    self.drained.set()
        code = await process.wait()
        self.drained.set()
        return failed or (f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}")


class _Supervisor:
    def __init__(
        self,
        models: Sequence[ModelOptions],
        server: Server,
        listeners: Sequence[socket.socket],
        folder: Path,
        say: Callable[[str], None],
        shared: Sequence[Shared] = (),
    ) -> None:
        self._shared = [asdict(one) for one in shared]
        self._models, self._server, self._listeners, self._folder, self._say = models, server, listeners, folder, say
        self._served: list[dict[str, Any]] | None = None
        self._sockets = [str(folder / f"engine-{index}") for index in range(len(server.devices))]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        counts = self._folder / "metrics"
        counts.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(counts)
        engines = [_Child("engine", lambda i=index: self._engine(i)) for index in range(len(self._sockets))]
        fronts = [
            _Child("front", lambda s=listener: self._front(s), [listener.fileno()]) for listener in self._listeners
        ]
        waiting = asyncio.create_task(stop.wait())
        try:
            if not await self._started(engines, fronts, waiting):
                return
            scheme = "https" if self._server.certificate else "http"
            names = ", ".join(dict.fromkeys(model["name"] for model in self._served or ()))
            beside = f", gRPC at port {self._server.grpc_port}" if self._server.grpc_port else ""
            self._say(f"Serving {names} at {scheme}://{_address(self._server.host, self._server.port)}{beside}")
            for shared in self._shared:
                heads = " and ".join((self._served or ())[index]["name"] for index in shared["models"])
                self._say(f"{heads} have one backbone, which is computed once")
            await waiting
            self._say("Stopping: new requests are refused, those in work are answered")
            for front in fronts:
                front.tell(drain=self._server.drain)
            begun = time.monotonic()
            await asyncio.gather(*(self._drained(front) for front in fronts))
            if time.monotonic() - begun >= self._server.drain:
                self._say(f"Requests that took longer than {self._server.drain:g} seconds were given up")
        finally:
            waiting.cancel()
            await asyncio.gather(*(front.stop() for front in fronts))
            await asyncio.gather(*(engine.stop() for engine in engines))

    async def _started(self, engines: list[_Child], fronts: list[_Child], stopped: asyncio.Task[bool]) -> bool:
        """Whether all are ready; False where the server is stopped before. Raises BertfuseError."""
        ready = asyncio.gather(*(engine.ready for engine in engines))
        await asyncio.wait([ready, stopped, *(front.ready for front in fronts)], return_when="FIRST_COMPLETED")
        if stopped.done():
            ready.cancel()
            return False
        for front in fronts:
            if front.ready.done():
                front.ready.result()
        self._served = (await ready)[0]["models"]
        _check_names([Served.of_dict(model) for model in self._served or ()])
        for front in fronts:
            front.tell(models=self._served)
        every = asyncio.gather(*(front.ready for front in fronts))
        await asyncio.wait([every, stopped], return_when="FIRST_COMPLETED")
        if not every.done():
            every.cancel()
            return False
        await every
        return True

    async def _drained(self, front: _Child) -> None:
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(front.drained.wait(), self._server.drain + 2)

    def _engine(self, index: int) -> dict[str, Any]:
        server = self._server
        return {
            "models": [asdict(model) for model in self._models],
            "device": server.devices[index],
            "socket": self._sockets[index],
            "threads": server.threads,
            "memory": server.memory,
            "max_waiting": server.limits.max_queued,
            "warm": server.warm,
            "resident": server.resident,
            "shared": self._shared,
        }

    def _front(self, listener: socket.socket) -> dict[str, Any]:
        server = self._server
        return {
            "models": self._served,
            "sockets": self._sockets,
            "listener": listener.fileno(),
            "grpc": None if server.grpc_port is None else _address(server.host, server.grpc_port),
            "fronts": len(self._listeners),
            "limits": asdict(server.limits),
            "keys": server.keys,
            "origins": server.origins,
            "certificate": server.certificate,
            "key": server.key,
            "log_level": server.log_level,
            "log_format": server.log_format,
            "tracing": server.tracing,
        }


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_names(models: Sequence[Served]) -> None:
    names = [(model.name, model.modality) for model in models]
    for name in names:
        if names.count(name) > 1:
            raise BertfuseError(f"two models are named {name[0]}: give them other names with NAME=FOLDER")


@contextlib.contextmanager
def _listening(server: Server) -> Iterator[list[socket.socket]]:
    """A bound socket for each front. Raises BertfuseError where a port is taken, by another server of ours, too."""
    with contextlib.ExitStack() as stack:
        if server.grpc_port is not None:  # fronts bind it for themselves; this socket keeps it when none does
            stack.enter_context(_bound(server.host, server.grpc_port, 1, "--grpc-port"))
        yield stack.enter_context(_bound(server.host, server.port, server.fronts, "--port"))


@contextlib.contextmanager
def _bound(host: str, port: int, count: int, option: str) -> Iterator[list[socket.socket]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        with socket.socket(family) as probe:  # without SO_REUSEPORT, which would let two servers share a port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
        made = []
        for _ in range(count):
            made.append(socket.socket(family))
            for flag in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                made[-1].setsockopt(socket.SOL_SOCKET, flag, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                made[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            made[-1].bind(address)
    except (OSError, OverflowError) as error:
        why = f"{host}:{port} cannot be listened on: {error}; give another {option}"
        raise BertfuseError(why) from error
    try:
        yield made
    finally:
        for one in made:
            one.close()
