"""RoPE in the product of Q, K and V against RoPE in attention: both ops together, one GPU, CUDA graphs.

    python -m tests.gpu.bench_rotary_products [--tactics]

Microseconds of product and attention as they are chosen, 12 heads of 64: what attention rotates, what the product
does, and of neither; and of the tables by themselves, and what they add behind a product. Inputs rotate so that no call
finds its own in the L2 cache. --tactics: each of the product's.
"""

from __future__ import annotations

import argparse

import torch

from tests.gpu.bench_kernels import copies, graph_us, randn
from tests.gpu.harness import turns
from tests.gpu.kernels import Bound, constants, library_file, native

HEADS, HEAD = 12, 64
HIDDEN = HEADS * HEAD
SIZES = ((1, 128), (8, 128), (32, 128), (8, 512), (32, 512), (2, 4096))
WINDOWS = (-1, 64)
PRODUCT, ROTARY, ATTENTION, TABLES = "FusedGemm", "FusedGemmRotary", "FusedAttentionVariant", "RotaryTables"


def measure(batch: int, sequence: int, window: int, every: bool) -> None:
    rows, wide = batch * sequence, 3 * HIDDEN
    cos, sin = turns(sequence, HEAD // 2, torch.float16)
    settings = [HEADS, HEADS, HEAD**-0.5, "halves", 1e-6, window, window, 0, 0, "as_others"]
    sets = []
    for _ in range(copies(2 * rows * HIDDEN, 2 * wide * HIDDEN, 2 * rows * wide)):
        x, weight = randn(batch, sequence, HIDDEN), randn(wide, HIDDEN, gain=HIDDEN**-0.5)
        sets.append((x, weight, x.new_empty(batch, sequence, wide), torch.empty_like(x)))

    def product(one, rotates, tactic=-1):
        x, weight, qkv, _ = one
        inputs = [x, weight, cos, sin] if rotates else [x, weight]
        attributes = [HEADS, HEADS, "halves"] if rotates else ["none"]
        given = constants([None if t is cos or t is sin else t for t in inputs])
        return Bound(ROTARY if rotates else PRODUCT, inputs, [qkv], attributes, tactic, given)

    def attention(one, rotates):
        _, _, qkv, y = one
        tables = [cos, sin] if rotates else [None, None]
        return Bound(ATTENTION, [qkv, None, None, *tables, *[None] * 4], [y], settings)

    def together(in_product, in_attention):
        calls = []
        for one in sets:
            calls += [product(one, in_product).run, attention(one, in_attention).run]
        return 2 * graph_us(calls)

    def name(op, bound, tactic=-1):
        return native.tactic_name(op, bound.call, tactic, library_file())

    cells = [f"attention rotates {together(False, True):.2f}", f"the product does {together(True, False):.2f}"]
    cells += [f"neither {together(False, False):.2f}"]
    tokens, like = torch.zeros(batch, sequence, dtype=torch.int64, device="cuda"), cos.new_zeros(())
    frequencies = (10000.0 ** -(torch.arange(HEAD // 2) / (HEAD // 2))).cuda()
    tables = Bound(TABLES, [tokens, frequencies, like], [cos.clone(), sin.clone()], constant_inputs=0b110).run
    cells += [f"tables {graph_us([tables] * len(sets)):.2f} alone"]
    one = [call for s in sets for call in (product(s, True).run, tables)]
    cells += [f"behind the product {2 * graph_us(one) - graph_us(one[::2]):.2f}"]
    alone = [graph_us([product(one, rotates).run for one in sets]) for rotates in (False, True)]
    cells += [f"products alone {alone[0]:.2f} and {alone[1]:.2f}"]
    cells += [name(ROTARY, product(sets[0], True)), name(ATTENTION, attention(sets[0], True))]
    print(f"{batch}x{sequence} window {window}: {'; '.join(cells)}", flush=True)
    for tactic in range(product(sets[0], True).tactics()) if every else ():
        label = name(ROTARY, product(sets[0], True), tactic)
        if not label.startswith("simt"):
            print(f"  {label} {graph_us([product(one, True, tactic).run for one in sets]):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tactics", action="store_true", help="each of the product's tactics")
    every = parser.parse_args().tactics
    for batch, sequence in SIZES:
        for window in WINDOWS:
            measure(batch, sequence, window, every and window < 0)


if __name__ == "__main__":
    main()
