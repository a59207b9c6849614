"""Every CUDA kernel against float64: shapes, dtypes, tactics, alignment; outputs and scratch are poisoned before a run.

On a GPU host:  python -m pytest tests/gpu -q    (BERTFUSE_CUDA_TEST_LIBRARY: the library, if it is not in build/lib)
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from bertfuse.qualify.tolerances import TOLERANCES  # noqa: E402
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
    randint,
    randn,
    run,
)
from tests.gpu.kernels import Bound, KernelError, native  # noqa: E402

pytestmark = GPU


# More of the largest tiles than a GPU has multiprocessors, and parts of them at the end: there blocks take several.
SEVERAL_TILES = (6413, 768, 200)
SIZES = (
    SEVERAL_TILES,
    (6413, 768, 712),  # more steps along k than the ring of stages has, and in the next two fewer
    (5000, 1056, 72),  # half a tile at the end of the columns
    (5000, 1056, 40),
    (1, 768, 768),
    (10, 20, 16),
    (128, 768, 768),
    (512, 3072, 768),
    (77, 384, 1536),
    (1024, 1024, 1024),
    (131, 257, 101),
    (300, 1024, 4096),
    (1000, 768, 3072),
    (257, 384, 384),
    (4096, 768, 768),
)


@pytest.mark.parametrize("given", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_fused_gemm(size, dtype, given):
    m, n, k = size
    x, weight, bias = gemm_inputs(m, n, k, dtype)
    inputs = (x, weight, bias if given else None)
    # Than the sums that the table's float32 tolerance is for.
    longer = max(1.0, math.sqrt(k / 3072)) if dtype == torch.float32 else 1.0
    all_tactics("FusedGemm", inputs, (m, n), dtype, [], reference.fused_gemm(*inputs), longer)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_fused_gemm_gelu(size, dtype, approximate):
    m, n, k = size
    inputs = gemm_inputs(m, n, k, dtype)
    expected = reference.fused_gemm_gelu(*inputs, approximate)
    all_tactics("FusedGemmGelu", inputs, (m, n), dtype, [approximate], expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_fused_gemm_layer_norm(size, dtype):
    m, n, k = size
    inputs = (*gemm_inputs(m, n, k, dtype), *norm_inputs(m, n, dtype))
    expected = reference.fused_gemm_layer_norm(*inputs, EPSILON)
    all_tactics("FusedGemmLayerNorm", inputs, (m, n), dtype, [EPSILON], expected)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "size", [(128, 768, 768), (131, 257, 101), (77, 384, 384), (2048, 1024, 1024), SEVERAL_TILES], ids=str
)
def test_fused_gemm_gelu_layer_norm(size, dtype, residual):
    m, n, k = size
    op = "FusedGemmGeluLayerNorm"
    gamma, beta, last = norm_inputs(m, n, dtype, op=op)
    inputs = (*gemm_inputs(m, n, k, dtype), gamma, beta, last if residual else None)
    expected = reference.fused_gemm_gelu_layer_norm(*inputs, EPSILON, "none")
    all_tactics(op, inputs, (m, n), dtype, [EPSILON, "none"], expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [2050, 3001, 4096, 8200, 12288])
def test_wide_layer_norm(columns, dtype):
    """More columns than 512 threads hold in two accesses each."""
    m, k = 37, 64
    inputs = (*gemm_inputs(m, columns, k, dtype), *norm_inputs(m, columns, dtype))
    expected = reference.fused_gemm_layer_norm(*inputs, EPSILON)
    all_tactics("FusedGemmLayerNorm", inputs, (m, columns), dtype, [EPSILON], expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("carrier", ["bias", "residual"])
def test_large_mean(carrier, dtype):
    """A row whose mean is a hundred times its deviation: E[x²] - E[x]² would lose it."""
    m, n, k = 256, 768, 768
    x, weight, bias = gemm_inputs(m, n, k, dtype)
    residual, gamma, beta = norm_inputs(m, n, dtype)
    large = bias if carrier == "bias" else residual
    large.copy_(large + 100)
    more = 0.0
    if carrier == "bias" and dtype != torch.float32:
        # The product may be rounded with its bias, which is between 64 and 128; a third for what that does to mean and
        # deviation.
        row = torch.nn.functional.linear(x.double(), weight.double(), bias.double()) + residual
        more = 4 / 3 * 64 * torch.finfo(dtype).eps / 2 * gamma.double().abs() / row.std(dim=1, keepdim=True)
    inputs = (x, weight, bias, residual, gamma, beta)
    expected = reference.fused_gemm_layer_norm(*inputs, EPSILON)
    # The sum of 100 and a product near 1 has 6e-6 of float32 rounding, against a deviation of about 1.7.
    all_tactics("FusedGemmLayerNorm", inputs, (m, n), dtype, [EPSILON], expected, 3.0, more)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 17, 3, 5), (1, 128, 12, 64), (8, 128, 12, 32), (3, 384, 16, 64)], ids=str
)
def test_add_qkv_bias(shape, dtype):
    batch, sequence, heads, size = shape
    qkv, bias = randn(batch, sequence, 3 * heads * size, dtype=dtype), randn(3 * heads * size, dtype=dtype)
    outputs = [poisoned(batch, heads, sequence, size, dtype=dtype) for _ in range(3)]
    run("AddQKVBias", [qkv, bias], outputs, [heads])
    check("AddQKVBias", outputs, reference.add_qkv_bias(qkv, bias, heads))


ATTENTION = (
    (1, 1, 1, 64),
    (1, 128, 12, 64),
    (2, 127, 12, 64),
    (3, 65, 2, 32),
    (16, 128, 12, 32),
    (2, 384, 16, 64),
    (40, 200, 12, 64),
    (1, 512, 2, 128),
    (16, 300, 16, 128),
    (2, 50, 3, 24),
    (1, 33, 2, 300),
    (1, 4096, 1, 64),
    (1, 1030, 12, 32),
    (4096, 7, 2, 64),
)


@pytest.mark.parametrize("mask_kind", ["none", "int32", "int64"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", ATTENTION, ids=str)
def test_fused_attention(shape, dtype, mask_kind):
    batch, sequence, heads, size = shape
    qkv, bias = randn(batch, sequence, 3 * heads * size, dtype=dtype), randn(3 * heads * size, dtype=dtype)
    mask = None
    if mask_kind != "none":
        mask = (torch.rand(batch, sequence, device="cuda") < 0.7).to(getattr(torch, mask_kind))
        mask[0, sequence // 2 :] = 0  # padding, as a tokenizer leaves it
        if batch > 1:
            mask[1] = 0  # hides every key
    scale = 1 / math.sqrt(size)
    expected = reference.fused_attention(qkv, bias, mask, heads, scale)
    # The largest of N errors grows as the root of ln N; the table is right for a million.
    many = max(1.0, math.sqrt(math.log(max(2, expected.numel())) / math.log(1e6)))
    all_tactics(
        "FusedAttention", [qkv, bias, mask], (batch, sequence, heads * size), dtype, [heads, scale], expected, many
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("batch", [2, 70])  # Hopper's kernel for few queries, and the one for many
def test_attention_extreme_scores(batch, dtype):
    """Scores in the hundreds: softmax is then nearly a maximum, and must not overflow."""
    gain, size = 12, 64
    qkv, bias = randn(batch, 200, 3 * 128, dtype=dtype, gain=gain), randn(3 * 128, dtype=dtype)
    expected = reference.fused_attention(qkv, bias, None, 2, 0.125)
    # A score that is off by d multiplies its probability by e^d at most, which moves the result by at most e^d - 1
    # times the spread of V under the probabilities: much where two keys compete, nothing where one wins. Scores are
    # sums of `size` products near gain². In float32 each addition rounds sums of up to 6 standard deviations; in 16
    # bits q + bias is rounded first, each element on its own.
    unit = {torch.float32: 2.0**-24 * 6, torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}[dtype]
    score_error = 0.125 * gain**2 * math.sqrt(size) * unit
    spread = reference.attention_spread(qkv, bias, 2, 0.125)
    # Values are 12 times those that the table is for, so its absolute part is, too; of the scores 5 deviations.
    absolute = (gain - 1) * TOLERANCES["FusedAttention", str(dtype).removeprefix("torch.")].atol
    more = absolute + math.expm1(5 * score_error) * spread
    all_tactics("FusedAttention", [qkv, bias, None], (batch, 200, 128), dtype, [2, 0.125], expected, more=more)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_with_scale_zero_is_the_mean_of_what_is_seen(dtype):
    qkv, bias = randn(2, 77, 3 * 128, dtype=dtype), randn(3 * 128, dtype=dtype)
    mask = (torch.rand(2, 77, device="cuda") < 0.7).int()
    expected = reference.fused_attention(qkv, bias, mask, 2, 0.0)
    all_tactics("FusedAttention", [qkv, bias, mask], (2, 77, 128), dtype, [2, 0.0], expected)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [32, 768, 1024, 77, 3001, 5000, 12288])
@pytest.mark.parametrize("batch", [3, 201])  # a block for each row, and from 2048 rows on a warp for several
@pytest.mark.parametrize("given", ["all", "ids", "words"])
def test_embed_layer_norm(columns, dtype, index, given, batch):
    sequence, words = 50, 1000
    ids = randint(words, (batch, sequence), index)
    types = randint(2, (batch, sequence), index) if given == "all" else None
    positions = randint(512, (batch, sequence), index) if given == "all" else None
    tables = [randn(words, columns, dtype=dtype), randn(512, columns, dtype=dtype) if given != "words" else None]
    norm = [randn(columns, dtype=dtype), randn(columns, dtype=dtype)]
    type_table = randn(2, columns, dtype=dtype) if given == "all" else None
    inputs = [ids, *tables, *norm, types, type_table, positions]
    y = poisoned(batch, sequence, columns, dtype=dtype)
    run("EmbedLayerNorm", inputs, [y], [EPSILON])
    check("EmbedLayerNorm", [y], [reference.embed_layer_norm(*inputs, EPSILON)])


@pytest.mark.parametrize("batch", [1, 2001])  # the second so that a warp has rows of both kinds
def test_embedding_outside_its_table_is_nan(batch):
    ids = torch.tensor([[0, -1, 10, -11, 3]] * batch, device="cuda")
    word, position = randn(10, 64, dtype=torch.float16), randn(8, 64, dtype=torch.float16)
    gamma, beta = randn(64, dtype=torch.float16), randn(64, dtype=torch.float16)
    y = torch.zeros(batch, 5, 64, device="cuda", dtype=torch.float16)
    run("EmbedLayerNorm", [ids, word, position, gamma, beta, None, None, None], [y], [EPSILON])
    assert torch.isnan(y[:, 2:4]).all() and torch.isfinite(y[:, [0, 1, 4]]).all()


CAPTURED = {
    "FusedGemm": lambda dtype: (gemm_inputs(128, 2304, 768, dtype), [(128, 2304)], []),
    "FusedGemmGelu": lambda dtype: (gemm_inputs(128, 768, 768, dtype), [(128, 768)], ["none"]),
    "FusedGemmLayerNorm": lambda dtype: (
        (*gemm_inputs(128, 768, 3072, dtype), *norm_inputs(128, 768, dtype)),
        [(128, 768)],
        [EPSILON],
    ),
    "FusedGemmGeluLayerNorm": lambda dtype: (
        (
            *gemm_inputs(4096, 768, 768, dtype),
            *norm_inputs(4096, 768, dtype, op="FusedGemmGeluLayerNorm"),
        ),
        [(4096, 768)],
        [EPSILON, "none"],
    ),
    "FusedAttention": lambda dtype: (
        [randn(2, 128, 2304, dtype=dtype), randn(2304, dtype=dtype), None],
        [(2, 128, 768)],
        [12, 0.125],
    ),
    "AddQKVBias": lambda dtype: (
        [randn(2, 128, 2304, dtype=dtype), randn(2304, dtype=dtype)],
        [(2, 12, 128, 64)] * 3,
        [12],
    ),
    "EmbedLayerNorm": lambda dtype: (
        [
            torch.randint(0, 10, (2, 9), device="cuda"),
            randn(10, 768, dtype=dtype),
            randn(9, 768, dtype=dtype),
            randn(768, dtype=dtype),
            randn(768, dtype=dtype),
            None,
            None,
            None,
        ],
        [(2, 9, 768)],
        [EPSILON],
    ),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", CAPTURED)
def test_capture_and_replay(op, dtype):
    inputs, shapes, attributes = CAPTURED[op](dtype)
    outputs = [poisoned(*shape, dtype=dtype) for shape in shapes]
    bound = run(op, inputs, outputs, attributes)
    eager = [y.clone() for y in outputs]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            bound.run()
    for y in outputs:
        y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    for y, wanted in zip(outputs, eager, strict=True):
        assert torch.equal(y, wanted), "the replay gives something else"


def test_streams_at_once():
    """Eight streams, each its own tensors and order of launches: results as when run alone."""
    jobs = []
    for _ in range(8):
        inputs = (*gemm_inputs(256, 768, 768, torch.float16), *norm_inputs(256, 768, torch.float16))
        y = poisoned(256, 768, dtype=torch.float16)
        bound = run("FusedGemmLayerNorm", inputs, [y], [EPSILON])
        jobs.append((torch.cuda.Stream(), bound, y, y.clone()))
    torch.cuda.synchronize()  # the copies are made on another stream than those that overwrite y
    for _ in range(50):
        for stream, bound, y, _ in jobs:
            with torch.cuda.stream(stream):
                y.fill_(float("nan"))
                bound.run()
    torch.cuda.synchronize()
    for _, _, y, wanted in jobs:
        assert torch.equal(y, wanted)


def test_residual_in_the_outputs_place_is_refused():
    x, weight, bias = gemm_inputs(16, 64, 64, torch.float16)
    residual, gamma, beta = norm_inputs(16, 64, torch.float16)
    with pytest.raises(KernelError, match="FusedGemmLayerNorm: residual and y are the same memory"):
        Bound("FusedGemmLayerNorm", [x, weight, bias, residual, gamma, beta], [residual], [EPSILON]).run()


def test_failure_is_reported():
    """A workspace that is too small: a status with the op named, and the process lives on."""
    inputs = (*gemm_inputs(131, 257, 101, torch.float16), *norm_inputs(131, 257, torch.float16))
    bound = Bound("FusedGemmLayerNorm", inputs, [poisoned(131, 257, dtype=torch.float16)], [EPSILON])
    bound.call.workspace_size = 16
    with pytest.raises(KernelError, match="FusedGemmLayerNorm: the workspace has 16 bytes"):
        bound.run()


@pytest.mark.parametrize("n", [32776, 8193])  # the second is not aligned to four elements
@pytest.mark.parametrize("op", ["EmbedLayerNorm", "FusedGemmLayerNorm"])
def test_rows_too_wide_for_layer_norm_are_refused(op, n):
    """Before anything is launched, with what is possible."""
    m, k = 3, 8
    if op == "EmbedLayerNorm":
        tables = [randn(2, n, dtype=torch.float16) for _ in range(2)]
        ids = torch.zeros(1, m, dtype=torch.int64, device="cuda")
        shape, inputs = (1, m, n), [ids, *tables, *norm_inputs(m, n, torch.float16)[1:], None, None, None]
    else:
        shape, inputs = (m, n), [*gemm_inputs(m, n, k, torch.float16), *norm_inputs(m, n, torch.float16)]
    y = poisoned(*shape, dtype=torch.float16)
    with pytest.raises(KernelError, match=f"{op}: {n} columns are too many for its LayerNorm, .* 32768, or 8192"):
        Bound(op, inputs, [y], [EPSILON]).run()
    torch.cuda.synchronize()
    assert torch.isnan(y).all()


def test_failed_launch_is_reported():
    """A grid that CUDA refuses: the error with the op's name, taken away so that the next launch is not blamed."""
    n = 128 * 65536  # columns: of so many tiles a grid's second dimension has one too few
    x, weight, bias = gemm_inputs(1, n, 1, torch.float32)
    gemm = Bound("FusedGemm", [x, weight, bias], [poisoned(1, n, dtype=torch.float32)], flags=native.NO_CUBLASLT)
    with pytest.raises(KernelError, match="FusedGemm: CUDA launch failed: invalid"):
        gemm.run()
    x, weight, bias = gemm_inputs(16, 64, 64, torch.float16)
    y = poisoned(16, 64, dtype=torch.float16)
    run("FusedGemm", [x, weight, bias], [y], [])
    check("FusedGemm", [y], [reference.fused_gemm(x, weight, bias)])


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_more_sequences_than_a_grid_has_layers(dtype, heads):
    """A grid's second and third dimension end at 65,535."""
    batch, sequence, size = 70001, 3, 24
    qkv, bias = randn(batch, sequence, 3 * heads * size, dtype=dtype), randn(3 * heads * size, dtype=dtype)
    mask = randint(2, (batch, sequence), torch.int32)
    expected = reference.fused_attention(qkv, bias, mask, heads, 0.2)
    many = math.sqrt(math.log(expected.numel()) / math.log(1e6))  # as in test_fused_attention
    all_tactics(
        "FusedAttention", [qkv, bias, mask], (batch, sequence, heads * size), dtype, [heads, 0.2], expected, many
    )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gelu_of_extremes(dtype, approximate):
    """As the op's body: inf stays, -inf times 0 is NaN, NaN comes through; large numbers stay or become 0."""
    m, n, k = 300, 256, 64
    large = 60000.0
    values = torch.tensor([math.inf, -math.inf, math.nan, large, -large], device="cuda").repeat(m // 5).to(dtype)
    wanted = torch.tensor([math.inf, math.nan, math.nan, large, -0.0], device="cuda").repeat(m // 5).to(dtype)
    x = torch.zeros(m, k, device="cuda", dtype=dtype)
    x[:, 0] = values
    weight, bias = torch.ones(n, k, device="cuda", dtype=dtype), torch.zeros(n, device="cuda", dtype=dtype)
    inputs = (x, weight, bias)
    bound = Bound("FusedGemmGelu", inputs, [poisoned(m, n, dtype=dtype)], [approximate])
    for tactic in range(-1, bound.tactics()):
        y = torch.zeros(m, n, device="cuda", dtype=dtype)
        run("FusedGemmGelu", inputs, [y], [approximate], tactic)
        same = torch.eq(y, wanted[:, None]) | (y.isnan() & wanted.isnan()[:, None])
        assert same.all(), f"tactic {tactic}: {y[:5, 0].tolist()}"


@pytest.mark.parametrize("m", [16, 1024, 4096])
def test_overflow_is_not_silent(m):
    """Sums beyond float16's range: a kernel that rounds them before LayerNorm gives NaN, never a wrong number.

    As float16 without fusion does. Those that keep them in float32 give the right result.
    """
    n, k = 768, 3072
    x, weight, bias = gemm_inputs(m, n, k, torch.float16, gain=1e4)
    inputs = (x, 8 * weight, bias, *norm_inputs(m, n, torch.float16))
    expected = reference.fused_gemm_layer_norm(*inputs, EPSILON)
    ends = set()
    for tactic in range(-1, Bound("FusedGemmLayerNorm", inputs, [poisoned(m, n, dtype=x.dtype)], [EPSILON]).tactics()):
        y = poisoned(m, n, dtype=torch.float16)
        run("FusedGemmLayerNorm", inputs, [y], [EPSILON], tactic)
        finite = torch.isfinite(y).all(dim=1)
        assert torch.isnan(y[~finite]).all()
        if finite.any():
            check("FusedGemmLayerNorm", [y[finite]], [expected[finite]])
        ends.add(bool(finite.all()))
    assert True in ends, "no tactic has the range of float32"
