"""Random products, and what is to be seen of one that was computed in cuBLASLt."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np

from bertfuse.qualify import values
from bertfuse.qualify.bounds import expected
from bertfuse.qualify.check import compare
from bertfuse.qualify.number import Number
from bertfuse.qualify.problem import Problem
from tests.cublaslt.host import Host, Ran
from tests.launches import STREAM, Setting

MEGABYTE = 1 << 20
FEW_ROWS = 128  # as in plugins/ops/gemm_candidates_cublaslt.cc
OPS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm", "FusedGemmGeluLayerNorm")
TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType_t
COMPUTE_32F, COMPUTE_FAST_TF32 = 68, 77


def draw(chance: random.Random, op: str = "", packed: bool | None = None, dtype: str = "") -> Problem:
    op = op or chance.choice(OPS)
    sizes = {"K": chance.randint(1, 40), "N": chance.choice((1, 3, 8, 24, 32, 40, 48, chance.randint(1, 60)))}
    rows = chance.randint(1, 40) + chance.choice((0, FEW_ROWS))
    attributes: dict[str, Any] = {}
    if op == "FusedGemm" and chance.random() < 0.5:
        attributes["activation"] = chance.choice(("gelu", "gelu_tanh"))
    if op in ("FusedGemmGelu", "FusedGemmGeluLayerNorm"):
        attributes["approximate"] = chance.choice(("none", "tanh"))
    lengths = None
    if chance.random() < 0.3 if packed is None else packed:
        lengths = tuple(chance.randint(0, rows) for _ in range(chance.randint(1, 3)))
        rows = max(1, sum(lengths) + chance.randint(0, 20))
    without = ("bias",) if op == "FusedGemm" and chance.random() < 0.4 else ()
    dtype = dtype or chance.choice(("float32", "float16", "bfloat16"))
    return Problem(
        op=op, dtype=dtype, sizes=sizes, leading=(rows,), attributes=attributes, packed=lengths, without=without,
        offset=chance.choice((0, 0, 0, 1, 3, 4)), tf32=chance.random() < 0.3, constant=chance.random() < 0.5,
        seed=chance.getrandbits(31),
    )  # fmt: skip


def has_more_than_a_product(problem: Problem) -> bool:
    """Whether an activation or LayerNorm follows."""
    activates = problem.attributes.get("activation") or problem.attributes.get("approximate")
    return bool(activates) or "LayerNorm" in problem.op


def left_to_cublaslt(problem: Problem) -> Problem:
    """The problem by TF32 and of more rows where mma.sync may keep it: exact float32, few rows with more to do."""
    (rows,) = problem.leading
    if has_more_than_a_product(problem) and rows <= FEW_ROWS:
        rows += FEW_ROWS
    return replace(problem, leading=(rows,), tf32=problem.tf32 or problem.dtype == "float32")


def is_hopper(host: Host, problem: Problem, setting: Setting) -> bool:
    """Whether our kernels for Hopper take the product, which is then theirs."""
    takes = any(name.startswith("sm90") for name in host.tactics(problem, setting))
    host.take()
    return takes


def product_problem(problem: Problem, with_bias: bool) -> Problem:
    """The op's bare product of the same tensors, with the bias or without."""
    without = () if with_bias and "bias" not in problem.without else ("bias",)
    return replace(problem, op="FusedGemm", attributes={}, without=without, tactic=-1)


def takes_others(ran: Ran) -> bool:
    """Whether mma.sync can compute what packed rows there are beside the expected ones: rows on 16-byte boundaries."""
    row_bytes = ran.problem.sizes["K"] * values.FLOATS[ran.problem.dtype].itemsize
    return all(number % 16 == 0 for number in (row_bytes, ran.address("x"), ran.address("weight")))


