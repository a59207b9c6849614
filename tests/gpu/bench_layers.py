"""Products and norms of twelve layers in one CUDA graph: that rows are right in a chain of kernels, and what it takes.

    python3 -m tests.gpu.bench_layers --rows 128,1024,4096 [--runs 150]

In a chain a kernel begins before the ones in front of it have ended, and two buffers are every second layer's residual:
what was read too early would be of another input's run. Three inputs in turn; each must give the same bits in all of
its runs, and other bits than the next. In float16, fp8 and int8, hidden size 768, without attention. Prints runs that
differ from their input's first, and microseconds of a replay; exit code 1 where some do.
"""

from __future__ import annotations

import argparse
import sys

import torch

from tests.gpu.bench_quantized import inputs_of, us
from tests.gpu.bench_quantized_results import named_inputs
from tests.gpu.kernels import Bound, _described, constants
from tests.gpu.quantized import EPSILON, FLOAT8

LAYERS, HIDDEN = 12, 768
# op, n and k of a layer behind attention.
PRODUCTS = (
    ("FusedGemmLayerNorm", HIDDEN, HIDDEN),
    ("FusedGemmGelu", 4 * HIDDEN, HIDDEN),
    ("FusedGemmLayerNorm", HIDDEN, 4 * HIDDEN),
)


def _buffers(rows: int, columns: int, to: torch.dtype | None) -> list[torch.Tensor]:
    """An op's outputs: y, and beside it its rows in 8 bits and their scales."""
    made = [torch.zeros(rows, columns, dtype=torch.float16, device="cuda")]
    if to is not None:
        made += [torch.zeros(rows, columns, dtype=torch.uint8, device="cuda").view(to)]
        made += [torch.zeros(rows, device="cuda")]
    return made


def chain(rows: int, to: torch.dtype | None) -> tuple[torch.Tensor, torch.Tensor, list[Bound]]:
    """The first layer's x, the last one's y, and the calls between them."""
    first = torch.randn(rows, HIDDEN, dtype=torch.float16, device="cuda")
    narrow, wide = [_buffers(rows, HIDDEN, to) for _ in range(2)], _buffers(rows, 4 * HIDDEN, to)
    values = {"epsilon": EPSILON, "approximate": "none"}
    calls, state, norms = [], [first], 0
    for op, n, k in LAYERS * PRODUCTS:
        named = named_inputs(op, inputs_of(op, rows, n, k, to))
        x = wide if k > HIDDEN else state
        named["x"] = x[0]
        if len(x) > 1:
            named |= {"x_quantized": x[1], "x_row_scale": x[2]}
        if to is not None:
            named["y_smooth"] = torch.exp(torch.rand(1, n, device="cuda") - 0.5)
            named["y_zero_point"] = torch.zeros((), dtype=torch.uint8, device="cuda").view(to)
        if n > HIDDEN:
            outputs = wide
            if to is not None:
                named["y_tensor_scale"] = torch.tensor(0.02, device="cuda")
        else:
            named["residual"] = state[0]
            outputs = narrow[norms % 2]
            norms += 1
        inputs = list(named.values())
        attributes = [values.get(attr.name, attr.default) for attr in _described(op).attributes]
        calls.append(Bound(op, inputs, outputs, attributes, -1, constants(inputs)))
        state = outputs if n == HIDDEN else state
    return first, state[0], calls


def differing(rows: int, to: torch.dtype | None, runs: int) -> tuple[int, float]:
    """How many runs gave other bits than their input's first, and microseconds of one."""
    x, y, calls = chain(rows, to)

    def run() -> None:
        for call in calls:
            call.run()

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    given = [torch.randn_like(x) for _ in range(3)]
    expected: dict[int, torch.Tensor] = {}
    differ = 0
    for index in range(runs):
        which = index * 7 // 3 % 3  # at times the same twice
        x.copy_(given[which])
        graph.replay()
        torch.cuda.synchronize()
        found = y.view(torch.int16).clone()
        differ += not torch.equal(expected.setdefault(which, found), found)
    if torch.equal(expected[0], expected[1]) or not y.isfinite().all():
        raise RuntimeError(f"{rows} rows: results do not depend on the input, or are not finite")
    return differ, us([run])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="128,300,1024,1500,4096,9000")
    parser.add_argument("--runs", type=int, default=150)
    options = parser.parse_args()
    if options.runs < 3:
        parser.error("--runs must be at least 3: one of each input")
    torch.manual_seed(seed := torch.seed() % 2**31)
    print(torch.cuda.get_device_name(), "seed", seed)
    wrong = 0
    for rows in map(int, options.rows.split(",")):
        for to in (None, FLOAT8, torch.int8):
            differ, taken = differing(rows, to, options.runs)
            wrong += differ
            print(
                f"{rows:6} {to or torch.float16!s:20} {differ} of {options.runs} runs differ, {taken:.1f} us",
                flush=True,
            )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
