"""How many requests a server answers, how fast, and whether any is lost when one of its processes is killed.

    python tests/serving/load_test.py http://127.0.0.1:8000 --clients 1,4,16,64 --seconds 10
    python tests/serving/load_test.py http://127.0.0.1:8000 --clients 16 --kill PID     # of `bertfuse serve`

Every client sends one request after the other, on a connection of its own: to /v1/embeddings, or with --rerank to
/rerank. What is answered by 429 or a 5xx, or not at all because the connection broke, is sent again, as openai's
client does, after the seconds that Retry-After names. Vectors and scores are compared with those that the same texts
got before the load. Exit code 1 where a request was lost or an answer is another. --path is for servers that have the
routes elsewhere; /v2/models/NAME/infer asks Triton, of what `bertfuse triton` wrote. Needs httptools, orjson, psutil
and NumPy.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import numpy as np
import orjson
import psutil

WORDS = "a river of many blue stones runs by the old house where nobody lived since the winter".split()  # noqa: SIM905
ATTEMPTS = 60
ANSWER = 120.0  # seconds that a client waits
# What a process of `bertfuse serve` has in its command line; with --ray, in its title.
PROCESSES = {
    "engine": ("bertfuse.serving.engine_process", "ServeReplica:bertfuse:engine"),
    "front": ("bertfuse.serving.front_process", "ServeReplica:bertfuse:front"),
}


@dataclass
class Load:
    """What came of one number of clients."""

    clients: int
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # seconds, retries included
    texts: int = 0
    retried: Counter[str] = field(default_factory=Counter)  # by status, or "connection"
    lost: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    killed: int = 0

    def add(self, part: Load) -> None:
        self.latencies += part.latencies
        self.texts += part.texts
        self.retried += part.retried
        self.lost += part.lost
        self.wrong += part.wrong

    def to_dict(self) -> dict[str, Any]:
        p50, p99 = np.percentile(self.latencies, [50, 99]) * 1e3 if self.latencies else (0.0, 0.0)
        return {
            "clients": self.clients,
            "requests": len(self.latencies),
            "requests_per_second": round(len(self.latencies) / self.seconds, 1),
            "texts_per_second": round(self.texts / self.seconds, 1),
            "p50_ms": round(float(p50), 2),
            "p99_ms": round(float(p99), 2),
            "retried": dict(self.retried),
            "lost": dict(self.lost),
            "wrong": self.wrong,
            "killed": self.killed,
        }


def sentences(count: int, seed: int, words: int = 12, equal: bool = False) -> list[str]:
    """Of `words` on average, most of them shorter, none of more than about three times as many; or all `equal`."""
    source = random.Random(seed)
    if equal:
        return [" ".join(source.choices(WORDS, k=words)) for _ in range(count)]
    most = 3 * words + 4
    return [
        " ".join(source.choices(WORDS, k=min(most, 3 + int(source.expovariate(1 / max(1, words - 3))))))
        for _ in range(count)
    ]


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection: a request, its answer, and so on. Its own, because a client on the server's machine
    takes cores from it: aiohttp's takes four times as long."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[tuple[int, dict[bytes, bytes], bytes]] | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError())

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((self._parser.get_status_code(), self._headers, b"".join(self._parts)))
        if not self._parser.should_keep_alive() and self.transport is not None:
            self.transport.close()

    async def ask(self, request: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        late = loop.call_later(ANSWER, self.transport.abort)  # by wait_for a request takes 30 us longer
        self.transport.write(request)
        try:
            return await self._waiting
        finally:
            late.cancel()


class Client:
    """Asks until it is answered."""

    def __init__(self, target: Target, load: Load) -> None:
        self._target, self._load = target, load
        self._connection: Connection | None = None

    async def ask(self, body: bytes) -> Any:
        """The answer's JSON, or None where no attempt was answered."""
        request, why = self._target.head % len(body) + body, ""
        for _ in range(ATTEMPTS):
            pause = 0.2
            try:
                if self._connection is None or self._connection.transport is None:
                    loop = asyncio.get_running_loop()
                    _, self._connection = await loop.create_connection(Connection, *self._target.address)
                status, headers, found = await self._connection.ask(request)
                if status == 200:
                    return orjson.loads(found)
                why = str(status)
                if status != 429 and status < 500:
                    break
                pause = float(headers.get(b"retry-after", pause))
            except (OSError, httptools.HttpParserError):
                self.close()
                why = "connection"
            self._load.retried[why] += 1
            await asyncio.sleep(pause)
        self._load.lost[why] += 1
        return None

    def close(self) -> None:
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()
        self._connection = None


