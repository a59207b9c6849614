"""`bertfuse serve` on one GPU: what docs/serving.md says of it, from models with random weights, in under two minutes.

    python -m tests.serving.bench_gpu --tokenizer DIR [--old DIR]

DIR has MiniLM's tokenizer and modules.json (the folder of its checkpoint without the weights). `--old` names the source
folder of another version, whose server takes turns with this one for one client. `--sizes toy --provider cpu` rehearses
it without a GPU.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.servers import free_port
from tests.serving.load_test import sentences

SIZES = {"toy": (32, 1, 2), "minilm": (384, 6, 12), "base": (768, 12, 12)}  # hidden, layers, heads
QUERY = "where does the river run"


def make(size: str, reranker: bool, tokenizer: Path, folder: Path, on_gpu: bool) -> None:
    """A fused folder, of a checkpoint made here."""
    import torch
    import transformers

    hidden, layers, heads = SIZES[size]
    config = transformers.BertConfig(
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        num_labels=1,
    )
    torch.manual_seed(0)
    checkpoint = folder.with_name(folder.name + "-checkpoint")
    shutil.copytree(tokenizer, checkpoint)
    if reranker:
        for file in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
            (checkpoint / file).unlink(missing_ok=True)
    kind = transformers.BertForSequenceClassification if reranker else transformers.BertModel
    kind(config).eval().save_pretrained(checkpoint)
    exported = folder.with_name(folder.name + "-exported")
    dtype = "fp16" if on_gpu else "fp32"
    for command in (
        ("export", checkpoint, "-o", exported, "--exporter", "torchscript"),
        ("fuse", exported, "-o", folder, "--dtype", dtype, "--padding", "ragged"),
    ):
        subprocess.run(
            [sys.executable, "-m", "bertfuse.cli", *map(str, command)], check=True, stdout=subprocess.DEVNULL
        )
    shutil.rmtree(exported)
    shutil.rmtree(checkpoint)


def wakes() -> dict[str, float]:
    """Microseconds from a process or thread that writes to one that sleeps and reads, there and back, halved: p50."""

    def ping_pong(near: socket.socket) -> float:
        taken = []
        for _ in range(2000):
            time.sleep(0.0002)
            start = time.perf_counter()
            near.send(b"x")
            near.recv(1)
            taken.append(time.perf_counter() - start)
        return round(float(np.median(taken)) * 5e5, 1)

    def echo(far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while far.recv(1):
                far.send(b"x")

    found = {}
    near, far = socket.socketpair()
    threading.Thread(target=echo, args=(far,), daemon=True).start()
    found["thread"] = ping_pong(near)
    near, far = socket.socketpair()
    child = os.fork()
    if not child:
        near.close()
        echo(far)
        os._exit(0)
    far.close()
    found["process"] = ping_pong(near)
    near.close()
    os.waitpid(child, 0)
    return found


class Running:
    def __init__(self, url: str, pid: int, seconds: float) -> None:
        self.url, self.pid, self.seconds = url, pid, seconds

    def load(self, *options: object) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.serving.load_test", self.url, "--json", *map(str, options)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return json.loads(found.stdout)[-1]

    def means(self) -> dict[str, float]:
        """Milliseconds of a request so far: tokenising, waiting, the run."""
        text = urllib.request.urlopen(f"{self.url}/metrics").read().decode()
        found = {}
        for name in ("tokenization", "queue", "inference"):
            sums = [re.search(rf"^te_request_{name}_duration_{part} (\S+)", text, re.M) for part in ("sum", "count")]
            if all(sums):
                found[name] = round(1e3 * float(sums[0][1]) / max(1.0, float(sums[1][1])), 3)  # type: ignore[index]
        return found


@contextlib.contextmanager
def server(provider: str, *models: Path, source: Path | None = None) -> Iterator[Running]:
    port, begun = free_port(), time.monotonic()
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = f"{source}:{environment.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "bertfuse.cli", "serve", *models, "--port", port, "--provider", provider]
    process = subprocess.Popen([*map(str, command), "--auto-truncate"], env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health")
                break
            if process.poll() is not None or time.monotonic() - begun > 120:
                sys.exit("the server did not start")
            time.sleep(0.02)
        yield Running(url, process.pid, time.monotonic() - begun)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def alone(provider: str, model: Path, reranker: Path | None, running: Running) -> dict[str, Any]:
    """Encoder's p50 of one sentence, its sentences a second, and whether the server's vectors have its bits; and
    Reranker.predict's calls a second of 100 pairs of 150 words."""
    import bertfuse

    device = "cpu" if provider == "cpu" else "cuda"
    encoder = bertfuse.Encoder(model, device=device)
    texts = sentences(256, 0)
    taken = []
    for at in range(600):
        start = time.perf_counter()
        encoder.encode(texts[at % 256])
        taken.append(time.perf_counter() - start)
    found: dict[str, Any] = {"Encoder, one sentence, p50 ms": round(1e3 * float(np.median(taken[100:])), 2)}
    many = sentences(2_000 if provider == "cpu" else 40_000, 1)
    encoder.encode(many[: len(many) // 4])
    start = time.perf_counter()
    encoder.encode(many)
    found["Encoder, sentences/s"] = round(len(many) / (time.perf_counter() - start))
    body = {"model": model.name, "input": texts[:16], "encoding_format": "base64"}
    request = urllib.request.Request(f"{running.url}/v1/embeddings", json.dumps(body).encode())
    rows = json.load(urllib.request.urlopen(request))["data"]
    vectors = np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])
    found["same batch, same bits"] = bool(np.array_equal(vectors, encoder.encode(texts[:16])))
    if reranker is not None:
        judge = bertfuse.Reranker(reranker, device=device)
        pairs = [(QUERY, text) for text in sentences(100, 0, 150, equal=True)]
        taken = []
        for _ in range(3 if provider == "cpu" else 40):
            start = time.perf_counter()
            judge.predict(pairs)
            taken.append(time.perf_counter() - start)
        found["Reranker, 100 pairs, calls/s"] = round(1 / float(np.median(taken)), 1)
    return found


