"""2:4 sparse products beside dense ones: python3 -m tests.gpu.bench_sparsity

The four products of one encoder layer, in float16 and in float8e4m3fn with results in float16, by cuBLAS and by
cuSPARSELt (as PyTorch calls them; weights pruned to two of four by magnitude), in CUDA graphs over weights that fill
the L2 cache more than twice; microseconds of all four, and dense / sparse. Above 1 sparse products are faster; what
pruning costs in accuracy is measured by tests.measuring.weight_sparsity. What a sparse product gives is compared with
the dense one of the same pruned weight first.
"""

from __future__ import annotations

import argparse
import itertools
import statistics

import torch

LAYERS = {"bert-base": (768, 3072), "bert-large": (1024, 4096)}
CACHE = 120 << 20  # bytes of weights that a replay goes through
FLOAT8 = torch.float8_e4m3fn


def pruned(weight: torch.Tensor) -> torch.Tensor:
    """Of every four neighbours along k the two of greatest magnitude."""
    fours = weight.reshape(-1, 4)
    kept = torch.zeros_like(fours, dtype=torch.bool).scatter_(1, fours.abs().topk(2, dim=1).indices, True)
    return (fours * kept).reshape(weight.shape)


def operands(rows: int, n: int, k: int, copies: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """x and pruned weights of deviation 1, of which 8-bit floats lose few to 0."""
    weights = [pruned(torch.randn(n, k, dtype=torch.float16, device="cuda")).to(dtype) for _ in range(copies)]
    return torch.randn(rows, k, dtype=torch.float16, device="cuda").to(dtype), weights


def dense_product(x: torch.Tensor, weight: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    if x.dtype == FLOAT8:
        return torch._scaled_mm(x, weight.t(), one, one, out_dtype=torch.float16, use_fast_accum=True)
    return torch.mm(x, weight.t())


def result_type(dtype: torch.dtype) -> torch.dtype | None:
    """What sparse products are to be asked for: PyTorch refuses where it follows from the operands."""
    return torch.float16 if dtype == FLOAT8 else None


def check(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    x, (weight,) = operands(rows, n, k, 1, dtype)
    got = torch._cslt_sparse_mm(torch._cslt_compress(weight), x.t(), out_dtype=result_type(dtype)).t()
    exact = x.float() @ weight.float().t()
    worst = ((got.float() - exact).abs().max() / exact.abs().max()).item()
    assert worst < 0.005, f"{rows} x {n} x {k}, {dtype}: off by {worst} of the greatest"


def microseconds(run, repeats: int) -> float:
    """Of one of `repeats` calls in a graph, the median of seven replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        for _ in range(5):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / 5 / repeats)
    return statistics.median(times)


def layer(hidden: int, inner: int, rows: int, dtype: torch.dtype) -> tuple[float, float]:
    """Microseconds of the layer's four products, dense and sparse."""
    totals = [0.0, 0.0]
    one = torch.ones((), device="cuda")
    for n, k in ((3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner)):
        check(min(rows, 1024), n, k, dtype)
        copies = max(2, CACHE // (dtype.itemsize * n * k))
        x, weights = operands(rows, n, k, copies, dtype)
        compressed = [torch._cslt_compress(weight) for weight in weights]
        # cuSPARSELt's own search: which of its algorithms is fastest here.
        best = torch._cslt_sparse_mm_search(compressed[0], x.t(), out_dtype=result_type(dtype))

        def dense(weights=weights, x=x) -> None:
            for weight in weights:
                dense_product(x, weight, one)

        def sparse(compressed=compressed, x=x, best=best) -> None:
            for weight in compressed:
                torch._cslt_sparse_mm(weight, x.t(), out_dtype=result_type(dtype), alg_id=best)

        totals[0] += microseconds(dense, copies)
        totals[1] += microseconds(sparse, copies)
    return totals[0], totals[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1024,4096,16384")
    given = parser.parse_args()
    if not torch.cuda.is_available() or not torch.backends.cusparselt.is_available():
        parser.error("this takes a GPU and a PyTorch that was built with cuSPARSELt")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuSPARSELt {torch.backends.cusparselt.version()}\n"
    )
    print("| | type | rows | dense | 2:4 sparse | dense / sparse |\n|---|---|---|---|---|---|")
    for dtype in (torch.float16, FLOAT8):
        for (name, (hidden, inner)), rows in itertools.product(LAYERS.items(), map(int, given.rows.split(","))):
            dense, sparse = layer(hidden, inner, rows, dtype)
            cells = f"{name} | {dtype} | {rows} | {dense:.1f} | {sparse:.1f} | {dense / sparse:.2f}"
            print(f"| {cells.replace('torch.', '')} |", flush=True)


if __name__ == "__main__":
    main()