@dataclass(frozen=True)
class Target:
    """Where requests go, and what they hold: vectors of texts, or scores of texts for a query."""

    address: tuple[str, int]
    path: str
    model: str
    rerank: bool
    plain: bool  # numbers as JSON has them instead of base64
    query: str = "where does the river run"

    @property
    def head(self) -> bytes:
        host = f"{self.address[0]}:{self.address[1]}"
        return (
            f"POST {self.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        ).encode()

    @property
    def triton(self) -> bool:
        return self.path.startswith("/v2/models/")

    def body(self, texts: list[str]) -> bytes:
        if self.triton:
            given = {"text": texts} | ({"query": [self.query] * len(texts)} if self.rerank else {})
            inputs = [
                {"name": name, "shape": [len(texts), 1], "datatype": "BYTES", "data": data}
                for name, data in given.items()
            ]
            return orjson.dumps({"inputs": inputs})
        if self.rerank and self.path.endswith("/rerank") and not self.path.startswith("/v"):
            return orjson.dumps({"query": self.query, "texts": texts, "documents": texts, "model": self.model})
        if self.rerank:
            return orjson.dumps({"query": self.query, "documents": texts, "model": self.model})
        form = {} if self.plain else {"encoding_format": "base64"}
        return orjson.dumps({"model": self.model, "input": texts, **form})

    def read(self, found: Any) -> np.ndarray:
        """float32 [texts, size] of an answer's JSON."""
        if self.triton:
            (output,) = found["outputs"]
            return np.array(output["data"], np.float32).reshape(output["shape"])
        if self.rerank:
            rows = found["results"] if isinstance(found, dict) else found
            scores = {row["index"]: row.get("score", row.get("relevance_score")) for row in rows}
            return np.array([[scores[index]] for index in range(len(rows))], np.float32)
        rows = [row["embedding"] for row in found["data"]]
        if isinstance(rows[0], str):
            return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])
        return np.array(rows, np.float32)


async def client(
    target: Target, texts: list[str], want: np.ndarray, sizes: tuple[int, int], end: float, load: Load
) -> None:
    source, me = random.Random(), Client(target, load)
    while time.monotonic() < end:
        rows = source.sample(range(len(texts)), source.randint(*sizes))
        body = target.body([texts[row] for row in rows])
        start = time.monotonic()
        found = await me.ask(body)
        if found is None:
            continue
        load.latencies.append(time.monotonic() - start)
        load.texts += len(rows)
        vectors = target.read(found)
        if vectors.shape != (len(rows), want.shape[1]) or ((vectors - want[rows]) ** 2).sum(axis=1).max() > 1e-5:
            load.wrong += 1
    me.close()


def kill(server: int, kind: str) -> int:
    """Kills one process of the server; how many."""
    found = [
        process
        for process in psutil.Process(server).children(recursive=True)
        if any(name in " ".join(process.cmdline() or [process.name()]) for name in PROCESSES[kind])
    ]
    if found:
        random.choice(found).send_signal(signal.SIGKILL)
    return len(found[:1])


