"""How many requests `bertfuse serve` answers, how fast, and whether any is lost when a replica is killed.

    python tests/serving/load_test.py http://127.0.0.1:8000 --clients 1,4,16,64 --seconds 10
    python tests/serving/load_test.py http://127.0.0.1:8000 --clients 16 --kill PID     # of `bertfuse serve`

Every client sends one request after the other to /v1/embeddings. What is answered by 429 or a 5xx, or not at all
because the connection broke, is sent again, as openai's client does, after the seconds that Retry-After names. Vectors
are compared with those that the same texts got before the load. Exit code 1 where a request was lost or a vector is
another. Needs aiohttp, psutil and NumPy.
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

import aiohttp
import numpy as np
import psutil

WORDS = "a river of many blue stones runs by the old house where nobody lived since the winter".split()  # noqa: SIM905
ATTEMPTS = 60
REPLICA = "ServeReplica:bertfuse:"  # in the title of a replica's process, before the deployment's name


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

    def to_dict(self) -> dict[str, Any]:
        p50, p99 = np.percentile(self.latencies, [50, 99]) * 1e3 if self.latencies else (0.0, 0.0)
        return {
            "clients": self.clients,
            "requests": len(self.latencies),
            "requests_per_second": round(len(self.latencies) / self.seconds, 1),
            "texts_per_second": round(self.texts / self.seconds, 1),
            "p50_ms": round(float(p50), 1),
            "p99_ms": round(float(p99), 1),
            "retried": dict(self.retried),
            "lost": dict(self.lost),
            "wrong": self.wrong,
            "killed": self.killed,
        }


def sentences(count: int, seed: int) -> list[str]:
    """Of 3 to 40 words, most of them short."""
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=min(40, 3 + int(source.expovariate(1 / 9))))) for _ in range(count)]


async def embed(session: aiohttp.ClientSession, url: str, texts: list[str], load: Load) -> np.ndarray | None:
    """float32 [texts, size], or None where no attempt was answered."""
    body = {"model": "m", "input": texts, "encoding_format": "base64"}
    why = ""
    for _ in range(ATTEMPTS):
        pause = 0.2
        try:
            async with session.post(f"{url}/v1/embeddings", json=body) as answer:
                if answer.status == 200:
                    rows = (await answer.json())["data"]
                    return np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])
                why = str(answer.status)
                if answer.status != 429 and answer.status < 500:
                    break
                pause = float(answer.headers.get("Retry-After", pause))
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError):
            why = "connection"
        load.retried[why] += 1
        await asyncio.sleep(pause)
    load.lost[why] += 1
    return None


async def client(
    session: aiohttp.ClientSession, url: str, texts: list[str], want: np.ndarray, most: int, end: float, load: Load
) -> None:
    source = random.Random()
    while time.monotonic() < end:
        rows = source.sample(range(len(texts)), source.randint(1, most))
        start = time.monotonic()
        found = await embed(session, url, [texts[row] for row in rows], load)
        if found is None:
            continue
        load.latencies.append(time.monotonic() - start)
        load.texts += len(rows)
        if found.shape != (len(rows), want.shape[1]) or ((found - want[rows]) ** 2).sum(axis=1).max() > 1e-6:
            load.wrong += 1


def kill(server: int, deployment: str) -> int:
    """Kills one replica; how many."""
    replicas = [
        process
        for process in psutil.Process(server).children(recursive=True)
        if REPLICA + deployment in " ".join(process.cmdline() or [process.name()])
    ]
    if replicas:
        random.choice(replicas).send_signal(signal.SIGKILL)
    return len(replicas[:1])


def opened() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120), connector=aiohttp.TCPConnector(limit=0))


async def calm(arguments: argparse.Namespace, texts: list[str]) -> np.ndarray:
    """float32 [texts, size]: one request after the other."""
    async with opened() as session:
        parts = [texts[start : start + 16] for start in range(0, len(texts), 16)]
        found = [await embed(session, arguments.url, part, Load(1)) for part in parts]
    if any(part is None for part in found):
        sys.exit(f"{arguments.url} does not answer /v1/embeddings")
    return np.concatenate([part for part in found if part is not None])


async def clients_of_a_process(
    clients: int, arguments: argparse.Namespace, texts: list[str], want: np.ndarray, end: float
) -> Load:
    load = Load(clients)
    async with opened() as session:
        jobs = [client(session, arguments.url, texts, want, arguments.most, end, load) for _ in range(clients)]
        await asyncio.gather(*jobs)
    return load


def in_process(*work: Any) -> Load:
    return asyncio.run(clients_of_a_process(*work))


def run(arguments: argparse.Namespace) -> list[Load]:
    texts = sentences(arguments.texts, arguments.seed)
    want = asyncio.run(calm(arguments, texts))
    loads = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        list(pool.map(time.sleep, [0.2] * arguments.processes))  # all of them are there before the first is timed
        for clients in arguments.clients:
            shares = [clients // arguments.processes + (n < clients % arguments.processes) for n in range(clients)]
            start = time.monotonic()
            end = start + arguments.seconds
            works = [
                pool.submit(in_process, n, arguments, texts, want, end) for n in shares[: arguments.processes] if n
            ]
            load = Load(clients)
            if arguments.kill is not None:
                time.sleep(arguments.seconds / 3)
                load.killed = kill(arguments.kill, arguments.deployment)
            for part in (work.result() for work in works):
                load.latencies += part.latencies
                load.texts += part.texts
                load.retried += part.retried
                load.lost += part.lost
                load.wrong += part.wrong
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
        f"texts/s, p50 {found['p50_ms']:8.1f} ms, p99 {found['p99_ms']:8.1f} ms{'; ' if told else ''}{told}",
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
    parser.add_argument("--most", type=int, default=4, help="texts of a request: 1 to so many")
    parser.add_argument("--texts", type=int, default=256, help="different texts")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    parser.add_argument("--kill", type=int, metavar="PID", help="kill a replica of this server in each load")
    parser.add_argument("--deployment", default="model", choices=["model", "http"], help="whose replica is killed")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    loads = run(arguments)
    if arguments.json:
        print(json.dumps([load.to_dict() for load in loads], indent=2))
    return int(any(load.lost or load.wrong for load in loads))


if __name__ == "__main__":
    sys.exit(main())
