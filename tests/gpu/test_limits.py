"""Every op at its limits: 65,536 rows, pointers off alignment, TF32 where it is asked for and nowhere else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import (  # noqa: E402
    EPSILON,
    FLOATS,
    GPU,
    all_tactics,
    check,
    gemm_inputs,
    norm_inputs,
    poisoned,
    randn,
    run,
)
from tests.gpu.kernels import Bound, library_file, native  # noqa: E402

pytestmark = GPU
ROWS = 65536
STEP = 31  # of many rows (or sequences) the oracle checks every 31st: some of every tile that a persistent block takes


def ids(batch, sequence, below):
    return torch.randint(0, below, (batch, sequence), device="cuda")


def some(rows):
    return slice(None, None, STEP if rows == ROWS else 1)


def calls(op, rows, dtype, offset=0, hidden=768):
    """(inputs, attributes, output shapes, expected) of an op over so many rows.

    expected() is the float64 result; of many rows that of some(rows). `offset` elements that every float tensor starts
    off its allocation.
    """
    heads, sequence = hidden // 64, min(rows, 128)
    batch = rows // sequence
    tokens, few = (batch, sequence, hidden), some(rows)
    if op in ("AddQKVBias", "FusedAttention"):
        qkv = randn(batch, sequence, 3 * hidden, dtype=dtype, offset=offset)
        bias = randn(3 * hidden, dtype=dtype, offset=offset)
        if op == "AddQKVBias":
            shape = (batch, heads, sequence, 64)
            return [qkv, bias], [heads], [shape] * 3, partial(reference.add_qkv_bias, qkv[few], bias, heads)
        expected = partial(reference.fused_attention, qkv[few], bias, None, heads, 0.125)
        return [qkv, bias, None], [heads, 0.125], [tokens], expected
    if op == "EmbedLayerNorm":
        words, types = ids(batch, sequence, 1000), ids(batch, sequence, 2)
        tables = [randn(count, hidden, dtype=dtype, offset=offset) for count in (1000, 512)]
        norm = [randn(hidden, dtype=dtype, offset=offset) for _ in range(2)]
        kinds = randn(2, hidden, dtype=dtype, offset=offset)
        expected = partial(reference.embed_layer_norm, words[few], *tables, *norm, types[few], kinds, None, EPSILON)
        return [words, *tables, *norm, types, kinds, None], [EPSILON], [tokens], expected
    x, weight, bias = gemm_inputs(rows, hidden, hidden, dtype, offset)
    residual, gamma, beta = norm_inputs(rows, hidden, dtype, offset)
    product = (x[few], weight, bias)
    if op == "FusedGemm":
        return [x, weight, bias], [], [(rows, hidden)], partial(reference.fused_gemm, *product)
    if op == "FusedGemmGelu":
        return [x, weight, bias], ["none"], [(rows, hidden)], partial(reference.fused_gemm_gelu, *product, "none")
    if op == "FusedGemmLayerNorm":
        expected = partial(reference.fused_gemm_layer_norm, *product, residual[few], gamma, beta, EPSILON)
        return [x, weight, bias, residual, gamma, beta], [EPSILON], [(rows, hidden)], expected
    expected = partial(reference.fused_gemm_gelu_layer_norm, *product, gamma, beta, residual[few], EPSILON, "none")
    return [x, weight, bias, gamma, beta, residual], [EPSILON, "none"], [(rows, hidden)], expected


def several(result):
    return list(result) if isinstance(result, tuple) else [result]


GEMMS = ("FusedGemm", "FusedGemmGelu", "FusedGemmGeluLayerNorm", "FusedGemmLayerNorm")
OPS = ("AddQKVBias", "EmbedLayerNorm", "FusedAttention", *GEMMS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_many_rows(op, dtype):
    """With the tactic that is chosen, and those of GPUs that are not Hopper's."""
    inputs, attributes, shapes, expected = calls(op, ROWS, dtype)
    outputs = [poisoned(*shape, dtype=dtype) for shape in shapes]
    wanted = several(expected())
    bound = Bound(op, inputs, outputs, attributes)
    name = partial(native.tactic_name, op, bound.call, path=library_file())
    portable = [i for i in range(bound.tactics()) if name(i).startswith(("mma", "simt"))]
    portable = [i for i in portable if "split-K" not in name(i) or "split-K 1 " in name(i)]
    found = {name(i).split()[0] for i in portable}
    assert found == (set() if op in ("AddQKVBias", "EmbedLayerNorm") else {"mma", "simt"})
    for tactic in (-1, *portable):
        for y in outputs:
            y.fill_(float("nan"))
        run(op, inputs, outputs, attributes, tactic)
        check(op, [y[some(ROWS)] for y in outputs], wanted)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("op", OPS)
