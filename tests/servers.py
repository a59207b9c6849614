"""`bertfuse serve` in a process of its own, for the tests that send it requests."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

START = 300.0  # seconds until a server must be up, on a machine with other work
PORTS = range(10_000, 32_768)  # below those that Linux gives to outgoing connections


def eventually(holds: Callable[[], bool], within: float = 120.0) -> bool:
    """Whether it holds, if not at once: what is counted and logged of a request comes behind its answer."""
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    grpc: str = ""  # address, where it was asked for
    said: list[str] = field(default_factory=list)

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def free_port() -> int:
    """One that nobody listens on now. A connection of another process cannot take it until it is used."""
    while True:
        with contextlib.suppress(OSError):
            port = random.SystemRandom().choice(PORTS)
            with socket.create_server(("127.0.0.1", port)):
                return port


@contextlib.contextmanager
def served(model: Path | str, *options: object, folder: Path | None = None, grpc: bool = False) -> Iterator[Server]:
    """A server that answers, started in `folder`, stopped in the end; with a port for gRPC, too, where it is asked."""
    for _ in range(3):
        with _started(model, *options, folder=folder, grpc=grpc) as server:
            if server.process.poll() is None:
                yield server
                return
            # Another test was given the same port.
            assert any("cannot be listened on" in line for line in server.said), "".join(server.said)
    raise AssertionError("".join(server.said))


@contextlib.contextmanager
def _started(model: Path | str, *options: object, folder: Path | None, grpc: bool) -> Iterator[Server]:
    """The server when it answers or has ended."""
    port = free_port()
    command = [sys.executable, "-m", "bertfuse.cli", "serve", model, *options, "--port", port]
    beside = next(other for other in iter(free_port, None) if other != port)
    command += ["--grpc-port", beside] if grpc else []
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True, cwd=folder)
    server = Server(f"http://127.0.0.1:{port}", process, f"127.0.0.1:{beside}" if grpc else "")
    up = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            server.said.append(line)
            if line.startswith("Serving"):
                up.set()
        up.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert up.wait(START), "".join(server.said)
        if not any(line.startswith("Serving") for line in server.said):
            process.wait(60)
            reader.join(60)
        yield server
    finally:
        try:
            if process.poll() is None:
                server.stop()
        finally:
            if process.poll() is None:
                process.kill()
        reader.join(5)
