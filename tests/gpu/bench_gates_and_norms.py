"""Gated products and residual norms of ModernBERT-base and Nomic against cuBLAS's bare product, one GPU, CUDA graphs.

    python -m tests.gpu.bench_gates_and_norms --rows 128,1024,4096,16384 [--all]

Microseconds of the tactic that is chosen, and with --all of the best one; inputs rotate so that no call finds its own
in the L2 cache. `parts` is cuBLAS's product and what PyTorch makes of the rest, each in a kernel of its own.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F

from tests.gpu.bench_kernels import copies, graph_us, randn
from tests.gpu.kernels import Bound, constants, library_file, native

# (model, op, columns of y, k)
LAYERS = (
    ("ModernBERT", "FusedGatedGemm", 1152, 768),
    ("ModernBERT", "FusedGemmResidualNorm", 768, 768),
    ("ModernBERT", "FusedGemmResidualNorm", 768, 1152),
    ("Nomic", "FusedGatedGemm", 3072, 768),
    ("Nomic", "FusedGemmResidualNorm", 768, 3072),
)


def measure(model: str, op: str, rows: int, n: int, k: int, every: bool) -> dict[str, object]:
    gated = op == "FusedGatedGemm"
    wide = 2 * n if gated else n
    count = copies(2 * rows * k, 2 * wide * k, 2 * rows * wide)
    sets = []
    for _ in range(count):
        x, weight = randn(rows, k), randn(wide, k, gain=k**-0.5)
        inputs = [x, weight] if gated else [x, weight, randn(rows, n), randn(n), None, None]
        product, outputs = x.new_empty(rows, wide), [x.new_empty(rows, n) for _ in range(1 if gated else 2)]
        sets.append((inputs, outputs, product))
    attributes = ["gelu" if model == "ModernBERT" else "silu"] if gated else [1e-5, "layer"]

    def parts(s):
        inputs, _, product = s
        torch.mm(inputs[0], inputs[1].t(), out=product)
        if gated:
            gate, up = product.chunk(2, -1)
            return (F.gelu if model == "ModernBERT" else F.silu)(gate) * up
        total = product + inputs[2]
        return F.layer_norm(total, (n,), inputs[3]), total

    def time(tactic):
        return graph_us([Bound(op, i, o, attributes, tactic, constants(i)).run for i, o, _ in sets])

    probe = Bound(op, sets[0][0], sets[0][1], attributes, constant_inputs=constants(sets[0][0]))
    names = [native.tactic_name(op, probe.call, i, library_file()) for i in range(-1, probe.tactics())]
    row: dict[str, object] = {"model": model, "op": op, "m": rows, "n": n, "k": k, "chosen": names[0]}
    row["bare"] = graph_us([lambda s=s: torch.mm(s[0][0], s[0][1].t(), out=s[2]) for s in sets])
    row["parts"] = graph_us([lambda s=s: parts(s) for s in sets])
    row["ours"] = time(-1)
    if every:
        row["best_us"], row["best"] = min(
            (time(i), names[i + 1]) for i in range(probe.tactics()) if "simt" not in names[i + 1]
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="128,1024,4096,16384")
    parser.add_argument("--all", action="store_true", help="time every tactic, not only the chosen one")
    options = parser.parse_args()
    native.load_cublaslt()
    rows = []
    for m in map(int, options.rows.split(",")):
        for model, op, n, k in LAYERS:
            rows.append(row := measure(model, op, m, n, k, options.all))
            ratio = row["ours"] / row["bare"]
            line = f"{model:10s} {op:22s} {m:6d} {n:5d} {k:5d}  bare {row['bare']:8.2f}  parts {row['parts']:8.2f}"
            line += f"  ours {row['ours']:8.2f}  ratio {ratio:5.2f}  {row['chosen']}"
            print(line + (f"  | best {row['best_us']:.2f} {row['best']}" if options.all else ""), flush=True)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "bench_gates_and_norms.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
