"""Ours against cuBLASLt for each product of a model: microseconds of a whole op, by its best tactic of each backend.

    python -m tests.gpu.bench_products --hidden 768 --rows 128,512,1024,4096 --dtypes float32,tf32,float16,bfloat16

Each tactic is measured through the library (bertfuse_tune: CUDA graphs, tensors that are not in the cache). A line has
PyTorch's product alone (bare), the best tactic of our kernels and of cuBLASLt, their ratio (above 1: cuBLASLt is
faster), and what is chosen without a tuning file. With OUT set to a folder the rows go to bench_products.json there.

--cutlass LIBRARY adds the fastest CUTLASS kernel for mma.sync of float16 products: a library with `int count()` and
`int product(which, x, weight, y, m, n, k, stream)`, which returns 0 where that kernel takes the product. It has no
epilogue, and is captured in one graph over tensors that are not in the cache, as ours are. For the tiles of mma the
library measured is to have code of 8.0 alone (BERTFUSE_CUDA_ARCHITECTURES=80-virtual): beside wgmma one is listed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from pathlib import Path

import torch

from tests.gpu.bench_kernels import copies, graph_us
from tests.gpu.harness import EPSILON, gemm_inputs, norm_inputs, poisoned
from tests.gpu.kernels import Bound, constants, library_file, native
from tests.gpu.packed import count_of, expect


def layer_products(hidden: int) -> list[tuple[str, int, int]]:
    """(op, n, k) of an encoder layer."""
    return [
        ("FusedGemm", 3 * hidden, hidden),
        ("FusedGemmLayerNorm", hidden, hidden),
        ("FusedGemmGelu", 4 * hidden, hidden),
        ("FusedGemmLayerNorm", hidden, 4 * hidden),
    ]


def products(hidden: int) -> list[tuple[str, int, int]]:
    """Those of a layer, and that of a masked-language-model head."""
    return [*layer_products(hidden), ("FusedGemmGeluLayerNorm", hidden, hidden)]


def bare(m: int, n: int, k: int, dtype: torch.dtype) -> float:
    size = torch.finfo(dtype).bits // 8
    count = copies(size * m * k, size * n * k, size * m * n)
    sets = [(*gemm_inputs(m, n, k, dtype)[:2], torch.empty(m, n, dtype=dtype, device="cuda")) for _ in range(count)]
    return graph_us([lambda s=s: torch.mm(s[0], s[1].t(), out=s[2]) for s in sets])


def cutlass(library: ctypes.CDLL, m: int, n: int, k: int) -> tuple[float, int] | None:
    """Microseconds of the fastest of the library's kernels, and which one it is."""
    count = copies(2 * m * k, 2 * n * k, 2 * m * n)
    sets = [(*gemm_inputs(m, n, k, torch.float16)[:2], torch.empty(m, n, dtype=torch.float16, device="cuda"))
            for _ in range(count)]  # fmt: skip

    def run(which: int, tensors: tuple[torch.Tensor, ...]) -> int:
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        return int(library.product(which, *pointers, m, n, k, stream))

    takes = [which for which in range(library.count()) if run(which, sets[0]) == 0]
    torch.cuda.synchronize()
    return min(((graph_us([lambda s=s, w=w: run(w, s) for s in sets]), w) for w in takes), default=None)


def measure(op: str, m: int, n: int, k: int, dtype: str, milliseconds: float, packed: float) -> dict[str, object]:
    """One op; of packed rows that share of the `m` is real, and the library's own measurement has all of them."""
    element = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    x, weight, bias = gemm_inputs(m, n, k, element)
    inputs = [x, weight, None if op == "FusedGemm" else bias]
    inputs += [*norm_inputs(m, n, element, op=op)] * ("LayerNorm" in op)
    attributes = [EPSILON] * ("LayerNorm" in op) + ["none"] * ("Gelu" in op)
    flags = native.ALLOW_TF32 if dtype == "tf32" else 0
    row: dict[str, object] = {"op": op, "dtype": dtype, "m": m, "n": n, "k": k, "bare": bare(m, n, k, element)}
    y = poisoned(m, n, dtype=element)
    bound = Bound(op, inputs, [y], attributes, constant_inputs=constants(inputs), flags=flags)
    if packed < 1:
        real = max(1, int(packed * m))
        expect(real, m)
        bound = Bound(op, [*inputs, count_of(real)], [y], attributes, constant_inputs=constants(inputs), flags=flags)
        names = [native.tactic_name(op, bound.call, i, library_file()) for i in range(bound.tactics())]
        row["chosen"] = native.tactic_name(op, bound.call, -1, library_file())
        call = [*inputs, count_of(real)]
        timings = []
        for i, name in enumerate(names):
            one = Bound(op, call, [y], attributes, i, constants(inputs), flags)
            timings.append((name, graph_us([one.run] * 20)))
    else:
        timings = []
        for name, microseconds, is_default in native.time_tactics(op, bound.call, milliseconds, library_file()):
            timings.append((name, microseconds))
            if is_default:
                row["chosen"] = name
    for backend in ("ours", "cublaslt"):
        found = [(us, name) for name, us in timings if name.startswith("cublaslt") == (backend == "cublaslt")]
        if found:
            row[backend], row[f"{backend}_tactic"] = min(found)
    row["chosen_us"] = dict(timings).get(str(row.get("chosen")))
    return row


