"""FusedRMSNorm on the GPU: against float64, of padded and of packed rows, whatever their size and alignment."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from bertfuse.measuring.cuda_graphs import capture  # noqa: E402
from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import EPSILON, FLOATS, GPU, check, near_one, poisoned, randint, randn, run  # noqa: E402
from tests.gpu.kernels import Bound, KernelError, native  # noqa: E402
from tests.gpu.packed import Guarded, count_of, expect, pack  # noqa: E402

pytestmark = GPU
OP = "FusedRMSNorm"

# (leading axes, columns): models' own, one of each, odd ones, the widest of either kind, heads of a projection.
SIZES = (
    ((8, 128), 768),
    ((32, 512), 1024),
    ((1,), 1),
    ((131,), 77),
    ((3, 50), 1028),
    ((5,), 32768),
    ((5,), 8191),
    ((2, 3, 40), 128),
)


def made(leading, columns, dtype, offset=0, gamma_offset=1.0):
    """x and a gamma that is near 1 with what is added to it."""
    gamma = near_one(columns, torch.float32) - gamma_offset
    return [randn(*leading, columns, dtype=dtype, offset=offset), gamma.to(dtype)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("constant", [0, 0b10], ids=["input", "constant"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_against_float64(size, constant, dtype):
    attributes = [random.choice((1e-5, 1e-6)), random.choice((0.0, 1.0))]
    inputs = made(*size, dtype, gamma_offset=attributes[1])
    y = poisoned(*inputs[0].shape, dtype=dtype)
    run(OP, inputs, [y], attributes, constant_inputs=constant)
    check(OP, [y], [reference.fused_rms_norm(*inputs, *attributes)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("offset", [1, 2, 4])
@pytest.mark.parametrize("of", ["x", "gamma", "y"])
@pytest.mark.parametrize("rows", [7, 3000])
def test_off_alignment(rows, of, offset, dtype):
    x, gamma = made((rows,), 768, dtype, offset if of == "x" else 0)
    if of == "gamma":
        gamma = torch.cat([gamma.new_zeros(offset), gamma])[offset:]
    y = poisoned(rows * 768 + offset, dtype=dtype)[offset if of == "y" else 0 :][: rows * 768].view(rows, 768)
    run(OP, [x, gamma], [y], [EPSILON, 1.0])
    check(OP, [y], [reference.fused_rms_norm(x, gamma, EPSILON, 1.0)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [(4800, 768), (200, 77), (131, 1024)], ids=str)
def test_packed(size, dtype):
    """As many rows as the device says, whatever the host expects; nothing behind them is written."""
    capacity, columns = size
    x, gamma = made((capacity,), columns, dtype)
    wanted = reference.fused_rms_norm(x, gamma, EPSILON, 1.0)
    for rows in (0, 1, random.randint(2, capacity - 1), capacity):
        expect(random.randint(1, capacity), capacity)
        given = x.clone()
        given[rows:] = float("nan")
        y = Guarded(capacity, columns, dtype=dtype)
        run(OP, [given, gamma, count_of(rows)], [y.tensor], [EPSILON, 1.0])
        y.check()
        check(OP, [y.tensor[:rows]], [wanted[:rows]])
        assert y.tensor[rows:].isnan().all(), f"wrote behind {rows} of {capacity} rows"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_right_behind_the_kernel_that_counts(dtype):
    """Replayed over and over with another mask each time: no number of rows but the new one may be read."""
    batch, sequence, columns = 16, 128, 768
    mask = randint(2, (batch, sequence), torch.int32)
    counts = list(pack(mask))
    x, gamma = made((batch, sequence), columns, dtype)
    outputs = [poisoned(batch, sequence, columns, dtype=dtype) for _ in range(2)]
    norms = [Bound(OP, [x, gamma, counts[2]], [y], [EPSILON, 1.0]) for y in outputs]
    graph = capture([Bound("PackTokens", [mask], counts).run, *(norm.run for norm in norms)])
    wanted = reference.fused_rms_norm(x, gamma, EPSILON, 1.0).view(-1, columns)
    for _ in range(20):
        mask.copy_(torch.rand(batch, sequence, device="cuda") < random.random())
        for y in outputs:
            y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        rows = int(mask.sum())
        for y in outputs:
            flat = y.view(-1, columns)
            assert flat[rows:].isnan().all()
            check(OP, [flat[:rows]], [wanted[:rows]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [384, 768, 1028])
def test_deterministic_rows(columns, dtype):
    """A row's bits are the same in any batch."""
    x, gamma = made((5000,), columns, dtype)
    bits = []
    for rows in (5000, 300, 3):
        y = poisoned(rows, columns, dtype=dtype)
        run(OP, [x[:rows].contiguous(), gamma], [y], [EPSILON, 1.0], flags=native.DETERMINISTIC_ROWS)
        bits.append(y)
    for y in bits[1:]:
        assert torch.equal(y, bits[0][: len(y)])


@pytest.mark.parametrize("columns", [8193, 32772])
def test_rows_that_are_too_wide(columns):
    inputs = made((2,), columns, torch.float16)
    with pytest.raises(KernelError, match="columns are too many"):
        run(OP, inputs, [poisoned(2, columns, dtype=torch.float16)], [EPSILON, 1.0])


@pytest.mark.parametrize("shape", [(0, 16), (3, 0)], ids=str)
def test_empty(shape):
    run(OP, made(shape[:1], shape[1], torch.float16), [poisoned(*shape, dtype=torch.float16)], [EPSILON, 1.0])
