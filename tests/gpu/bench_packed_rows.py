"""Packed rows against as many rows that are not packed: what reading their number costs. One GPU, CUDA-graph replay.

    python -m tests.gpu.bench_packed_rows [--hidden 768]

For each op and batch: microseconds of the kernel on T rows alone; on B x S rows of which T are real, when the host
expects T; and when it expects all of them (as before a batch has been seen). Then the kernels that pack and unpack.
Figures are medians of replays over sets of tensors that fill the L2 cache.
"""

from __future__ import annotations

import argparse

import torch

from tests.gpu.bench_kernels import EPSILON, copies, graph_us, randn
from tests.gpu.kernels import Bound, constants, native
from tests.gpu.packed import count_of, expect

BATCHES = ((128, 128, 2844), (32, 384, 4534), (32, 512, 4131), (4, 77, 131), (32, 128, 4096), (32, 128, 1683))


def sets_of(op, rows, n, k):
    count = copies(2 * rows * k, 2 * n * k, 2 * rows * n)
    for _ in range(count):
        inputs = [randn(rows, k), randn(n, k, gain=k**-0.5), randn(n) if op != "FusedGemm" else None]
        if "LayerNorm" in op:
            inputs += [randn(rows, n), randn(n), randn(n)]
        yield inputs, torch.empty(rows, n, device="cuda", dtype=torch.half)


def product(op, capacity, rows, n, k):
    attributes = ["none"] if "Gelu" in op else [EPSILON] if "LayerNorm" in op else []

    def time(size, extra, **fields):
        bound = [
            Bound(op, [*inputs, *extra], [y], attributes, constant_inputs=constants(inputs), **fields)
            for inputs, y in sets_of(op, size, n, k)
        ]
        return graph_us([b.run for b in bound])

    count = count_of(rows)
    expect(rows, capacity)
    alone, packed = time(rows, []), time(capacity, [count])
    unknown = time(capacity, [count], flags=native.NO_ROW_HINTS)
    print(
        f"{op:20s}{n:6d}{k:6d}  {rows:6d} of {capacity:6d}: alone {alone:8.2f}"
        f"  packed {packed:8.2f} ({packed / alone:.2f})"
        f"  nothing known {unknown:8.2f} ({unknown / alone:.2f})",
        flush=True,
    )


def moves(batch, sequence, rows, hidden):
    mask = torch.zeros(batch, sequence, dtype=torch.int64, device="cuda")
    mask.view(-1)[torch.randperm(batch * sequence, device="cuda")[:rows]] = 1
    index = torch.zeros(batch, sequence, dtype=torch.int32, device="cuda")
    cu_seqlens, count = torch.zeros(batch + 1, dtype=torch.int32, device="cuda"), count_of(0)
    pack = Bound("PackTokens", [mask], [index, cu_seqlens, count])
    x, y = (randn(batch, sequence, hidden) for _ in range(2))
    unpack = Bound("UnpackTokens", [x, mask, index, count], [y])
    tables = [randn(size, hidden) for size in (30000, 512)]
    vectors = [randn(hidden) for _ in range(2)]
    inputs = [mask * 7, *tables, *vectors, None, None, None]
    embed = Bound("EmbedLayerNorm", [*inputs, index, count], [y], [EPSILON])
    padded = Bound("EmbedLayerNorm", inputs, [y], [EPSILON])
    pack.run()
    torch.cuda.synchronize()
    print(
        f"{rows:6d} of {batch}x{sequence}: PackTokens {graph_us([pack.run] * 8):.2f}  UnpackTokens "
        f"{graph_us([unpack.run] * 8):.2f}  EmbedLayerNorm {graph_us([embed.run] * 8):.2f} "
        f"(padded {graph_us([padded.run] * 8):.2f})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    hidden = parser.parse_args().hidden
    for batch, sequence, rows in BATCHES:
        moves(batch, sequence, rows, hidden)
    for batch, sequence, rows in BATCHES:
        for op, n, k in (
            ("FusedGemm", 3 * hidden, hidden),
            ("FusedGemmLayerNorm", hidden, hidden),
            ("FusedGemmGelu", 4 * hidden, hidden),
            ("FusedGemmLayerNorm", hidden, 4 * hidden),
        ):
            product(op, batch * sequence, rows, n, k)


if __name__ == "__main__":
    main()
