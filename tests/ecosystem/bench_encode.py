"""Texts a second on this CPU: bertfuse.Encoder, and sentence-transformers with its torch and its ONNX backend.

    .venv-ecosystem/bin/python -m tests.ecosystem.bench_encode [--texts 2000] [--rounds 3]

MiniLM's real weights; words of its vocabulary, lognormal numbers of words (median 18, 3 to 120). Tokenising counts. The
contenders take turns, forwards and backwards; medians. CPU seconds are of the whole process: what the work takes
where other processes share the cores.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.checkpoints import minilm


def corpus(count: int) -> list[str]:
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(minilm() / "tokenizer.json")).get_vocab()
    words = sorted(word for word in vocabulary if word.isalpha() and len(word) > 2)
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(18), 0.6, count), 3, 120).astype(int)
    choice = random.Random(0)
    return [" ".join(choice.choices(words, k=int(length))) for length in lengths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, nargs="*", default=[], help="also Encoder with these limits")
    args = parser.parse_args()

    from sentence_transformers import SentenceTransformer

    import bertfuse
    from bertfuse.analysis.bench import machine

    folder = Path(tempfile.mkdtemp(prefix="bertfuse-")) / "minilm"
    from tests.commands import said

    said("optimize", minilm(), "-o", folder)
    contenders: dict[str, Callable[[list[str]], np.ndarray]] = {
        "sentence-transformers, torch": SentenceTransformer(str(minilm()), device="cpu").encode,
        "sentence-transformers, onnx": SentenceTransformer(str(folder), backend="onnx").encode,
        "bertfuse.Encoder": bertfuse.Encoder(folder).encode,
    }
    for tokens in args.batch_tokens:
        contenders[f"bertfuse.Encoder, {tokens} tokens"] = bertfuse.Encoder(folder, max_batch_tokens=tokens).encode
    texts = corpus(args.texts)
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    vectors: dict[str, np.ndarray] = {}
    for encode in contenders.values():
        encode(texts[:32])
    for turn in range(args.rounds):
        for name in reversed(contenders) if turn % 2 else contenders:
            start, used = time.perf_counter(), time.process_time()
            vectors[name] = contenders[name](texts)
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - used)
    first = next(iter(contenders))
    print(f"{machine()}, {args.texts} texts, {args.rounds} rounds")
    for name in contenders:
        rate = args.texts / statistics.median(wall[name])
        ratio = statistics.median(wall[first]) / statistics.median(wall[name])
        cpu_ratio = statistics.median(cpu[first]) / statistics.median(cpu[name])
        cosine = float((vectors[name] * vectors[first]).sum(axis=1).min())
        print(
            f"{name}: {rate:.0f} texts/s, {ratio:.2f} times; {statistics.median(cpu[name]):.1f} CPU s,"
            f" {cpu_ratio:.2f} times; least cosine {cosine:.6f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
