"""Attention by each tactic: first held against float64, then microseconds beside FlashAttention 2.

    python -m tests.gpu.bench_attention [--seconds 15] [--sizes 1x128x12x64,16x512x12x64] [--cached]

Random problems, padded, packed and of every variant, run by every tactic in float32 (exact and by TF32), float16 and
bfloat16 for that many seconds. Then a line for each size: PyTorch's flash backend without bias and mask, given a head's
rows one after the other and, in parentheses, as views of one product's rows, which is where our tactics read them, with
bias and mask. Each run has tensors of its own, more than the L2 cache holds; --cached: all have the same ones, which
stay there as what a layer's product has just written. Exact float32's largest error stands beside that of float32
arithmetic (simt). Exits with 1 where an error is above the tolerance.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertfuse.qualify.tolerances import TOLERANCES
from tests.gpu import reference
from tests.gpu.bench_kernels import copies, graph_us
from tests.gpu.kernels import Bound, KernelError, constants, library_file, native

SIZES = "1x128x12x64,8x128x12x64,32x128x12x64,32x384x12x64,16x512x12x64,16x512x8x128"
KINDS = ("tf32", "float32", "float16", "bfloat16")


def _element(kind: str) -> torch.dtype:
    return torch.float32 if kind == "tf32" else getattr(torch, kind)


def _flags(kind: str) -> int:
    return native.ALLOW_TF32 if kind == "tf32" else 0


def _error(y: torch.Tensor, expected: torch.Tensor, op: str, kind: str) -> float:
    """The largest share of what the table allows."""
    tolerance = TOLERANCES[op, kind]
    if not torch.isfinite(y).all():
        return float("inf")
    return ((y.double() - expected).abs() / (tolerance.atol + tolerance.rtol * expected.abs())).max().item()


def _draw(rng: random.Random, kind: str):
    """(op, inputs, attributes, expected) of a random problem."""
    heads, size = rng.randint(1, 4), 8 * rng.randint(1, 32) if rng.random() < 0.5 else rng.choice((32, 64, 96, 128))
    batch, sequence = rng.randint(1, 5), rng.choice((rng.randint(1, 130), rng.randint(1, 700)))
    kv_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    kind_of = rng.choice(("padded", "packed", "variant"))
    kv_heads = kv_heads if kind_of == "variant" else heads
    element, columns = _element(kind), (heads + 2 * kv_heads) * size
    qkv = torch.randn(batch, sequence, columns, device="cuda").to(element)
    bias = (0.3 * torch.randn(columns, device="cuda")).to(element)
    lengths = [sequence, *(rng.randint(0, sequence) for _ in range(batch - 1))]
    rng.shuffle(lengths)
    places = torch.arange(sequence, device="cuda")
    mask = (places < torch.tensor(lengths, device="cuda")[:, None]) & (torch.rand(batch, sequence, device="cuda") < 0.9)
    mask = rng.choice((None, mask.long(), mask.int()))
    scale = size**-0.5
    if kind_of == "padded":
        return (
            "FusedAttention",
            [qkv, bias, mask],
            [heads, scale],
            reference.fused_attention(qkv, bias, mask, heads, scale),
        )
    if kind_of == "packed":
        ends = [0]
        for length in lengths:
            ends.append(ends[-1] + length)
        offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
        flat = qkv.view(1, -1, columns)
        parts = [
            reference.fused_attention(flat[:, a:b], bias, None, heads, scale)
            for a, b in itertools.pairwise(ends)
            if a < b
        ]
        return "FusedAttention", [qkv, bias, None, offsets], [heads, scale], torch.cat(parts, 1)
    window = [rng.choice((-1, 0, 1, 40, 64, 100)) for _ in range(2)]
    distances = None
    if rng.random() < 0.5:
        distances = torch.randn(1, rng.choice((1, heads)), rng.randint(1, 2 * sequence), device="cuda").to(element)
    inputs = [qkv, bias if rng.random() < 0.8 else None, mask, None, None, None, None, distances, None]
    attributes = [heads, kv_heads, scale, "halves", 1e-6, *window, rng.randint(0, sequence), 0, "as_others"]
    return "FusedAttentionVariant", inputs, attributes, reference.fused_attention_variant(*inputs, *attributes)


def check(seconds: float, seed: int) -> bool:
    rng, end = random.Random(seed), time.monotonic() + seconds
    torch.manual_seed(seed)
    worst: dict[tuple[str, str], float] = {}
    count, good = 0, True
    while time.monotonic() < end:
        kind = KINDS[count % len(KINDS)]
        count += 1
        op, inputs, attributes, expected = _draw(rng, kind)
        heads, (batch, sequence) = attributes[0], inputs[0].shape[:2]
        width = expected.shape[-1]
        probe = torch.empty(batch, sequence, width, dtype=inputs[0].dtype, device="cuda")
        tactics = Bound(op, inputs, [probe], attributes, flags=_flags(kind)).tactics()
        for tactic in range(tactics):
            y = torch.full_like(probe, float("nan"))
            bound = Bound(op, inputs, [y], attributes, tactic, constants(inputs), _flags(kind))
            name = native.tactic_name(op, bound.call, tactic, library_file())
            try:
                bound.run()
            except KernelError as error:
                good = False
                print(f"WRONG {kind} {name}: {error}; {op} {tuple(inputs[0].shape)} heads {heads} {attributes}")
                continue
            flat = y.view(1, -1, width)
            real = flat[:, : expected.shape[1]] if len(inputs) == 4 else y
            error = _error(real, expected, op, kind) if real.numel() else 0.0
            key = (kind, name.split()[0])
            worst[key] = max(worst.get(key, 0.0), error)
            if error > 1 or not flat[:, real.numel() // width :].isnan().all():
                good = False
                print(f"WRONG {kind} {name}: {error:.2f}; {op} {tuple(inputs[0].shape)} heads {heads} {attributes}")
    print(f"seed {seed}: {count} problems by every tactic; the worst errors, of what is allowed:")
    print("  " + ", ".join(f"{kind} {name} {error:.2f}" for (kind, name), error in sorted(worst.items())))
    return good


CACHED_RUNS = 20


def _sets(batch: int, sequence: int, heads: int, size: int, element: torch.dtype, cached: bool):
    columns = 3 * heads * size
    count = 1 if cached else copies(torch.finfo(element).bits // 8 * batch * sequence * columns * 4 // 3)
    for _ in range(count):
        qkv = torch.randn(batch, sequence, columns, device="cuda").to(element)
        bias = torch.randn(columns, device="cuda").to(element)
        mask = torch.ones(batch, sequence, dtype=torch.int64, device="cuda")
        yield [qkv, bias, mask], torch.empty(batch, sequence, heads * size, dtype=element, device="cuda")


def _us(runs: list, cached: bool) -> float:
    return graph_us(runs * (CACHED_RUNS if cached else 1), repeats=3, batches=5)


def flash(batch: int, sequence: int, heads: int, size: int, views: bool = False, cached: bool = False) -> float:
    """Microseconds; with `views` of queries, keys and values side by side in rows, as a model's product leaves them."""
    count = 1 if cached else copies(8 * batch * heads * sequence * size)
    if views:
        rows = [torch.randn(batch, sequence, 3, heads, size, device="cuda").half() for _ in range(count)]
        sets = [[part.transpose(1, 2) for part in one.unbind(2)] for one in rows]
    else:
        shape = (batch, heads, sequence, size)
        sets = [[torch.randn(*shape, device="cuda").half() for _ in range(3)] for _ in range(count)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return _us([lambda s=s: torch.nn.functional.scaled_dot_product_attention(*s) for s in sets], cached)


def measure(size: str, cached: bool) -> str:
    batch, sequence, heads, head_size = map(int, size.split("x"))
    attributes = [heads, head_size**-0.5]
    flash_us = [flash(batch, sequence, heads, head_size, views, cached) for views in (False, True)]
    line = f"{size}: flash {flash_us[0]:.2f} ({flash_us[1]:.2f})"
    for kind in ("float16", "tf32", "float32"):
        sets = list(_sets(batch, sequence, heads, head_size, _element(kind), cached))
        (inputs, y), flags = sets[0], _flags(kind)
        first = Bound("FusedAttention", inputs, [y], attributes, flags=flags)
        chosen = native.tactic_name("FusedAttention", first.call, -1, library_file())
        line += f"\n    {kind}:"
        errors = {}
        expected = reference.fused_attention(*inputs, *attributes) if kind == "float32" and batch <= 8 else None
        for tactic in range(first.tactics()):
            name = native.tactic_name("FusedAttention", first.call, tactic, library_file())
            if name == "simt" and kind != "float32":
                continue
            runs = [
                Bound("FusedAttention", given, [to], attributes, tactic, constants(given), flags).run
                for given, to in sets
            ]
            line += f" {name}{'*' if name == chosen else ''} {_us(runs, cached):.2f},"
            if expected is not None:
                errors[name] = (y.double() - expected).abs().max().item()
        if errors:
            line += " largest error " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of checks")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--sizes", default=SIZES, help="batch x sequence x heads x head size")
    parser.add_argument("--cached", action="store_true", help="the same tensors in every run")
    options = parser.parse_args()
    good = check(options.seconds, options.seed)
    print("microseconds; * is chosen without tuning")
    for size in options.sizes.split(","):
        print(measure(size, options.cached), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
