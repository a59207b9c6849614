"""`bertfuse serve` in a process of its own, for the tests that send it requests."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

START = 90.0  # seconds until a server must be up


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def served(model: Path | str, *options: object, folder: Path | None = None) -> Iterator[Server]:
    """A server that answers, started in `folder`, stopped in the end."""
    port = free_port()
    command = [sys.executable, "-m", "bertfuse.cli", "serve", model, *options, "--port", port]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True, cwd=folder)
    server = Server(f"http://127.0.0.1:{port}", process)
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
        assert up.wait(START) and process.poll() is None, "".join(server.said)
        yield server
    finally:
        if process.poll() is None:
            server.stop()
        reader.join(5)
