"""FusedGemmRotary on the GPU: every tactic against float64, of padded and of packed rows; and attention behind it."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import FLOATS, GPU, all_tactics, check, gemm_inputs, poisoned, randint, run, turns  # noqa: E402
from tests.gpu.kernels import Bound, KernelError, library_file, native  # noqa: E402
from tests.gpu.packed import Guarded, count_of, expect, tactic_names  # noqa: E402

pytestmark = GPU
OP = "FusedGemmRotary"

# (batch, sequence, k, heads of Q, of K, size, pairs, how paired): models' own, several waves, parts of tiles, and what
# no epilogue rotates: other heads, parts of heads, neighbours, nothing aligned.
PRODUCTS = (
    (1, 128, 768, 12, 12, 64, 32, "halves"),
    (8, 512, 768, 12, 12, 64, 32, "halves"),
    (5, 77, 384, 6, 2, 64, 32, "halves"),
    (3, 1100, 520, 3, 1, 64, 32, "halves"),
    (2, 130, 256, 4, 4, 64, 16, "halves"),
    (2, 130, 256, 4, 4, 64, 32, "neighbours"),
    (2, 100, 512, 4, 2, 128, 64, "halves"),
    (1, 131, 101, 7, 1, 11, 5, "halves"),
)


def made(size, dtype):
    batch, sequence, k, heads, kv_heads, head, pairs, how = size
    n = (heads + 2 * kv_heads) * head
    x, weight, bias = gemm_inputs(batch * sequence, n, k, dtype)
    cos, sin = turns(sequence, pairs, dtype)
    inputs = [x.view(batch, sequence, k), weight, cos, sin, random.choice([None, bias])]
    return inputs, [heads, kv_heads, how], (batch, sequence, n)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_rotated(size, dtype):
    inputs, attributes, shape = made(size, dtype)
    all_tactics(OP, inputs, shape, dtype, attributes, reference.fused_gemm_rotary(*inputs, *attributes))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "all real"])
@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_packed(size, counted, dtype):
    """Each row by its own place; as many rows as the device says, and nothing behind them is written."""
    inputs, attributes, shape = made(size, dtype)
    capacity = shape[0] * shape[1]
    in_batch = random.random() < 0.5  # places of the padded batch, else rows of the tables
    attributes = [*attributes, "batch" if in_batch else "tables"]
    places = randint(capacity if in_batch else shape[1], shape[:2], torch.int32)
    wanted = reference.fused_gemm_rotary(*inputs, *attributes, places).flatten(0, 1)
    for rows in (0, 1, random.randint(1, capacity), capacity) if counted else (capacity,):
        expect(random.randint(1, capacity), capacity)
        call = [t.clone() if t is not None else None for t in (*inputs, places)]
        call[0].view(capacity, -1)[rows:] = float("nan")
        call[5].view(-1)[rows:] = 1 << 30
        call += [count_of(rows)] if counted else []
        names = tactic_names(OP, Bound(OP, call, [poisoned(*shape, dtype=dtype)], attributes), library_file())
        for tactic in range(-1, len(names)):
            y = Guarded(*shape, dtype=dtype)
            try:
                run(OP, call, [y.tensor], attributes, tactic)
                y.check()
                check(OP, [y.tensor.flatten(0, 1)[:rows]], [wanted[:rows]])
            except (AssertionError, KernelError) as error:
                raise AssertionError(f"{names[tactic] if tactic >= 0 else 'chosen'}, {rows} rows: {error}") from None


@pytest.mark.parametrize("size", PRODUCTS[:4], ids=str)
def test_rows_of_the_same_bits(size):
    """Deterministic: a sequence alone has the bits that it has in a batch."""
    inputs, attributes, shape = made(size, torch.float16)
    flags = native.DETERMINISTIC_ROWS
    together, alone = (poisoned(count, *shape[1:], dtype=torch.float16) for count in (shape[0], 1))
    run(OP, inputs, [together], attributes, flags=flags)
    run(OP, [inputs[0][-1:].contiguous(), *inputs[1:]], [alone], attributes, flags=flags)
    torch.cuda.synchronize()
    assert torch.equal(together[-1:], alone)
