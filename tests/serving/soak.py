"""Hours of mixed load on a running `bertfuse serve`, with the memory of its processes every minute.

    python -m tests.serving.soak http://127.0.0.1:8000 PID --minutes 60 --rate 20

PID is the server's. At random: vectors of one text, of some, and of 500 whose answer leaves in parts; of tokens, where
the model has them; cosines; bodies that are refused; clients that go away before their answer, send half a request, or
read nothing. Exit code 1 where an answer has another status than it should, or a process has grown by more than
--growth MiB since a tenth of the time had passed. Needs a model of embeddings, and httptools, NumPy, orjson and psutil.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
import orjson

from tests.serving.hostile import memory
from tests.serving.load_test import Connection, sentences

TEXTS = sentences(2000, 0)
STOP = 0.05  # seconds until a client that goes away does


@dataclass
class Soak:
    """What is asked of one server, and what came of it."""

    address: tuple[str, int]
    source: random.Random
    tokens: bool = True  # whether the model gives a vector of each token
    answers: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    def request(self, path: str, body: bytes, length: int | None = None) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body

    def mixed(self) -> tuple[str, bytes, int]:
        """A request of some kind: kind, bytes, and the status that the answer must have; 0: none is waited for."""
        source = self.source
        texts = source.sample(TEXTS, source.choice((1, 1, 1, 1, 2, 4, 16)))
        encoded = {"input": texts, "encoding_format": "base64"}
        kinds: dict[str, tuple[float, str, object, int]] = {
            "vectors": (60, "/v1/embeddings", encoded, 200),
            "floats": (10, "/embed", {"inputs": texts}, 200),
            "tokens": (5, "/embed_all", {"inputs": texts}, 200),
            "cosines": (5, "/similarity", {"inputs": {"source_sentence": "a", "sentences": texts}}, 200),
            "pieces": (5, "/tokenize", {"inputs": texts}, 200),
            "many": (0.1, "/v1/embeddings", {"input": source.sample(TEXTS, 500)}, 200),
            "empty": (2, "/embed", {"inputs": []}, 400),
            "not JSON": (2, "/embed", b"{" * source.randint(1, 100_000), 400),
            "not UTF-8": (2, "/embed", b'{"inputs": "\xff"}', 400),
            "NaN": (2, "/embed", b'{"inputs": NaN}', 400),
            "large": (1, "/embed", {"inputs": "a" * 9_000_000}, 413),
            "nowhere": (2, f"/{source.getrandbits(64):x}", {}, 404),
            "goes away": (3, "/v1/embeddings", encoded, 0),
            "reads nothing": (0.5, "/v1/embeddings", {"input": texts * 4}, 0),
        }
        if not self.tokens:
            del kinds["tokens"]
        (kind,) = source.choices(list(kinds), [weight for weight, *_ in kinds.values()])
        _, path, body, status = kinds[kind]
        sent = self.request(path, body if isinstance(body, bytes) else orjson.dumps(body))
        if status == 0 and source.random() < 0.3:
            sent = sent[: source.randrange(1, len(sent))]
        return kind, sent, status

    async def largest(self) -> None:
        """Asks for the most that `mixed` does, several at once: what an arena grows to for it is no leak."""
        texts = sorted(TEXTS, key=len)[-500:]
        asked = [self.request("/v1/embeddings", orjson.dumps({"input": texts[at:]})) for at in (0, 0, 250, 484) * 2]
        every_token = self.request("/embed_all", orjson.dumps({"inputs": texts[-16:]}))
        self.tokens = await self.once(every_token) != 404
        asked += [every_token] * (4 if self.tokens else 0)
        for status in await asyncio.gather(*map(self.once, asked)):
            if status != 200:
                self.wrong[f"largest: {status}"] += 1

    async def once(self, sent: bytes) -> int:
        """The status of one request on a connection of its own."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, *self.address)
        status, _, _ = await asyncio.wait_for(connection.ask(sent), 120)
        connection.transport.close()
        return status

    async def client(self, pause: float, end: float) -> None:
        """One request after the other, `pause` seconds between them on average."""
        connection: Connection | None = None
        loop = asyncio.get_running_loop()
        while time.monotonic() < end:
            await asyncio.sleep(self.source.expovariate(1 / pause))
            kind, sent, status = self.mixed()
            if connection is None or connection.transport is None or self.source.random() < 0.05:
                if connection is not None and connection.transport is not None:
                    connection.transport.close()
                _, connection = await loop.create_connection(Connection, *self.address)
            if not status:
                connection.transport.write(sent)
                if kind == "reads nothing":
                    connection.transport.pause_reading()
                await asyncio.sleep(STOP)
                connection.transport.abort()
                connection = None
                self.answers[kind] += 1
                continue
            try:
                found, _, body = await asyncio.wait_for(connection.ask(sent), 120)
                orjson.loads(body)
            except (OSError, asyncio.TimeoutError) as error:
                found, connection = -1, None
                self.wrong[f"{kind}: {type(error).__name__}"] += 1
            else:
                self.answers[kind] += 1
                if found != status:
                    self.wrong[f"{kind}: {found}"] += 1


async def watch(server: int, soak: Soak, minutes: float, step: float) -> list[dict[str, float]]:
    found = []
    begin = time.monotonic()
    while time.monotonic() < begin + 60 * minutes:
        found.append(memory(server))
        told = ", ".join(f"{name} {size:.1f}" for name, size in found[-1].items())
        print(f"{(time.monotonic() - begin) / 60:6.1f} min, {soak.answers.total()} requests: {told}", flush=True)
        await asyncio.sleep(step)
    found.append(memory(server))
    return found


async def run(arguments: argparse.Namespace) -> int:
    url = urlsplit(arguments.url)
    soak = Soak((url.hostname or "127.0.0.1", url.port or 80), random.Random(arguments.seed))
    await soak.largest()
    end = time.monotonic() + 60 * arguments.minutes
    pause = arguments.clients / arguments.rate
    step = min(60.0, 6 * arguments.minutes)
    *_, sizes = await asyncio.gather(
        *(soak.client(pause, end) for _ in range(arguments.clients)),
        watch(arguments.server, soak, arguments.minutes, step),
    )
    print(f"{soak.answers.total()} requests: {dict(soak.answers)}; wrong: {dict(soak.wrong)}")
    settled = sizes[max(1, len(sizes) // 10)]
    if set(sizes[-1]) != set(settled):
        print("a process has ended, and another was started in its place")
        return 1
    grown = {name: sizes[-1][name] - size for name, size in settled.items()}
    slopes = {name: np.polyfit(range(len(sizes)), [size[name] for size in sizes], 1)[0] * 60 / step for name in settled}
    print(", ".join(f"{name}: {size:+.1f} MiB, {slopes[name]:+.2f} a minute" for name, size in grown.items()))
    return int(bool(soak.wrong) or max(grown.values()) > arguments.growth)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server")
    parser.add_argument("server", type=int, metavar="PID", help="of the server")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--growth", type=float, default=20.0, metavar="MIB", help="that is too much")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    return asyncio.run(run(arguments))


if __name__ == "__main__":
    sys.exit(main())
