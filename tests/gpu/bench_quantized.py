"""Quantised products on the GPU: every tactic checked, what they take beside float16 and cuBLASLt, and what fp8's short
sums cost.

    python3 -m tests.gpu.bench_quantized --seconds 55

Microseconds of a whole op (rounding x, the product, LayerNorm where it has one), CUDA-graph replay, inputs that are not
in the L2 cache: float16's op, fp8's and int8's as chosen and by their best tactic, PyTorch's fp8 and int8 products
alone (cuBLASLt), and `rounding`, fp8's op with 16 columns: what rounding x takes at most. Prints tables; exit code 1
where a tactic is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

import torch

from tests.gpu.bench_kernels import graph_us
from tests.gpu.bench_products import layer_products
from tests.gpu.kernels import Bound, _described, constants, library_file, native
from tests.gpu.quantized import EPSILON, FLOAT8, Case, quantized_rows

SETS = 6


def us(runs) -> float:
    return graph_us(runs, repeats=2, batches=3)


def checked(seconds: float, seed: int) -> bool:
    start, tactics, worst, right = time.monotonic(), 0, (0.0, ""), True
    for index in itertools.count():
        if time.monotonic() - start > seconds:
            break
        case = Case(seed + index)
        count, share, whose = case.check()
        tactics += count
        if not share <= 1:
            right = False
            print(f"WRONG {case}: {whose}: {share:.2f} times what is allowed", flush=True)
        worst = max(worst, (share, f"{case}, {whose}"))
    print(f"{index} problems, {tactics} tactics; the worst error is {worst[0]:.2f} of what is allowed ({worst[1]})")
    return right


def inputs_of(op: str, m: int, n: int, k: int, to: torch.dtype | None) -> list[torch.Tensor | None]:
    half = {"dtype": torch.float16, "device": "cuda"}
    given = {"x": torch.randn(m, k, **half), "weight": torch.randn(n, k, **half) / k**0.5}
    if to is not None:
        given["weight"], scales = quantized_rows(given["weight"], to)
        given["weight_scale"] = scales[:, 0].contiguous()
    if op != "FusedGemm":
        given["bias"] = torch.randn(n, **half)
    if "LayerNorm" in op:
        given |= {
            "residual": torch.randn(m, n, **half),
            "gamma": torch.randn(n, **half),
            "beta": torch.randn(n, **half),
        }
    return [given.get(tensor.name) for tensor in _described(op).inputs]


def op_times(op: str, m: int, n: int, k: int, to: torch.dtype | None, best: bool) -> tuple[float, float, str, str]:
    """As chosen, by the best tactic, and these tactics' names."""
    values = {"epsilon": EPSILON, "approximate": "none"}
    attributes = [values.get(attr.name, attr.default) for attr in _described(op).attributes]
    sets = [inputs_of(op, m, n, k, to) for _ in range(SETS)]
    outputs = [torch.empty(m, n, dtype=torch.float16, device="cuda") for _ in range(SETS)]

    def bound(tactic: int) -> list[Bound]:
        return [Bound(op, s, [y], attributes, tactic, constants(s)) for s, y in zip(sets, outputs, strict=True)]

    def name_of(one: Bound, tactic: int) -> str:
        return native.tactic_name(op, one.call, tactic, library_file())

    calls = bound(-1)
    chosen, chosen_name = us([one.run for one in calls]), name_of(calls[0], -1)
    found = [(chosen, chosen_name)]
    for tactic in range(calls[0].tactics() if best else 0):
        if name_of(calls[0], tactic).startswith("sm90"):
            found.append((us([one.run for one in bound(tactic)]), name_of(calls[0], tactic)))
    return chosen, *min(found), chosen_name


def cublaslt(m: int, n: int, k: int) -> tuple[float, float]:
    """fp8's with scales by row and column, and int8's, both of PyTorch."""

    def timed(make) -> float:
        try:
            return us([make() for _ in range(SETS)])
        except Exception as error:
            print(f"  ({str(error).splitlines()[0][:100]})")
            return float("nan")

    def fp8():
        x, weight = (torch.randn(rows, k, device="cuda").to(FLOAT8) for rows in (m, n))
        scales = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(x, weight.T, scales, scales, out_dtype=torch.float16, use_fast_accum=True)

    def int8():
        x, weight = (torch.randint(-127, 127, (rows, k), device="cuda", dtype=torch.int8) for rows in (m, n))
        return lambda: torch._int_mm(x, weight.T)

    return timed(fp8), timed(int8)


