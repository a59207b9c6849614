"""Every tactic of an op on problems drawn at random, against float64: a batch for each process, which may crash.

    python tests/gpu/random_problems.py OP DTYPE --seed 1 --count 20 [--only 7]

Problem i of a seed is the same whatever the others are: --only repeats one. Each is printed before it runs, so that
the last line of a process that died names what killed it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

GEMMS = ("FusedGemm", "FusedGemmGelu", "FusedGemmGeluLayerNorm", "FusedGemmLayerNorm")
OPS = (*GEMMS, "FusedAttention", "AddQKVBias", "EmbedLayerNorm")
# What a kernel's block or cluster holds a row of, and what small encoders have for a hidden size.
HIDDEN_SIZES = (32, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 1280)


def log_uniform(rng, low, high):
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def draw_size(rng, low, high):
    """A size that is seldom a round number: mostly a multiple of 8, which the tensor cores need."""
    size = log_uniform(rng, low, high)
    return size if rng.random() < 0.2 else max(low, size // 8 * 8)


def draw_hidden_size(rng):
    return rng.choice(HIDDEN_SIZES) if rng.random() < 0.7 else draw_size(rng, 8, 1280)


def draw(op, rng):
    """A problem's sizes by name."""
    if op in GEMMS:
        return {"m": log_uniform(rng, 1, 9000), "n": draw_hidden_size(rng), "k": draw_size(rng, 8, 4096)}
    if op == "EmbedLayerNorm":
        return {"batch": log_uniform(rng, 1, 200), "sequence": log_uniform(rng, 1, 200), "n": draw_hidden_size(rng)}
    head_size = rng.choice((32, 64, 128)) if rng.random() < 0.7 else log_uniform(rng, 8, 160)
    sequence = log_uniform(rng, 1, 700)
    # Scores in float64 are what takes memory.
    heads = rng.randint(1, 16)
    batch = log_uniform(rng, 1, max(1, min(300, 20_000_000 // (heads * sequence * max(sequence, head_size)))))
    return {"batch": batch, "sequence": sequence, "heads": heads, "head_size": head_size}


def scale_of_norm(rows):
    """Of each row, how much LayerNorm enlarges errors beyond the tolerances' table, which is for deviations of 0.7."""
    return (0.7 / rows.std(dim=-1, correction=0, keepdim=True)).clamp(min=1.0)


def check_gemm(op, dtype, m, n, k, rng):
    import reference
    from harness import EPSILON, all_tactics, gemm_inputs, norm_inputs

    x, weight, bias = gemm_inputs(m, n, k, dtype)
    gelu = [rng.choice(("none", "tanh"))] * ("Gelu" in op)
    if op == "FusedGemm":
        inputs = (x, weight, rng.choice((bias, None)))
        return all_tactics(op, inputs, (m, n), dtype, [], reference.fused_gemm(*inputs))
    if op == "FusedGemmGelu":
        inputs = (x, weight, bias)
        return all_tactics(op, inputs, (m, n), dtype, gelu, reference.fused_gemm_gelu(*inputs, *gelu))
    norm = norm_inputs(m, n, dtype, op=op)
    if op == "FusedGemmLayerNorm":
        rows = reference.fused_gemm(x, weight, bias) + norm[0].double()
        expected = reference.fused_gemm_layer_norm(x, weight, bias, *norm, EPSILON)
    else:
        norm = (*norm[:2], rng.choice((norm[2], None)))
        rows = reference.fused_gemm_gelu(x, weight, bias, *gelu)
        rows = rows if norm[2] is None else rows + norm[2].double()
        expected = reference.fused_gemm_gelu_layer_norm(x, weight, bias, *norm, EPSILON, *gelu)
    inputs = (x, weight, bias, *norm)
    return all_tactics(op, inputs, (m, n), dtype, [EPSILON, *gelu], expected, scale_of_norm(rows))


def check_attention(op, dtype, batch, sequence, heads, head_size, rng):
    import reference
    import torch
    from harness import all_tactics, check, poisoned, randn, run

    hidden = heads * head_size
    qkv, bias = randn(batch, sequence, 3 * hidden, dtype=dtype), randn(3 * hidden, dtype=dtype)
    if op == "AddQKVBias":
        outputs = [poisoned(batch, heads, sequence, head_size, dtype=dtype) for _ in range(3)]
        run(op, [qkv, bias], outputs, [heads])
        return check(op, outputs, reference.add_qkv_bias(qkv, bias, heads))
    mask = None
    if rng.random() < 0.7:
        seen = torch.rand(batch, sequence, device="cuda") < rng.uniform(0.1, 1.0)
        mask = seen.to(rng.choice((torch.int32, torch.int64)))
    scale = head_size**-0.5
    expected = reference.fused_attention(qkv, bias, mask, heads, scale)
    # The largest of N errors grows as the root of ln N; the table is right for a million.
    many = max(1.0, math.sqrt(math.log(max(2, expected.numel())) / math.log(1e6)))
    return all_tactics(op, [qkv, bias, mask], (batch, sequence, hidden), dtype, [heads, scale], expected, many)


def check_embedding(dtype, batch, sequence, n, rng):
    import reference
    import torch
    from harness import EPSILON, check, near_one, poisoned, randint, randn, run

    index = rng.choice((torch.int32, torch.int64))
    ids = randint(1000, (batch, sequence), index)
    tables = [randn(1000, n, dtype=dtype), randn(512, n, dtype=dtype)]
    norm = [near_one(n, dtype), randn(n, dtype=dtype)]
    more = [randint(2, (batch, sequence), index), randn(2, n, dtype=dtype), randint(512, (batch, sequence), index)]
    inputs = [ids, *tables, *norm, *rng.choice((more, [None, None, None]))]
    y = poisoned(batch, sequence, n, dtype=dtype)
    run("EmbedLayerNorm", inputs, [y], [EPSILON])
    plain = [torch.ones_like(norm[0]), torch.zeros_like(norm[1])]
    # LayerNorm with a large epsilon divides by its root: what it normalises, up to a shift of each row.
    rows = reference.embed_layer_norm(*inputs[:3], *plain, *inputs[5:], 1e12) * 1e6
    check("EmbedLayerNorm", [y], [reference.embed_layer_norm(*inputs, EPSILON)], scale_of_norm(rows))


def run_problem(op, dtype_name, seed, index):
    import torch

    rng = random.Random(f"{seed} {op} {dtype_name} {index}")
    torch.manual_seed(rng.getrandbits(32))
    sizes = draw(op, rng)
    print(
        f"{op} {dtype_name} {' '.join(f'{k} {v}' for k, v in sizes.items())}: --seed {seed} --only {index}", flush=True
    )
    dtype = getattr(torch, dtype_name)
    if op in GEMMS:
        check_gemm(op, dtype, **sizes, rng=rng)
    elif op == "EmbedLayerNorm":
        check_embedding(dtype, **sizes, rng=rng)
    else:
        check_attention(op, dtype, **sizes, rng=rng)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=OPS)
    parser.add_argument("dtype", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--only", type=int, help="run this one of the seed's problems alone")
    options = parser.parse_args()
    for index in range(options.count) if options.only is None else [options.only]:
        run_problem(options.op, options.dtype, options.seed, index)
    print("all right", flush=True)


if __name__ == "__main__":
    main()
