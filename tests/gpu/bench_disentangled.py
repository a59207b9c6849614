"""Disentangled attention: random problems by every tactic against float64, and its microseconds.

    python -m tests.gpu.bench_disentangled [--count 60] [--seed 1]

Beside it attention of the same sizes without vectors by distance, by the same kernel. `error` is in parts of what is
allowed.
"""

from __future__ import annotations

import argparse
import itertools
import random

import torch

from bertfuse.qualify.tolerances import TOLERANCES
from tests.gpu import reference
from tests.gpu.bench_kernels import graph_us
from tests.gpu.harness import poisoned, randint, randn
from tests.gpu.kernels import Bound, library_file, native

OP = "FusedAttentionVariant"
DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
SIZES = ((1, 128), (32, 128), (8, 512), (32, 512))


def error_of(y: torch.Tensor, expected: torch.Tensor, dtype: str) -> float:
    tolerance = TOLERANCES[OP, dtype]
    allowed = tolerance.atol + tolerance.rtol * expected.abs()
    return ((y.double() - expected).abs() / allowed).nan_to_num(torch.inf).max().item()


def run(inputs: list, shape: tuple[int, ...], attributes: list, dtype: torch.dtype) -> list[tuple[str, torch.Tensor]]:
    """The result of each tactic."""
    y = poisoned(*shape, dtype=dtype)
    probe, found = Bound(OP, inputs, [y], attributes), []
    for tactic in range(probe.tactics()):
        y.fill_(float("nan"))
        Bound(OP, inputs, [y], attributes, tactic).run()
        torch.cuda.synchronize()
        found.append((native.tactic_name(OP, probe.call, tactic, library_file()), y.clone()))
    return found


def token_index(rng: random.Random, places: list[list[int]], batch: int, sequence: int) -> torch.Tensor:
    """Where each packed row's token stands in the padded batch, and behind the real rows anything."""
    index = [row * sequence + place for row, own in enumerate(places) for place in own]
    index += [rng.randint(-(1 << 31), (1 << 31) - 1) for _ in range(batch * sequence - len(index))]
    return torch.tensor(index, dtype=torch.int32, device="cuda").view(batch, sequence)


def expected_at(
    part: torch.Tensor, own: list[int], bias: torch.Tensor | None, positions: torch.Tensor, attributes: list
) -> torch.Tensor:
    """Of one sequence's tokens at these places: those of a padded one whose mask hides the gaps."""
    padded = part.new_zeros(1, own[-1] + 1, part.shape[-1])
    padded[:, own] = part
    mask = torch.zeros(1, own[-1] + 1, dtype=torch.int32, device=part.device)
    mask[:, own] = 1
    return reference.fused_attention_variant(padded, bias, mask, *[None] * 5, positions, *attributes)[:, own]


def check(rng: random.Random, number: int) -> tuple[float, str]:
    """The worst error of one random problem, padded or packed, its tokens beside each other or not, and what it was."""
    dtype = rng.choice(list(DTYPES))
    kv_heads, size = rng.randint(1, 3), rng.choice((8, 24, 32, 64, 64, 64, 80, 128))
    heads, batch, sequence = kv_heads * rng.randint(1, 2), rng.randint(1, 4), rng.randint(1, rng.choice((70, 300)))
    rows = rng.choice((1, 2, 31, 2 * sequence + 1, 1025))
    left, window = rng.choice((0, rows // 2, rows)), [rng.choice((-1, -1, 0, 17, 64)) for _ in range(2)]
    columns = (heads + 2 * kv_heads) * size
    qkv, bias = (
        randn(batch, sequence, columns, dtype=dtype),
        randn(columns, dtype=dtype) if rng.random() < 0.8 else None,
    )
    positions = 0.5 * randn(2, heads, rows, size, dtype=dtype)
    mask = randint(2, (batch, sequence), torch.int32) if rng.random() < 0.7 else None
    attributes = [heads, kv_heads, size**-0.5, "halves", 1e-6, *window, 0, left, rng.choice(("as_others", "alike"))]
    by_place = [None] * 5
    text = f"{DTYPES[dtype]} {batch}x{sequence} {heads}/{kv_heads} of {size}, {rows} rows left {left} {attributes[5:]}"
    if rng.random() < 0.3:
        lengths = [rng.randint(0, sequence) for _ in range(batch)]
        text += f" packed {lengths}"
        ends = [sum(lengths[:i]) for i in range(batch + 1)]
        offsets, flat = torch.tensor(ends, dtype=torch.int32, device="cuda"), qkv.view(1, -1, columns)
        places = [list(range(length)) for length in lengths]
        inputs = [qkv, bias, None, *by_place, positions, offsets]
        if rng.random() < 0.5:
            text += " with gaps"
            places = [sorted(rng.sample(range(sequence), length)) for length in lengths]
            inputs.append(token_index(rng, places, batch, sequence))
        parts = [(flat[:, a:b], own) for (a, b), own in zip(itertools.pairwise(ends), places, strict=True) if a < b]
        if not parts:
            return 0.0, text
        expected = torch.cat([expected_at(part, own, bias, positions, attributes) for part, own in parts], 1)
    else:
        expected = reference.fused_attention_variant(qkv, bias, mask, *by_place, positions, *attributes)
        inputs = [qkv, bias, mask, *by_place, positions]
    found = run(inputs, (batch, sequence, heads * size), attributes, dtype)
    errors = {
        label: error_of(y.view(1, batch * sequence, -1)[:, : expected.shape[1]], expected, DTYPES[dtype])
        if "packed" in text
        else error_of(y, expected, DTYPES[dtype])
        for label, y in found
    }
    worst = max(errors, key=errors.get)
    return errors[worst], f"{number}: {text}: {worst} of {list(errors)}"


def measure(batch: int, sequence: int, heads: int = 12, size: int = 64, rows: int = 1025) -> None:
    qkv, bias = (
        randn(batch, sequence, 3 * heads * size, dtype=torch.float16),
        randn(3 * heads * size, dtype=torch.float16),
    )
    positions = 0.5 * randn(2, heads, rows, size, dtype=torch.float16)
    mask = torch.ones(batch, sequence, dtype=torch.int64, device="cuda")
    mask[:, -sequence // 4 :] = torch.arange(batch, device="cuda")[:, None] % 2
    y, cells = poisoned(batch, sequence, heads * size, dtype=torch.float16), []
    for label, given, hidden in (("plain", None, "as_others"), ("with positions", positions, "as_others"),
                                 ("with positions, hidden alike", positions, "alike")):  # fmt: skip
        inputs = [qkv, bias, mask, *[None] * 5, given]
        attributes = [heads, heads, (3 * size) ** -0.5, "halves", 1e-6, -1, 1 << 30, 0, rows // 2, hidden]
        probe = Bound(OP, inputs, [y], attributes)
        for tactic in range(probe.tactics()):
            name = native.tactic_name(OP, probe.call, tactic, library_file())
            if name.startswith("mma 64"):
                bound = Bound(OP, inputs, [y], attributes, tactic)
                cells.append(f"{label} {name} {graph_us([bound.run] * 20):.2f}")
    print(f"{batch}x{sequence} us: {'; '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    found = [check(rng, number) for number in range(options.count)]
    print(
        f"{len(found)} problems, the worst errors:",
        *(f"\n  {e:.3f} {text}" for e, text in sorted(found)[-4:]),
        flush=True,
    )
    for batch, sequence in SIZES:
        measure(batch, sequence)


if __name__ == "__main__":
    main()
