"""compute-sanitizer over every kernel, tactic and dtype at small odd sizes: memcheck, racecheck, initcheck, synccheck.

    python tests/gpu/sanitize.py [--tools memcheck,racecheck] [--ops FusedAttention] [--dtypes float16]
    python tests/gpu/sanitize.py --plugins

The second form does the same with the tests of the TensorRT plugins. Give it the GPU for itself: beside other processes
synccheck ran out of memory for its books, and then does not follow a launch, which counts as an error here. Needs
compute-sanitizer on the path (it comes with the CUDA toolkit), PyTorch and the library, as the GPU tests do. Prints a
line for each tool and exits with 1 where one found something. A tool that cannot run here fails, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
GEMMS = ("FusedGemm", "FusedGemmGelu", "FusedGemmGeluLayerNorm", "FusedGemmLayerNorm")
OPS = ("AddQKVBias", "EmbedLayerNorm", "FusedAttention", *GEMMS)
DTYPES = ("float32", "float16", "bfloat16")
# (rows, n, k): a part of a tile in every direction; whole rows in one cluster and several of them; no alignment at all;
# more of the largest tiles than a GPU has multiprocessors: Hopper's blocks then take several each.
SIZES = ((131, 384, 136), (67, 768, 200), (13, 37, 29), (6400, 768, 136))
# (batch, sequence, heads, head size): parts of tiles, several tiles, a size without tensor cores, and more tiles than a
# GPU has multiprocessors: Hopper's blocks then take several each.
ATTENTIONS = ((2, 77, 2, 64), (1, 150, 1, 128), (2, 33, 3, 32), (1, 19, 2, 24), (100, 77, 3, 64), (70, 150, 3, 32))
PLUGIN_TESTS = "small or graph or contexts or workspace"  # the others are large, or fail on purpose
FOUND = 9


def work(ops, dtypes):
    """Launches everything once, on this process's GPU."""
    import torch
    from harness import EPSILON, gemm_inputs, norm_inputs, poisoned, randn
    from kernels import Bound, native

    launches = 0

    def every_tactic(op, inputs, shapes, dtype, attributes, **fields):
        nonlocal launches
        outputs = [poisoned(*shape, dtype=dtype) for shape in shapes]
        tactics = Bound(op, inputs, outputs, attributes, **fields).tactics()
        for tactic in range(-1, tactics if tactics > 1 else 0):
            Bound(op, inputs, outputs, attributes, tactic, **fields).run()
            launches += 1
        torch.cuda.synchronize()

    for dtype in (getattr(torch, name) for name in dtypes):
        for op in (name for name in ops if name in GEMMS):
            for m, n, k in SIZES:
                inputs = [*gemm_inputs(m, n, k, dtype), *norm_inputs(m, n, dtype, op=op)]
                inputs = inputs if "LayerNorm" in op else inputs[:3]
                epsilon = [EPSILON] * ("LayerNorm" in op)
                if op == "FusedGemm":  # its bias is optional
                    every_tactic(op, [*inputs[:2], None], [(m, n)], dtype, [])
                for gelu in [["none"], ["tanh"]] if "Gelu" in op else [[]]:
                    for flags in (0, native.ALLOW_TF32) if dtype == torch.float32 else (0,):
                        every_tactic(op, inputs, [(m, n)], dtype, [*epsilon, *gelu], flags=flags)
        for batch, sequence, heads, size in ATTENTIONS:
            qkv = randn(batch, sequence, 3 * heads * size, dtype=dtype)
            bias = randn(3 * heads * size, dtype=dtype)
            if "FusedAttention" in ops:
                for index in (None, torch.int32, torch.int64):
                    mask = None
                    if index is not None:
                        mask = (torch.rand(batch, sequence, device="cuda") < 0.7).to(index)
                    shapes = [(batch, sequence, heads * size)]
                    every_tactic("FusedAttention", [qkv, bias, mask], shapes, dtype, [heads, size**-0.5])
            if "AddQKVBias" in ops:
                every_tactic("AddQKVBias", [qkv, bias], [(batch, heads, sequence, size)] * 3, dtype, [heads])
        for columns in (77, 768) if "EmbedLayerNorm" in ops else ():
            for index in (torch.int32, torch.int64):
                ids = torch.randint(0, 50, (3, 19), device="cuda").to(index)
                tables = [randn(count, columns, dtype=dtype) for count in (50, 50, 50)]
                norm = [randn(columns, dtype=dtype) for _ in range(2)]
                inputs = [ids, *tables[:2], *norm, ids, tables[2], ids]
                every_tactic("EmbedLayerNorm", inputs, [(3, 19, columns)], dtype, [EPSILON])
    print(f"launches: {launches}")


def sanitize(tool, options):
    """One tool over everything; a line with what it found. Returns whether it was nothing."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    if tool != "initcheck":  # which has to see who writes the inputs
        command += ["--kernel-name", "kernel_substring=bertfuse"]
    if tool == "synccheck":  # by default it follows fewer barriers than a grid of ours has
        command += ["--num-cuda-barriers", "200000"]
    if options.plugins:
        file = Path(__file__).with_name("test_tensorrt_plugins.py")
        command += [sys.executable, "-m", "pytest", "-q", str(file), "-k", PLUGIN_TESTS]
    else:
        command += [sys.executable, __file__, "--inside", "--ops", options.ops, "--dtypes", options.dtypes]
    # Without its cache PyTorch gives every tensor an allocation of its own, whose end memcheck knows.
    ran = subprocess.run(
        command, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, capture_output=True, text=True
    )
    summary = re.findall(r"^========= (?:ERROR|RACECHECK) SUMMARY: (.*)$", ran.stdout, re.MULTILINE)
    done = re.findall(r"^launches: \d+$|^\d+ passed", ran.stdout, re.MULTILINE)
    clean = ran.returncode == 0 and bool(summary) and bool(done) and "Internal Sanitizer Error" not in ran.stdout
    print(f"{tool:10s} {done[0] if done else 'did not end'}: {summary[0] if summary else 'no summary'}")
    if not clean:
        print("\n".join((ran.stdout + ran.stderr).splitlines()[:80]))
    return clean


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--plugins", action="store_true", help="the TensorRT plugins' tests in place of the ops")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    if options.inside:
        return work(options.ops.split(","), options.dtypes.split(","))
    if shutil.which("compute-sanitizer") is None:
        sys.exit("compute-sanitizer is not on the path; it comes with the CUDA toolkit")
    results = [sanitize(tool, options) for tool in options.tools.split(",")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
