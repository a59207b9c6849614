"""Every CUDA kernel against float64: shapes, dtypes, tactics, alignment; outputs and scratch are poisoned before a run.

On a GPU host:  python -m pytest tests/gpu -q    (BERTFUSE_CUDA_TEST_LIBRARY: the library, if it is not in build/lib)
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import reference  # noqa: E402
from kernels import Bound, KernelError, library_file  # noqa: E402
from tolerances import TOLERANCES  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that PyTorch can use"),
    pytest.mark.skipif(not library_file().exists(), reason=f"{library_file()} is not built (-DBERTFUSE_GPU_TESTS=ON)"),
]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
EPSILON = 1e-12


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))


def randn(*shape, dtype, gain=1.0, offset=0):
    """Random values; `offset` elements into its allocation, so that the pointer is that much off alignment."""
    flat = torch.randn(math.prod(shape) + offset, device="cuda") * gain
    return flat.to(dtype)[offset:].view(*shape)


def poisoned(*shape, dtype):
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def check(op, outputs, expected, scale=1.0):
    for actual, wanted in zip(outputs, expected, strict=True):
        tolerance = TOLERANCES[op, str(actual.dtype).removeprefix("torch.")]
        assert torch.isfinite(actual).all(), f"{op}: {(~torch.isfinite(actual)).sum().item()} values are not finite"
        error = (actual.double() - wanted).abs()
        excess = (error / (scale * (tolerance.atol + tolerance.rtol * wanted.abs()))).max().item()
        assert excess <= 1, f"{op}: largest error {error.max().item():.3g}, {excess:.2f} times what is allowed"


def run(op, inputs, outputs, attributes, tactic=-1):
    bound = Bound(op, inputs, outputs, attributes, tactic)
    bound.run()
    torch.cuda.synchronize()
    return bound


def gemm_inputs(m, n, k, dtype, offset=0, gain=1.0):
    x = randn(m, k, dtype=dtype, offset=offset, gain=gain)
    weight = randn(n, k, dtype=dtype, gain=1 / math.sqrt(k), offset=offset)
    return x, weight, randn(n, dtype=dtype, offset=offset)


def norm_inputs(m, n, dtype, offset=0):
    residual = randn(m, n, dtype=dtype, offset=offset)
    gamma = (1 + 0.2 * torch.randn(n, device="cuda")).to(dtype)
    return residual, gamma, randn(n, dtype=dtype)


def all_tactics(op, inputs, shape, dtype, attributes, expected, scale=1.0):
    """Runs the op with the tactic it chooses and with every other one."""
    tactics = Bound(op, inputs, [poisoned(*shape, dtype=dtype)], attributes).tactics()
    for tactic in range(-1, tactics):
        y = poisoned(*shape, dtype=dtype)
        run(op, inputs, [y], attributes, tactic)
        try:
            check(op, [y], [expected], scale)
        except AssertionError as error:
            raise AssertionError(f"tactic {tactic} of {tactics}: {error}") from None


SIZES = (
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
@pytest.mark.parametrize("size", [(128, 768, 768), (131, 257, 101), (77, 384, 384), (2048, 1024, 1024)], ids=str)
def test_fused_gemm_gelu_layer_norm(size, dtype, residual):
    m, n, k = size
    norm = norm_inputs(m, n, dtype)
    inputs = (*gemm_inputs(m, n, k, dtype), norm[0] if residual else None, *norm[1:])
    expected = reference.fused_gemm_gelu_layer_norm(*inputs, EPSILON, "none")
    all_tactics("FusedGemmGeluLayerNorm", inputs, (m, n), dtype, [EPSILON, "none"], expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_many_rows(dtype):
    m, n, k = 65536, 768, 768
    inputs = (*gemm_inputs(m, n, k, dtype), *norm_inputs(m, n, dtype))
    y = poisoned(m, n, dtype=dtype)
    run("FusedGemmLayerNorm", inputs, [y], [EPSILON])
    check(
        "FusedGemmLayerNorm",
        [y[-4096:]],
        [reference.fused_gemm_layer_norm(inputs[0][-4096:], *inputs[1:3], inputs[3][-4096:], *inputs[4:], EPSILON)],
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("offset", [1, 3])
def test_unaligned(offset, dtype):
    inputs = (*gemm_inputs(130, 384, 768, dtype, offset), *norm_inputs(130, 384, dtype, offset))
    y = randn(130, 384, dtype=dtype, offset=offset).fill_(float("nan"))
    run("FusedGemmLayerNorm", inputs, [y], [EPSILON])
    check("FusedGemmLayerNorm", [y], [reference.fused_gemm_layer_norm(*inputs, EPSILON)])
    qkv, bias = randn(2, 33, 3 * 128, dtype=dtype, offset=offset), randn(3 * 128, dtype=dtype, offset=offset)
    y = randn(2, 33, 128, dtype=dtype, offset=offset).fill_(float("nan"))
    run("FusedAttention", [qkv, bias, None], [y], [2, 0.125])
    check("FusedAttention", [y], [reference.fused_attention(qkv, bias, None, 2, 0.125)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_large_mean(dtype):
    """A row whose mean is a hundred times its deviation: E[x²] - E[x]² would lose it."""
    m, n, k = 256, 768, 768
    x, weight, bias = gemm_inputs(m, n, k, dtype)
    residual, gamma, beta = norm_inputs(m, n, dtype)
    inputs = (x, weight, (bias + 100).to(dtype), residual, gamma, beta)
    expected = reference.fused_gemm_layer_norm(*inputs, EPSILON)
    # The sum of 100 and a product near 1 has 6e-6 of float32 rounding, against a deviation of about 1.7.
    all_tactics("FusedGemmLayerNorm", inputs, (m, n), dtype, [EPSILON], expected, 3.0)


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
    # The largest of millions of errors is further out than the largest of thousands.
    many = 1.5 if expected.numel() > 1e6 else 1.0
    all_tactics(
        "FusedAttention", [qkv, bias, mask], (batch, sequence, heads * size), dtype, [heads, scale], expected, many
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_extreme_scores(dtype):
    """Scores in the hundreds: softmax is then nearly a maximum, and must not overflow."""
    qkv, bias = randn(2, 200, 3 * 128, dtype=dtype, gain=12), randn(3 * 128, dtype=dtype)
    expected = reference.fused_attention(qkv, bias, None, 2, 0.125)
    # Rounding moves a score of 600 by 1e-4 in float32, a weight by as much of itself, and with it a result of 40; that
    # of q + bias to 16 bits (5e-4 of 12) moves a score of 200 by 0.1.
    scale = 20.0 if dtype == torch.float32 else 60.0
    all_tactics("FusedAttention", [qkv, bias, None], (2, 200, 128), dtype, [2, 0.125], expected, scale * 12)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [32, 768, 1024, 77, 5000])
@pytest.mark.parametrize("given", ["all", "ids"])
def test_embed_layer_norm(columns, dtype, index, given):
    batch, sequence, words = 3, 50, 1000
    ids = torch.randint(0, words, (batch, sequence), device="cuda", dtype=index)
    types = torch.randint(0, 2, (batch, sequence), device="cuda", dtype=index) if given == "all" else None
    positions = torch.randint(0, 512, (batch, sequence), device="cuda", dtype=index) if given == "all" else None
    tables = [
        randn(words, columns, dtype=dtype),
        randn(2, columns, dtype=dtype) if given == "all" else None,
        randn(512, columns, dtype=dtype),
    ]
    inputs = [ids, types, positions, *tables, randn(columns, dtype=dtype), randn(columns, dtype=dtype)]
    y = poisoned(batch, sequence, columns, dtype=dtype)
    run("EmbedLayerNorm", inputs, [y], [EPSILON])
    check("EmbedLayerNorm", [y], [reference.embed_layer_norm(*inputs, EPSILON)])


def test_embedding_outside_its_table_is_nan():
    ids = torch.tensor([[0, -1, 10, -11]], device="cuda")
    word, position = randn(10, 64, dtype=torch.float16), randn(8, 64, dtype=torch.float16)
    gamma, beta = randn(64, dtype=torch.float16), randn(64, dtype=torch.float16)
    y = torch.zeros(1, 4, 64, device="cuda", dtype=torch.float16)
    run("EmbedLayerNorm", [ids, None, None, word, None, position, gamma, beta], [y], [EPSILON])
    assert torch.isnan(y[0, 2:]).all() and torch.isfinite(y[0, :2]).all()


CAPTURED = {
    "FusedGemmGelu": lambda: (gemm_inputs(128, 768, 768, torch.float16), [(128, 768)], ["none"]),
    "FusedGemmLayerNorm": lambda: (
        (*gemm_inputs(128, 768, 3072, torch.float16), *norm_inputs(128, 768, torch.float16)),
        [(128, 768)],
        [EPSILON],
    ),
    "FusedGemmGeluLayerNorm": lambda: (
        (*gemm_inputs(4096, 768, 768, torch.float16), *norm_inputs(4096, 768, torch.float16)),
        [(4096, 768)],
        [EPSILON, "none"],
    ),
    "FusedAttention": lambda: (
        [randn(2, 128, 2304, dtype=torch.float16), randn(2304, dtype=torch.float16), None],
        [(2, 128, 768)],
        [12, 0.125],
    ),
    "AddQKVBias": lambda: (
        [randn(2, 128, 2304, dtype=torch.float16), randn(2304, dtype=torch.float16)],
        [(2, 12, 128, 64)] * 3,
        [12],
    ),
    "EmbedLayerNorm": lambda: (
        [
            torch.randint(0, 10, (2, 9), device="cuda"),
            None,
            None,
            randn(10, 768, dtype=torch.float16),
            None,
            randn(9, 768, dtype=torch.float16),
            randn(768, dtype=torch.float16),
            randn(768, dtype=torch.float16),
        ],
        [(2, 9, 768)],
        [EPSILON],
    ),
}


@pytest.mark.parametrize("op", CAPTURED)
def test_capture_and_replay(op):
    inputs, shapes, attributes = CAPTURED[op]()
    outputs = [poisoned(*shape, dtype=torch.float16) for shape in shapes]
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
    for _ in range(50):
        for stream, bound, y, _ in jobs:
            with torch.cuda.stream(stream):
                y.fill_(float("nan"))
                bound.run()
    torch.cuda.synchronize()
    for _, _, y, wanted in jobs:
        assert torch.equal(y, wanted)


def test_failure_is_reported():
    """A workspace that is too small: a status with the op named, and the process lives on."""
    inputs = (*gemm_inputs(131, 257, 101, torch.float16), *norm_inputs(131, 257, torch.float16))
    bound = Bound("FusedGemmLayerNorm", inputs, [poisoned(131, 257, dtype=torch.float16)], [EPSILON])
    bound.call.workspace_size = 16
    with pytest.raises(KernelError, match="FusedGemmLayerNorm: the workspace has 16 bytes"):
        bound.run()
