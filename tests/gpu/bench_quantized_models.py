"""Whole quantised models beside float16's, on one GPU in ONNX Runtime.

    bertfuse optimize bert-base -o base-fp16.onnx --dtype fp16
    bertfuse quantize base-fp16.onnx -o base-fp8.onnx --to fp8
    python -m tests.gpu.bench_quantized_models --sizes 8x128,32x128,128x128 base-fp16.onnx base-fp8.onnx
    python -m tests.gpu.bench_quantized_models --texts 4096 large-packed-fp16.onnx large-packed-fp8.onnx

By sizes: milliseconds of a CUDA graph's replay, the models in turns; the ratio is the first model's time to each. By
texts: lengths like SQuAD's (normal around 177, deviation 80, cut to 16 to 384), sorted, in batches of about --tokens
tokens, without CUDA graphs, since each batch has a shape of its own; the models have to be packed ones (--padding
remove). Tokens are random. Needs a session whose every fused op ran as a CUDA kernel.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from bertfuse.measuring.gpu_contenders import BoundRuns, GpuOptions, cuda_session, kernels_run

LENGTHS = (177, 80, 16, 384)


def feed(lengths: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    shape = (len(lengths), int(lengths.max()))
    mask = (np.arange(shape[1])[None] < lengths[:, None]).astype(np.int64)
    ids = np.random.default_rng(seed).integers(1000, 20000, shape)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}


def batches(texts: int, tokens: int, seed: int) -> list[np.ndarray]:
    """Lengths of the texts of each batch."""
    mean, deviation, least, most = LENGTHS
    lengths = np.sort(np.clip(np.random.default_rng(seed).normal(mean, deviation, texts), least, most).astype(int))
    cuts, held = [0], 0
    for index, length in enumerate(lengths):
        if held + length > tokens and held:
            cuts.append(index)
            held = 0
        held += length
    return [lengths[a:b] for a, b in zip(cuts, [*cuts[1:], texts], strict=True)]


def milliseconds(run, feeds, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        for one in feeds:
            run(one)
    return (time.perf_counter() - start) / repeats * 1e3


def line(name: str, times: list[list[float]], models: list[Path], texts: int) -> None:
    medians = [statistics.median(of_model) for of_model in times]
    for model, median in zip(models, medians, strict=True):
        speed = f"{texts / median * 1e3:8.0f} texts/s"
        print(f"{name:>10} {model.stem:24} {median:9.3f} ms {speed}  {medians[0] / median:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--sizes", default="")
    parser.add_argument("--texts", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",") if size]
    cases = [(f"{n}x{length}", [feed(np.full(n, length))]) for n, length in sizes]
    if options.texts:
        parts = batches(options.texts, options.tokens, options.seed)
        cases.append((f"{len(parts)} batches", [feed(part, index) for index, part in enumerate(parts)]))
    for model in options.models:
        kernels_run(model, feed(np.array([9, 31])), GpuOptions())
    graphs = GpuOptions(cuda_graph=not options.texts)
    runs = [BoundRuns(cuda_session(model, "always", graphs), model.stem) for model in options.models]
    for name, feeds in cases:
        for run in runs:
            milliseconds(run, feeds, 2 if options.texts else 4)
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(options.rounds):
            for run, found in zip(runs, times, strict=True):
                once = milliseconds(run, feeds, 1)
                found.append(milliseconds(run, feeds, max(1, int(options.seconds * 1e3 / once))))
        line(name, times, options.models, sum(len(next(iter(one.values()))) for one in feeds))


if __name__ == "__main__":
    main()
