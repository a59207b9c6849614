"""`bertfuse serve` and other servers of the same model under the same load, taking turns on one machine.

    python -m tests.serving.peers --encoder minilm --path infinity=/embeddings \\
        ours='bertfuse serve minilm --port {port}' \\
        fastapi='ENV/bin/python tests/serving/peer_fastapi.py minilm {port}' \\
        infinity='ENV/bin/infinity_emb v2 --model-id minilm --engine torch --device cpu --port {port}'

Each NAME=COMMAND is started alone, and timed until its first answer; then every server has a turn of --seconds for each
number of clients, --rounds times over in another order each time, while the others are stopped (SIGSTOP). With other
work on the machine the ratio of two servers in one round says more than either's seconds, so that the medians of those
ratios are told beside the medians (NAME-A and NAME-B are the same server with other options, and no others to each
other); processor time a request is the server's own, of all its processes. --encoder times
`bertfuse.Encoder` and a bare session of the folder in turns of their own. Needs httptools, orjson, psutil and NumPy;
the peers' packages belong into environments of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

from tests.servers import free_port
from tests.serving.load_test import Load, Target, calm, client, in_process, sentences

START = 300.0  # seconds until a server must answer
ENCODER = """
import sys, time
import bertfuse
from tests.serving.load_test import sentences
encoder, texts = bertfuse.Encoder(sys.argv[1], device="cpu"), sentences(16, 0)
output = [next(name for name in ("sentence_embedding", "last_hidden_state") if name in encoder.outputs)]
feeds = []
for text in texts:
    ids = encoder.tokenizer.encode(text).ids
    values = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}
    feeds.append({name: __import__("numpy").array([values[name]], "int64") for name in encoder.inputs})
ways = [lambda at: encoder.encode([texts[at % 16]]), lambda at: encoder.session.run(output, feeds[at % 16])]
if encoder.ragged:
    ways.pop()