def line(row: dict[str, object]) -> str:
    def us(name: str) -> str:
        value = row.get(name)
        return f"{value:9.2f}" if isinstance(value, float) else "        -"

    both = isinstance(row.get("ours"), float) and isinstance(row.get("cublaslt"), float)
    ratio = f"{row['ours'] / row['cublaslt']:6.2f}" if both else "     -"  # type: ignore[operator]
    beside = f"  cutlass {us('cutlass')}" if "cutlass" in row else ""
    return (
        f"{row['op']:22s} {row['dtype']:8s} {row['m']:6d} {row['n']:5d} {row['k']:5d}  bare {us('bare')}"
        f"{beside}  ours {us('ours')}  cublaslt {us('cublaslt')}  ratio {ratio}"
        f"  chosen {us('chosen_us')} {row.get('chosen')}  | {row.get('ours_tactic')} | {row.get('cublaslt_tactic')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,32,128,512,1024,4096,16384")
    parser.add_argument("--hidden", default="384,768,1024")
    parser.add_argument("--dtypes", default="float32,tf32,float16,bfloat16")
    parser.add_argument("--milliseconds", type=float, default=10.0, help="that a tactic is measured for")
    parser.add_argument(
        "--packed", type=float, default=1.0, help="share of the rows that is real; below 1: packed rows"
    )
    parser.add_argument("--cutlass", metavar="LIBRARY", help="with CUTLASS's kernels, for float16")
    options = parser.parse_args()
    yardstick = ctypes.CDLL(os.path.abspath(options.cutlass)) if options.cutlass else None
    native.load_cublaslt()
    gpu = next(native.gpus(library_file()))
    print(f"{gpu.identity.decode()}; {gpu.backends.decode()}; torch {torch.__version__}", flush=True)
    rows = []
    for hidden in map(int, options.hidden.split(",")):
        for dtype in options.dtypes.split(","):
            for m in map(int, options.rows.split(",")):
                for op, n, k in products(hidden):
                    rows.append(measure(op, m, n, k, dtype, options.milliseconds, options.packed))
                    fastest = cutlass(yardstick, m, n, k) if yardstick is not None and dtype == "float16" else None
                    if fastest is not None:
                        rows[-1]["cutlass"], rows[-1]["cutlass_kernel"] = fastest
                    print(line(rows[-1]), flush=True)
                    if "OUT" in os.environ:
                        Path(os.environ["OUT"], "bench_products.json").write_text(json.dumps(rows, indent=1))
    slower = [row for row in rows if isinstance(row.get("chosen_us"), float) and row["chosen_us"] > 1.05 * min(
        value for name in ("ours", "cublaslt") if isinstance(value := row.get(name), float)
    )]  # fmt: skip
    for m in dict.fromkeys(row["m"] for row in rows):
        for has_norm in (False, True):
            of = [row for row in rows if row["m"] == m and ("LayerNorm" in str(row["op"])) == has_norm]
            for name in ("ours", "chosen_us"):
                both = [(row[name], row["cutlass"]) for row in of if "cutlass" in row and row.get(name)]
                if both:
                    ratio = sum(ours for ours, _ in both) / sum(theirs for _, theirs in both)  # type: ignore[misc]
                    what = "with LayerNorm" if has_norm else "without LayerNorm"
                    print(f"{m} rows, {len(both)} products {what}: {name} takes {ratio:.3f} of CUTLASS's time")
    print(f"{len(rows)} products; of {len(slower)} the choice is more than 5% slower than the best tactic")


if __name__ == "__main__":
    main()