def say(what: str, found: dict[str, Any]) -> None:
    shown = {name: value for name, value in found.items() if value != {} and name != "clients"}
    print(f"{what:34}", ", ".join(f"{name} {value}" for name, value in shown.items()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--provider", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--sizes", default="minilm,base")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--make", nargs=3, metavar=("SIZE", "RERANKER", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    on_gpu = arguments.provider == "cuda"
    if arguments.make:
        size, reranker, folder = arguments.make
        make(size, reranker == "True", arguments.tokenizer, Path(folder), on_gpu)
        return 0
    begun = time.monotonic()
    sizes, seconds, cores = arguments.sizes.split(","), arguments.seconds, len(os.sched_getaffinity(0))
    say(f"wake, p50 us, {cores} cores", wakes())
    with tempfile.TemporaryDirectory() as scratch:
        wanted = [(size, False, Path(scratch, size)) for size in sizes] + [(sizes[-1], True, Path(scratch, "reranker"))]
        again = [sys.executable, "-m", "tests.serving.bench_gpu", "--tokenizer", str(arguments.tokenizer)]
        again += ["--provider", arguments.provider, "--make"]
        making = [subprocess.Popen([*again, *map(str, one)], stdout=subprocess.DEVNULL) for one in wanted]
        if any([process.wait() for process in making]):
            sys.exit("a model could not be made")
        say("models made", {"s": round(time.monotonic() - begun, 1)})
        one = ("--clients", 1, "--most", 1, "--seconds", seconds)
        spread = min(8, max(1, cores // 2))
        for size, _, folder in wanted[: len(sizes)]:
            models = [folder] + ([wanted[-1][2]] if size == sizes[-1] else [])
            if arguments.old is not None:
                with server(arguments.provider, folder, source=arguments.old) as old:
                    say(f"{size}: old, 1 client", old.load(*one))
                with server(arguments.provider, folder) as new:
                    say(f"{size}: new, 1 client", new.load(*one))
                with server(arguments.provider, folder, source=arguments.old) as old:
                    say(f"{size}: old, 1 client", old.load(*one))
            with server(arguments.provider, *models) as running:
                say(f"{size}: ready", {"s": round(running.seconds, 1)})
                named = ("--model", folder.name)
                say(f"{size}: 1 client", running.load(*one, *named) | {"mean ms": running.means()})
                many = ("--most", 1, "--seconds", seconds, "--processes", spread)
                say(f"{size}: 64 clients", running.load("--clients", 64, *many, *named))
                large = ("--clients", 256, "--most", 64, "--seconds", seconds, "--processes", spread)
                say(f"{size}: 256 clients, 1 to 64 texts", running.load(*large, *named))
                say(f"{size}: alone", alone(arguments.provider, folder, models[1] if models[1:] else None, running))
                if not models[1:]:
                    continue
                pairs = ("--rerank", "--words", 150, "--equal", "--least", 100, "--most", 100, "--model", "reranker")
                for clients in (1, 8):
                    given = ("--clients", clients, "--seconds", seconds, "--processes", min(clients, spread))
                    say(f"{size}: rerank, {clients} clients", running.load(*pairs, *given, "--texts", 128))
                for kind in ("engine", "front"):
                    killed = ("--clients", 8, "--seconds", 4, "--kill", running.pid, "--process", kind)
                    say(f"{size}: kill -9 of a {kind}", running.load(*killed, *named))
    say("all", {"s": round(time.monotonic() - begun, 1)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