for line in sys.stdin:
    found = []
    for way in ways:
        taken, end = [], time.perf_counter() + float(line) / len(ways)
        while time.perf_counter() < end:
            start = time.perf_counter()
            way(len(taken))
            taken.append(time.perf_counter() - start)
        found.append(sorted(taken)[len(taken) // 2])
    print(*found, flush=True)
"""


@dataclass
class Peer:
    """A server in the comparison, and what its turns gave."""

    name: str
    target: Target
    process: subprocess.Popen[bytes]
    first: float = 0.0  # seconds from the command to the first answer
    want: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    turns: dict[int, list[dict[str, float]]] = field(default_factory=dict)  # by clients, a turn for each round

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def processes(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def seconds(self) -> float:
        """Of a processor, by all of its processes."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes())

    def memory(self) -> float:
        """MiB; what its processes share counts once."""
        return sum(process.memory_full_info().pss for process in self.processes()) / 2**20


@contextlib.contextmanager
def started(name: str, command: str, path: str, model: str, texts: Sequence[str]) -> Iterator[Peer]:
    port = free_port()
    target = Target(("127.0.0.1", port), path, model, rerank=False, plain=False)
    begin = time.monotonic()
    process = subprocess.Popen(
        shlex.split(command.format(port=port)), stdout=subprocess.DEVNULL, start_new_session=True
    )
    peer = Peer(name, target, process)
    try:
        while not asyncio.run(_answers(target, texts[0])):
            if process.poll() is not None or time.monotonic() - begin > START:
                sys.exit(f"{name} does not answer: {command}")
            time.sleep(0.02)
        peer.first = time.monotonic() - begin
        peer.want = asyncio.run(calm(target, list(texts)))
        yield peer
    finally:
        if process.poll() is None:
            peer.signal(signal.SIGCONT)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _answers(target: Target, text: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection(*target.address)
        body = target.body([text])
        writer.write(target.head % len(body) + body)
        status = await asyncio.wait_for(reader.readline(), START)
        writer.close()
        return status.startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def turn(peer: Peer, clients: int, texts: list[str], seconds: float) -> dict[str, float]:
    """One load; the server must be running, the others stopped."""
    asyncio.run(_warm(peer, texts))
    before, begin = peer.seconds(), time.monotonic()
    load = in_process(clients, peer.target, texts, peer.want, (1, 1), begin + seconds)
    load.seconds = time.monotonic() - begin
    if load.lost or load.wrong:
        sys.exit(f"{peer.name} with {clients} clients: {load.to_dict()}")
    told = load.to_dict()
    made = {name: float(told[name]) for name in ("requests_per_second", "p50_ms", "p99_ms")}
    return made | {
        "cpu_ms": 1e3 * (peer.seconds() - before) / max(1, len(load.latencies)),
        "memory_mib": peer.memory(),
    }


async def _warm(peer: Peer, texts: list[str]) -> None:
    await client(peer.target, texts, peer.want, (1, 1), time.monotonic() + 0.5, Load(1))


@contextlib.contextmanager
def encoder(folder: str | None) -> Iterator[subprocess.Popen[str] | None]:
    if folder is None:
        yield None
        return
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ENCODER, folder], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def timed(process: subprocess.Popen[str], seconds: float) -> list[float]:
    """Milliseconds of one text: by `Encoder`, and by a bare session of a padded model."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    return [1e3 * float(word) for word in process.stdout.readline().split()]


def show(peers: Sequence[Peer], alone: Sequence[list[float]]) -> dict[str, object]:
    times = [statistics.median(way) for way in zip(*alone, strict=True)]
    told: dict[str, object] = {"alone_ms": times}
    if times:
        print(
            "one text alone, by Encoder and by a bare session: " + ", ".join(f"{ms:.2f} ms" for ms in times), flush=True
        )
    for peer in peers:
        rows = {}
        for clients, turns in peer.turns.items():
            row = {name: statistics.median(each[name] for each in turns) for name in turns[0]}
            ratios = [
                mine["requests_per_second"] / max(other.turns[clients][at]["requests_per_second"] for other in others)
                for at, mine in enumerate(turns)
                if (others := [other for other in peers if other.kind != peer.kind])
            ]
            if ratios:
                row["times_the_best_other"] = statistics.median(ratios)
            rows[clients] = row
            print(
                f"{peer.name:10} {clients:4} clients: {row['requests_per_second']:7.1f} requests/s "
                f"({row.get('times_the_best_other', 1):.2f} of the best other), p50 {row['p50_ms']:7.2f} ms, "
                f"p99 {row['p99_ms']:7.2f} ms, {row['cpu_ms']:6.2f} ms of a processor a request, "
                f"{row['memory_mib']:.0f} MiB, first answer {peer.first:.2f} s",
                flush=True,
            )
        told[peer.name] = {"first_answer_s": peer.first, "clients": rows}
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=COMMAND", help="{port} in it is the port to listen on")
    parser.add_argument("--path", action="append", default=[], metavar="NAME=PATH", help="of a server's own route")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=12, help="of a text on average")
    parser.add_argument("--model", default="minilm", help="the model's name in requests")
    parser.add_argument("--encoder", metavar="FOLDER", help="time the model alone, too")
    parser.add_argument("--json", action="store_true", help="print one JSON document in the end")
    arguments = parser.parse_args()
    paths = dict(entry.split("=", 1) for entry in arguments.path)
    texts, alone = sentences(16, 0, arguments.words), []
    with contextlib.ExitStack() as stack:
        peers: list[Peer] = []
        for entry in arguments.servers:
            name, _, command = entry.partition("=")
            path = paths.get(name, "/v1/embeddings")
            peers.append(stack.enter_context(started(name, command, path, arguments.model, texts)))
            peers[-1].signal(signal.SIGSTOP)
        process = stack.enter_context(encoder(arguments.encoder))
        for _ in range(arguments.rounds):
            if process is not None:
                alone.append(timed(process, arguments.seconds))
            for clients in arguments.clients:
                for peer in random.sample(peers, len(peers)):
                    peer.signal(signal.SIGCONT)
                    peer.turns.setdefault(clients, []).append(turn(peer, clients, texts, arguments.seconds))
                    peer.signal(signal.SIGSTOP)
        told = show(peers, alone)
    if arguments.json:
        print(json.dumps(told, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
