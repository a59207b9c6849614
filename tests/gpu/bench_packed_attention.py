"""Attention over sequences of unequal lengths: ours packed, by tactic, and padded, beside PyTorch's varlen attention.

    python -m tests.gpu.bench_packed_attention [--heads 12] [--size 64] [--workloads sentences,full]

float16, a CUDA graph of several calls on the same tensors, which are in the L2 cache where they fit it: in a model the
product ahead has just written them. Median microseconds of one call. 'floor' is the larger of the bytes
(of real rows, once) at 4.2 TB/s and the products at 760 TFLOP/s, both measured on an H200.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from bertfuse.analysis.workloads import DISTRIBUTIONS, drawn_lengths
from tests.gpu.bench_kernels import graph_us
from tests.gpu.kernels import Bound, library_file, native

CALLS = 8  # in a graph
OP = "FusedAttention"
BYTES_PER_US, FLOPS_PER_US = 4.2e6, 760e6


def workloads():
    """Lengths, and what they are padded to."""

    def rng():
        return np.random.default_rng(7)

    def drawn(batch, longest, tokens):
        lengths = rng().uniform(1, longest, batch)
        return np.clip(lengths * tokens / lengths.sum(), 1, longest).astype(int), longest

    return {
        **{name: drawn_lengths(name) for name in DISTRIBUTIONS},
        "few": (np.array([9, 31, 14, 77]), 77),
        "full": (np.full(32, 128), 128),
        "full384": (np.full(32, 384), 384),
        "ft128x128": drawn(128, 128, 8500),
        "ft32x384": drawn(32, 384, 6035),
        "tweets": (rng().integers(4, 30, 1000), 32),
        "books": (np.array([4096, 12, 700, 1, 2500, 64]), 4096),
    }


def repeated_us(run):
    return graph_us([run] * CALLS)


def ours_us(inputs, y, heads, size, tactic=-1):
    return repeated_us(Bound(OP, inputs, [y], [heads, size**-0.5], tactic).run)


def tensors(lengths, longest, hidden):
    """qkv, bias, mask, offsets and room for y."""
    shape = (len(lengths), longest)
    ends = torch.tensor(lengths, device="cuda")
    mask = (torch.arange(longest, device="cuda")[None] < ends[:, None]).long()
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32, device="cuda")
    qkv = torch.randn(*shape, 3 * hidden, device="cuda").half()
    return qkv, torch.randn(3 * hidden, device="cuda").half(), mask, offsets, qkv.new_empty(*shape, hidden)


def varlen_us(lengths, offsets, heads, size):
    from torch.nn.attention.varlen import varlen_attn

    tokens, longest = int(sum(lengths)), int(max(lengths))
    q, k, v = torch.randn(tokens, 3, heads, size, device="cuda").half().unbind(1)
    with torch.inference_mode():
        return repeated_us(lambda: varlen_attn(q, k, v, offsets, offsets, longest, longest))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workloads", default=",".join(workloads()))
    options = parser.parse_args()
    heads, size = options.heads, options.size
    hidden = heads * size
    for name in options.workloads.split(","):
        lengths, longest = workloads()[name]
        tokens, squares = int(lengths.sum()), float((lengths.astype(float) ** 2).sum())
        floor = max(tokens * hidden * 4 * 2 / BYTES_PER_US, 4 * hidden * squares / FLOPS_PER_US)
        row = [f"{name:10s} {len(lengths)}x{longest}, {tokens} tokens: floor {floor:.2f}"]
        qkv, bias, mask, offsets, y = tensors(lengths, longest, hidden)
        packed = [qkv, bias, None, offsets]
        probe = Bound(OP, packed, [y], [heads, size**-0.5])
        chosen, times = native.tactic_name(OP, probe.call, -1, library_file()), {}
        for tactic in range(probe.tactics() - 1):  # the last one is without tensor cores
            label = native.tactic_name(OP, probe.call, tactic, library_file())
            times[label] = ours_us(packed, y, heads, size, tactic)
        row += [f"{label}{'*' if label == chosen else ''} {us:.2f}" for label, us in times.items()]
        padded, varlen = ours_us([qkv, bias, mask], y, heads, size), varlen_us(lengths, offsets, heads, size)
        best = min(times.values())
        row.append(f"padded {padded:.2f} varlen {varlen:.2f} | varlen / chosen {varlen / times[chosen]:.2f}")
        row.append(f"chosen / best {times[chosen] / best:.2f}")
        print("; ".join(row), flush=True)


if __name__ == "__main__":
    main()
