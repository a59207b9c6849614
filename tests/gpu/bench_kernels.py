"""Each op's kernel against cuBLAS's plain product of the same shape or cuDNN's attention, one GPU, CUDA-graph replay.

    python -m tests.gpu.bench_kernels --rows 128,1024,4096,16384 [--tactics]

Figures are microseconds, the median of several replays; inputs rotate so that no call finds its own in the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F

from bertfuse.measuring.cuda_graphs import capture, microseconds
from tests.gpu.kernels import Bound, constants, library_file, native

EPSILON = 1e-12
PEAK_TFLOPS = 760  # of a large product, measured on an H200
CACHE_BYTES = 150e6  # rotate through more than twice the L2 cache of an H200


def graph_us(runs, repeats=20, batches=7):
    """Median microseconds of one of `runs`, all captured in one graph."""
    graph = capture(runs)
    graph.replay()
    torch.cuda.synchronize()
    return statistics.median(microseconds(graph, repeats) / len(runs) for _ in range(batches))


def copies(*tensors_bytes, most=40):
    return int(max(4, min(most, CACHE_BYTES // max(1, sum(tensors_bytes)) + 1)))


def randn(*shape, gain=1.0):
    return (torch.randn(*shape, device="cuda") * gain).half()


def gemm(note, op, rows, n, k, tactics):
    count = copies(2 * rows * k, 2 * n * k, 2 * rows * n)
    sets = [
        (
            randn(rows, k),
            randn(n, k, gain=k**-0.5),
            randn(n),
            randn(rows, n),
            randn(n),
            randn(n),
            torch.empty(rows, n, device="cuda", dtype=torch.half),
        )
        for _ in range(count)
    ]
    plain = graph_us([lambda s=s: torch.mm(s[0], s[1].t(), out=s[6]) for s in sets])

    def inputs(s):
        # Without bias, as in a model: the packed product's is added behind it.
        x, weight, bias, residual, gamma, beta, _ = s
        return {
            "FusedGemm": (x, weight, None),
            "FusedGemmGelu": (x, weight, bias),
            "FusedGemmLayerNorm": (x, weight, bias, residual, gamma, beta),
            "FusedGemmGeluLayerNorm": (x, weight, bias, gamma, beta, residual),
        }[op]

    attributes = [EPSILON] * ("LayerNorm" in op) + ["none"] * ("Gelu" in op)

    def time(tactic):
        bound = [Bound(op, inputs(s), [s[6]], attributes, tactic, constants(inputs(s))) for s in sets]
        return graph_us([b.run for b in bound])

    ours = time(-1)
    tflops = 2 * rows * n * k / ours / 1e6
    note(
        f"{op:22s} {rows:6d} {n:5d} {k:5d} {ours:8.2f} us  cuBLAS {plain:8.2f}  ratio {ours / plain:5.2f}"
        f"  {tflops:5.0f} TFLOP/s  {tflops / PEAK_TFLOPS:4.0%}"
    )
    if tactics:
        probe = Bound(op, inputs(sets[0]), [sets[0][6]], attributes)
        results = []
        for tactic in range(probe.tactics()):
            if not native.tactic_name(op, probe.call, tactic, library_file()).startswith("simt"):
                results.append((time(tactic), tactic))
        results.sort()
        note("    best tactics: " + "  ".join(f"{tactic}:{us:.2f}" for us, tactic in results[:8]))


def attention(note, batch, sequence, heads, size):
    hidden = heads * size
    count = copies(2 * batch * sequence * 4 * hidden)
    sets = [
        (
            randn(batch, sequence, 3 * hidden),
            randn(3 * hidden),
            torch.ones(batch, sequence, device="cuda", dtype=torch.long),
            torch.empty(batch, sequence, hidden, device="cuda", dtype=torch.half),
        )
        for _ in range(count)
    ]

    def sdpa(s):
        q, k, v = s[0].view(batch, sequence, 3, heads, size).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v)

    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        cudnn = graph_us([lambda s=s: sdpa(s) for s in sets])
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        flash = graph_us([lambda s=s: sdpa(s) for s in sets])
    scale = size**-0.5
    ours = [
        graph_us(
            [Bound("FusedAttention", [s[0], s[1], s[2] if masked else None], [s[3]], [heads, scale]).run for s in sets]
        )
        for masked in (False, True)
    ]
    tflops = 4 * batch * heads * sequence**2 * size / ours[0] / 1e6
    note(
        f"FusedAttention {batch:4d}x{heads}x{sequence}x{size} {ours[0]:8.2f} us, with mask {ours[1]:8.2f}"
        f"  cuDNN {cudnn:8.2f}  flash {flash:8.2f}  ratio {ours[0] / cudnn:5.2f}"
        f"  {tflops:5.0f} TFLOP/s  {tflops / PEAK_TFLOPS:4.0%}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="128,1024,4096,16384")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--tactics", action="store_true", help="time every configuration, not only the chosen one")
    parser.add_argument(
        "--attention",
        default="1x12x128x64,8x12x128x64,32x12x128x64,128x12x128x64,32x12x384x64,16x12x512x64,"
        "32x12x128x32,32x12x384x32,16x8x512x128",
    )
    args = parser.parse_args()
    lines = []

    def note(line):
        lines.append(line)
        print(line, flush=True)

    h = args.hidden
    for rows in map(int, filter(None, args.rows.split(","))):
        gemm(note, "FusedGemm", rows, 3 * h, h, args.tactics)
        gemm(note, "FusedGemmLayerNorm", rows, h, h, args.tactics)
        gemm(note, "FusedGemmGelu", rows, 4 * h, h, args.tactics)
        gemm(note, "FusedGemmLayerNorm", rows, h, 4 * h, args.tactics)
        gemm(note, "FusedGemmGeluLayerNorm", rows, h, h, args.tactics)
    for shape in filter(None, args.attention.split(",")):
        batch, heads, sequence, size = map(int, shape.split("x"))
        attention(note, batch, sequence, heads, size)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "bench_kernels.json").write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
