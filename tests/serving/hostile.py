"""Clients that mean a running `bertfuse serve` no good, and what its memory is after each kind of them.

    python -m tests.serving.hostile http://127.0.0.1:8000 PID --connections 10000

PID is the server's. Connections opened and left, some with half a request; answers that nobody reads; bodies of 100 MB,
whole and in chunks; deep JSON, invalid UTF-8, NaN. Between them a client that means well must get its answers. Exit
code 1 where it does not, where something is taken that should be refused, or where a process has grown by more than
--growth MiB. Needs a model of embeddings, orjson and psutil, and files enough (ulimit -n) for the connections.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import orjson
import psutil

Address = tuple[str, int]
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


def memory(server: int) -> dict[str, float]:
    """MiB of each process."""
    root, made = psutil.Process(server), {}
    for process in [root, *root.children(recursive=True)]:
        words = [word.rpartition(".")[2] for word in process.cmdline() if word.startswith("bertfuse.serving.")]
        made[f"{words[0] if words else 'supervisor'} {process.pid}"] = process.memory_info().rss / 2**20
    return made


def ask(address: Address, body: bytes, timeout: float = 60.0) -> int:
    """The status of one request on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("POST", "/v1/embeddings", body)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def well_meant(address: Address, within: float = 60.0) -> None:
    """One request, which must be answered."""
    status = ask(address, orjson.dumps({"input": "a river"}), within)
    assert status == 200, f"a client that means well gets {status}"


@contextlib.contextmanager
def left_open(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Connections of which every second has sent half a request, and every fourth had an answer before."""
    made: list[socket.socket] = []
    whole = HEAD + b'content-length: 13\r\n\r\n{"input":"a"}'
    try:
        for index in range(count):
            made.append(socket.create_connection(address, timeout=20))
            if index % 4 == 0:
                with contextlib.suppress(OSError):
                    made[-1].sendall(whole)
                    made[-1].recv(1 << 16)
            if index % 2 == 0:
                with contextlib.suppress(OSError):
                    made[-1].sendall(HEAD + b'content-length: 90\r\n\r\n{"input":')
        yield made
    finally:
        for one in made:
            one.close()


def unread(address: Address, count: int, texts: int, seconds: float) -> list[socket.socket]:
    """Connections that asked for a long answer and have read nothing of it for so many seconds."""
    body = orjson.dumps({"input": ["a river"] * texts})
    made = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(20)
        one.connect(address)
        one.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        made.append(one)
    time.sleep(seconds)
    return made


def closed(connections: list[socket.socket], within: float) -> int:
    """How many of them the server has ended after so many seconds, whatever it sent before."""
    ended, end = 0, time.monotonic() + within
    with selectors.DefaultSelector() as selector:
        for one in connections:
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ)
        while ended < len(connections) and time.monotonic() < end:
            for key, _ in selector.select(0.5):
                try:
                    over = not key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                except OSError as error:
                    over = not isinstance(error, BlockingIOError)
                if over:
                    selector.unregister(key.fileobj)
                    ended += 1
    return ended


def large(address: Address, size: int, chunked: bool) -> bytes:
    """The answer's status line to a body of so many bytes, as far as it is taken."""
    part = b"a" * (1 << 20)
    with socket.create_connection(address, timeout=60) as one:
        one.sendall(HEAD + (b"transfer-encoding: chunked\r\n\r\n" if chunked else b"content-length: %d\r\n\r\n" % size))
        try:
            for _ in range(size >> 20):
                one.sendall(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        except OSError:  # the server has heard enough
            pass
        return one.recv(1 << 16).partition(b"\r\n")[0]


BAD = {
    "deep JSON": b'{"input":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "invalid UTF-8": b'{"input": "' + b"\xff" * 1_000_000 + b'"}',
    "NaN": b'{"input": [' + b"NaN," * 1_000_000 + b"1]}",
    "many empty texts": b'{"input": [' + b'"",' * 1_000_000 + b'""]}',
    "half of a surrogate pair": b'{"input": "' + b"\\ud800" * 100_000 + b'"}',
}


def bad(address: Address, times: int) -> None:
    for _ in range(times):
        for name, body in BAD.items():
            status = ask(address, body)
            assert status in (400, 413), f"{name}: {status}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server")
    parser.add_argument("server", type=int, metavar="PID", help="of the server")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--growth", type=float, default=100.0, metavar="MIB", help="that is too much")
    parser.add_argument("--quick", action="store_true", help="fewer of each, and no minute to see connections closed")
    arguments = parser.parse_args()
    few = arguments.quick
    url = urlsplit(arguments.url)
    address = (url.hostname or "127.0.0.1", url.port or 80)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    well_meant(address)
    before = memory(arguments.server)

    def tell(what: str) -> None:
        well_meant(address)
        now = memory(arguments.server)
        print(what + ": " + ", ".join(f"{name} {size:.0f} MiB" for name, size in now.items()), flush=True)

    def connections() -> None:
        with left_open(address, arguments.connections) as made:
            tell(f"{len(made)} connections are open")
            if not few:
                print(f"of them the server has closed {closed(made, 65)} a minute later")

    def slow() -> None:
        with contextlib.ExitStack() as stack:
            made = unread(address, 4 if few else 50, 2000, 1 if few else 10)
            for one in made:
                stack.enter_context(one)
            tell(f"{len(made)} answers of 2,000 vectors are not read")

    steps: dict[str, Callable[[], object]] = {
        "bad bodies": lambda: bad(address, 3 if few else 20),
        "bodies of 100 MB": lambda: [
            _refused(large(address, 100 << 20, way)) for way in (False, True) * (1 if few else 5)
        ],
        "connections left open": connections,
        "answers not read": slow,
    }
    tell("before")
    for name, step in steps.items():
        step()
        tell(name)
    grown = {name: size - before.get(name, size) for name, size in memory(arguments.server).items()}
    print(", ".join(f"{name} {size:+.0f} MiB" for name, size in grown.items()))
    return int(max(grown.values()) > arguments.growth or set(grown) != set(before))


def _refused(line: bytes) -> None:
    assert line.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400")), line


if __name__ == "__main__":
    sys.exit(main())