def errors(k: int = 4096, m: int = 256, n: int = 1024) -> None:
    """|y - y'| / |y| of fp8's product at k, by tactic: of rounding to 8 bits, and of sums beside the exact rule."""
    torch.manual_seed(k)
    x, weight = torch.randn(m, k, device="cuda").half(), (torch.randn(n, k, device="cuda") / k**0.5).half()
    rows, row_scales = quantized_rows(x, FLOAT8)
    columns, scales = quantized_rows(weight, FLOAT8)
    exact, rule = x.double() @ weight.double().T, rows.double() @ columns.double().T * (row_scales @ scales.T).double()
    print(f"k = {k}: rounding to 8 bits {float((rule - exact).norm() / exact.norm()):.2g}; sums, by tactic:")
    values = {"x": x, "weight": columns, "weight_scale": scales[:, 0].contiguous()}
    inputs = [values.get(tensor.name) for tensor in _described("FusedGemm").inputs]
    seen: dict[str, str] = {}
    y = torch.empty(m, n, dtype=torch.float16, device="cuda")
    for tactic in range(Bound("FusedGemm", inputs, [y]).tactics()):
        one = Bound("FusedGemm", inputs, [y], (), tactic, constants(inputs))
        name = native.tactic_name("FusedGemm", one.call, tactic, library_file()).split(" cluster")[0]
        if name in seen:
            continue
        one.run()
        y64 = y.double()
        shrunk = float((y64 * rule).sum() / (rule * rule).sum()) - 1
        seen[name] = f"{float((y64 - rule).norm() / rule.norm()):.2g} (all by {shrunk:+.2g})"
    for name, text in seen.items():
        print(f"  {name}: {text}")
    half = float((rule.half().double() - rule).norm() / rule.norm())
    fast = torch._scaled_mm(
        rows, columns.T, row_scales, scales.T, out_dtype=torch.bfloat16, use_fast_accum=True
    ).double()
    theirs = float((fast - rule).norm() / rule.norm())
    print(f"  float16's rounding alone: {half:.2g}; cuBLASLt, fast sums, bfloat16: {theirs:.2g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=55.0, help="a third of them to check")
    parser.add_argument("--rows", default="1024,4096,16384")
    parser.add_argument("--hidden", default="768,1024")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    start = time.monotonic()
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}; --seed {options.seed}", flush=True)
    right = checked(options.seconds / 3, options.seed)
    try:
        errors(4096), errors(768)
    except Exception as error:
        print(f"errors at k = 4096 were not measured: {error}")
    print(
        "  rows     n     k  float16 |     fp8    best |    int8    best | cublaslt fp8    int8 | rounding", flush=True
    )
    totals: dict[tuple[int, int], list[float]] = {}
    for hidden, m in itertools.product(map(int, options.hidden.split(",")), map(int, options.rows.split(","))):
        for op, n, k in layer_products(hidden):
            late = time.monotonic() - start > options.seconds
            half = op_times(op, m, n, k, None, False)[0]
            fp8, int8 = op_times(op, m, n, k, FLOAT8, not late), op_times(op, m, n, k, torch.int8, not late)
            theirs = cublaslt(m, n, k)
            rounding = op_times("FusedGemm", m, 16, k, FLOAT8, False)[0]
            row = [half, *fp8[:2], *int8[:2], *theirs, rounding]
            sums = totals.setdefault((hidden, m), [0.0] * len(row))
            totals[hidden, m] = [a + b for a, b in zip(sums, row, strict=True)]
            cells = [f"{value:8.1f}" for value in row]
            ours = f"{cells[0]} |{cells[1]}{cells[2]} |{cells[3]}{cells[4]}"
            print(f"{m:6d} {n:5d} {k:5d} {ours} |     {cells[5]}{cells[6]} | {cells[7]}")
            print(f"       fp8: {fp8[3]} | {fp8[2]}; int8: {int8[3]} | {int8[2]}", flush=True)
    print("four products: hidden, rows: float16, fp8, best, int8, best, cuBLASLt's fp8 and int8, rounding x")
    for (hidden, m), sums in totals.items():
        print(f"{hidden:5d} {m:6d} " + " ".join(f"{value:8.1f}" for value in sums))
    print("all tactics are right" if right else "SOME TACTICS ARE WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
