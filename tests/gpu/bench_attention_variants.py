"""Attention with windows, causal, with grouped heads, with RoPE: every tactic against float64, and its microseconds.

    python -m tests.gpu.bench_attention_variants

For the choice between Hopper's kernels and those by mma.sync. `error` is the largest in parts of what is allowed.
"""

from __future__ import annotations

import torch

from bertfuse.qualify.tolerances import TOLERANCES
from tests.gpu import reference
from tests.gpu.bench_kernels import graph_us
from tests.gpu.harness import poisoned, randn
from tests.gpu.kernels import Bound, library_file, native

OP = "FusedAttentionVariant"
# name, heads, heads of K and V, size of a head, left, right, whether heads are rotated
VARIANTS = (
    ("window 128", 12, 12, 64, 64, 64, False),
    ("causal", 12, 12, 64, -1, 0, False),
    ("grouped", 12, 4, 64, -1, -1, False),
    ("grouped causal 128", 16, 8, 128, -1, 0, False),
    ("window of 32", 12, 12, 32, 16, 16, False),
    ("no bias", 12, 12, 64, -1, -1, False),
    ("rotated", 12, 12, 64, -1, -1, True),
    ("rotated, window 128", 12, 12, 64, 64, 64, True),
)
SIZES = ((1, 128), (32, 128), (8, 512), (2, 4096))


def measure(name: str, variant: tuple[int, ...], batch: int, sequence: int) -> None:
    heads, shared, size, left, right, rotates = variant
    qkv = randn(batch, sequence, (heads + 2 * shared) * size, dtype=torch.float16)
    attributes = [heads, shared, size**-0.5, "halves", 1e-6, left, right, 0, 0, "as_others"]
    angles = torch.rand(sequence, size // 2, device="cuda") * 6.3
    tables = [angles.cos().half(), angles.sin().half()] if rotates else [None, None]
    others = [None, None, *tables, *[None] * 4]
    inputs = [qkv, *others]
    y = poisoned(batch, sequence, heads * size, dtype=torch.float16)
    rows = sequence <= 1024  # float64 scores of more do not fit
    expected = reference.fused_attention_variant(qkv[:2], *others, *attributes) if rows else None
    probe = Bound(OP, inputs, [y], attributes)
    cells = []
    for tactic in range(probe.tactics()):
        label = native.tactic_name(OP, probe.call, tactic, library_file())
        if label.startswith("simt"):
            continue
        y.fill_(float("nan"))
        bound = Bound(OP, inputs, [y], attributes, tactic)
        bound.run()
        torch.cuda.synchronize()
        error = "-"
        if expected is not None:
            tolerance = TOLERANCES[OP, "float16"]
            allowed = tolerance.atol + tolerance.rtol * expected.abs()
            error = f"{((y[:2].double() - expected).abs() / allowed).nan_to_num(torch.inf).max().item():.2f}"
        cells.append(f"{label} {graph_us([bound.run] * 20):.2f} us (error {error})")
    print(f"{name:18s} {batch}x{sequence:<5d} {'; '.join(cells)}", flush=True)


def main() -> None:
    for name, *variant in VARIANTS:
        for batch, sequence in SIZES:
            measure(name, tuple(variant), batch, sequence)


if __name__ == "__main__":
    main()