def test_unaligned(op, offset, dtype):
    inputs, attributes, shapes, expected = calls(op, 130, dtype, offset, 384)
    outputs = [randn(*shape, dtype=dtype, offset=offset).fill_(float("nan")) for shape in shapes]
    tactics = Bound(op, inputs, outputs, attributes).tactics()
    for tactic in range(-1, tactics if tactics > 1 else 0):
        run(op, inputs, outputs, attributes, tactic)
        check(op, outputs, several(expected()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("which", ["bias", "gamma", "beta"])
def test_vectors_on_four_bytes(which, dtype):
    """Of all tensors one vector is not where four elements can be read at a time."""
    m, n, k = 1024, 768, 3072
    x, weight, bias = gemm_inputs(m, n, k, dtype)
    residual, gamma, beta = norm_inputs(m, n, dtype)
    vectors = {"bias": bias, "gamma": gamma, "beta": beta}
    vectors[which] = randn(n, dtype=dtype, offset=2)
    inputs = (x, weight, vectors["bias"], residual, vectors["gamma"], vectors["beta"])
    expected = reference.fused_gemm_layer_norm(*inputs, EPSILON)
    all_tactics("FusedGemmLayerNorm", inputs, (m, n), dtype, [EPSILON], expected)


@pytest.mark.parametrize("op", GEMMS)
@pytest.mark.parametrize("size", [(1, 768, 768), (130, 257, 100), (4096, 1024, 768)], ids=str)
def test_tf32_only_where_asked(op, size):
    m, n, k = size
    inputs = [*gemm_inputs(m, n, k, torch.float32), *norm_inputs(m, n, torch.float32, op=op)]
    inputs = inputs if "LayerNorm" in op else inputs[:3]
    attributes = [EPSILON] * ("LayerNorm" in op) + ["none"] * ("Gelu" in op)
    function = {
        "FusedGemm": reference.fused_gemm,
        "FusedGemmGelu": reference.fused_gemm_gelu,
        "FusedGemmLayerNorm": reference.fused_gemm_layer_norm,
        "FusedGemmGeluLayerNorm": reference.fused_gemm_gelu_layer_norm,
    }[op]
    expected = function(*inputs, *attributes)
    exact, rounded = (poisoned(m, n, dtype=torch.float32) for _ in range(2))
    run(op, inputs, [exact], attributes)
    check(op, [exact], [expected])
    run(op, inputs, [rounded], attributes, flags=1)
    check(op, [rounded], [expected], dtype="tf32")
    errors = [(y.double() - expected).abs().mean().item() for y in (exact, rounded)]
    if m > 1:  # of one row cuBLASLt's product is exact, whatever is allowed
        assert errors[1] > 10 * errors[0], f"mean errors {errors}: the tensor cores were not used"


def test_threads_with_streams_at_once():
    """Two threads for each op, each with tensors and a stream of its own: results as when run alone."""
    jobs = []
    for op in (*OPS, *OPS):
        inputs, attributes, shapes, _ = calls(op, 256, torch.float16)
        outputs = [poisoned(*shape, dtype=torch.float16) for shape in shapes]
        bound = run(op, inputs, outputs, attributes)
        jobs.append((op, bound, outputs, [y.clone() for y in outputs], torch.cuda.Stream()))

    def work(op, bound, outputs, wanted, stream):
        with torch.cuda.stream(stream):
            for _ in range(50):
                for y in outputs:
                    y.fill_(float("nan"))
                bound.run()
            stream.synchronize()
        assert all(torch.equal(y, want) for y, want in zip(outputs, wanted, strict=True)), op

    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(work, *job) for job in jobs]:
            future.result()