def check_product(ran: Ran, device: int, *, adds_bias: bool = True, expected_rows: int | None = None) -> None:
    """That cuBLASLt got the call's product, computed it, and that the launches after it get the rest.

    `expected_rows`: of packed ones; by default all that there is room for.
    """
    problem, (matmul,) = ran.problem, ran.of("matmul")
    (rows,), n = problem.leading, problem.sizes["N"]
    normalizes = "LayerNorm" in problem.op
    has_bias = "bias" not in problem.without
    assert matmul["stream"] == STREAM and matmul["device"] == device
    assert matmul["a"] == ran.address("weight") and matmul["b"] == ran.address("x")
    in_epilogue = has_bias and not normalizes and adds_bias and ran.address("bias") % 16 == 0
    assert matmul["bias"] == (ran.address("bias") if in_epilogue else 0)
    wide = matmul["d_type"] != TYPES[problem.dtype] or (problem.dtype == "float32" and normalizes)
    assert matmul["d"] == ran.address("workspace" if wide else "y")
    assert not wide or normalizes
    space = ran.layout.regions["workspace"]
    if matmul["bytes"]:
        inside = matmul["workspace"] - ran.base
        assert space.start + (rows * n * 4 if wide else 0) <= inside and inside + matmul["bytes"] <= space.stop
    assert ran.layout.trespass(ran.before, ran.memory) is None
    bare = product_problem(problem, in_epilogue)
    dtype = np.dtype(np.float32) if wide else values.FLOATS[problem.dtype]
    got = ran.array("workspace" if wide else "y", dtype, (rows, n))
    (want,) = expected(bare, {k: v for k, v in values.inputs(bare).items()})
    real = rows if problem.packed is None else sum(problem.packed)
    computed = rows  # by cuBLASLt
    if expected_rows is not None and takes_others(ran):
        step = 1  # of 32 between powers of two
        while 64 * step <= expected_rows:
            step *= 2
        computed = min(rows, -(-expected_rows // step) * step)
    seen = slice(min(real, computed))
    error = np.broadcast_to(want.error, want.value.shape)
    _, wrong = compare(got[seen], Number(want.value[seen], error[seen]))
    assert not wrong, f"{problem}: {wrong}"
    activates = bool(problem.attributes.get("activation") or problem.attributes.get("approximate"))
    left = has_bias and not in_epilogue
    names = [launch["launch"] for launch in ran.launches]
    kernels = ["LayerNorm"] if normalizes else ["BiasActivation"] if activates or left else []
    if computed < rows:
        kernels = ["GemmMma", *kernels]
    assert len(names) == len(kernels), (ran.tactic, names)
    for launch, kernel in zip(ran.launches, kernels, strict=True):
        assert kernel in launch["launch"] and launch["error"] == 0 and launch["stream"] == STREAM, launch
        if "parameters" in launch:
            given = "".join(launch["parameters"])

            def passed(address: int, given: str = given) -> bool:
                return address.to_bytes(8, "little").hex() in given

            assert problem.packed is None or passed(ran.address("row_count"))
            if kernel == "GemmMma":  # x and what it writes from the first row on that is left
                assert passed(ran.address("x") + computed * problem.sizes["K"] * values.FLOATS[problem.dtype].itemsize)
                assert passed(ran.address("workspace" if wide else "y") + computed * n * dtype.itemsize)
                assert passed(ran.address("bias")) == in_epilogue or not has_bias
                continue
            assert passed(ran.address("y"))
            assert passed(ran.address("bias")) == left or not has_bias


def check_heuristic(ran: Ran, event: dict[str, Any]) -> None:
    """What is asked is the product, by the transposed column-major call, with float32 sums."""
    problem = ran.problem
    (m,), n, k = problem.leading, problem.sizes["N"], problem.sizes["K"]
    operands, tf32 = TYPES[problem.dtype], problem.tf32 and problem.dtype == "float32"
    assert event["a"] == {"type": operands, "rows": k, "columns": n, "leading": k}
    assert event["b"] == {"type": operands, "rows": k, "columns": m, "leading": k}
    assert {**event["d"], "type": 0} == {"type": 0, "rows": n, "columns": m, "leading": n}
    assert event["compute"] == (COMPUTE_FAST_TF32 if tf32 else COMPUTE_32F)
    assert event["workspace"] in (4 * MEGABYTE, 32 * MEGABYTE)
    width = 4 if event["d"]["type"] == TYPES["float32"] else 2
    wide = width == 4 and "LayerNorm" in problem.op
    y = aligned(ran.address("workspace") if wide else ran.address("y"), n * width)
    item = values.FLOATS[problem.dtype].itemsize
    operand_rows = [aligned(ran.address(name), k * item) for name in ("weight", "x")]
    assert event["alignments"] == [*operand_rows, y, y], event
    # Rows off 16 bytes are not split along k, and a bias off 16 bytes is added by our kernel.
    assert event["reductions"] == (2 if y >= 16 else 0) and event["bias"] % 16 == 0, event


def aligned(address: int, row_bytes: int) -> int:
    """What divides the address of every row: a power of two, 256 at most."""
    return math.gcd(address, row_bytes, 256)