async def calm(target: Target, texts: list[str]) -> np.ndarray:
    """float32 [texts, size]: one request after the other."""
    me = Client(target, Load(1))
    found = [await me.ask(target.body(texts[start : start + 16])) for start in range(0, len(texts), 16)]
    me.close()
    if any(part is None for part in found):
        sys.exit(f"{target.address[0]}:{target.address[1]} does not answer {target.path}")
    return np.concatenate([target.read(part) for part in found])


async def clients_of_a_process(
    clients: int, target: Target, texts: list[str], want: np.ndarray, sizes: tuple[int, int], end: float
) -> Load:
    load = Load(clients)
    await asyncio.gather(*(client(target, texts, want, sizes, end, load) for _ in range(clients)))
    return load


def in_process(*work: Any) -> Load:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(clients_of_a_process(*work))
    return uvloop.run(clients_of_a_process(*work))


def run(arguments: argparse.Namespace) -> list[Load]:
    url = urlsplit(arguments.url)
    path = arguments.path or ("/rerank" if arguments.rerank else "/v1/embeddings")
    address = (url.hostname or "127.0.0.1", url.port or 80)
    target = Target(address, path, arguments.model, arguments.rerank, arguments.plain)
    texts = sentences(arguments.texts, arguments.seed, arguments.words, arguments.equal)
    want = asyncio.run(calm(target, texts))
    sizes = (arguments.least, max(arguments.least, arguments.most))
    loads = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        list(pool.map(time.sleep, [0.2] * arguments.processes))  # all of them are there before the first is timed
        for clients in arguments.clients:
            shares = [clients // arguments.processes + (n < clients % arguments.processes) for n in range(clients)]
            start = time.monotonic()
            end = start + arguments.seconds
            works = [
                pool.submit(in_process, n, target, texts, want, sizes, end) for n in shares[: arguments.processes] if n
            ]
            load = Load(clients)
            if arguments.kill is not None:
                time.sleep(arguments.seconds / 3)
                load.killed = kill(arguments.kill, arguments.process)
            for work in works:
                load.add(work.result())
            load.seconds = time.monotonic() - start
            loads.append(load)
            if not arguments.json:
                print_load(load)
    return loads


def print_load(load: Load) -> None:
    found = load.to_dict()
    told = ", ".join(f"{name} {found[name]}" for name in ("retried", "lost", "wrong", "killed") if found[name])
    print(
        f"{load.clients:4} clients: {found['requests_per_second']:8.1f} requests/s, {found['texts_per_second']:8.1f} "
        f"texts/s, p50 {found['p50_ms']:8.2f} ms, p99 {found['p99_ms']:8.2f} ms{'; ' if told else ''}{told}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server, without /v1")
    parser.add_argument(
        "--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4, 16, 64], metavar="1,4,16"
    )
    parser.add_argument("--processes", type=int, default=1, help="that the clients are spread over")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number of clients")
    parser.add_argument("--least", type=int, default=1, help="texts of a request at least")
    parser.add_argument("--most", type=int, default=4, help="texts of a request at most")
    parser.add_argument("--texts", type=int, default=256, help="different texts")
    parser.add_argument("--words", type=int, default=12, help="of a text on average")
    parser.add_argument("--equal", action="store_true", help="all texts of just --words words")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    parser.add_argument("--rerank", action="store_true", help="scores instead of vectors")
    parser.add_argument("--plain", action="store_true", help="vectors as lists of numbers instead of base64")
    parser.add_argument("--path", help="of the route, where it is not /v1/embeddings or /rerank")
    parser.add_argument("--model", default="m", help="the model's name in requests")
    parser.add_argument("--kill", type=int, metavar="PID", help="kill a process of this server in each load")
    parser.add_argument("--process", default="engine", choices=list(PROCESSES), help="which is killed")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    loads = run(arguments)
    if arguments.json:
        print(json.dumps([load.to_dict() for load in loads], indent=2))
    return int(any(load.lost or load.wrong for load in loads))


if __name__ == "__main__":
    sys.exit(main())
