"""RotaryTables on the GPU: every place against float64, and in front of a product that reads the tables."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from bertfuse.measuring.cuda_graphs import capture  # noqa: E402
from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import FLOATS, GPU, check, gemm_inputs, poisoned, randint  # noqa: E402
from tests.gpu.kernels import Bound  # noqa: E402

pytestmark = GPU
OP, PRODUCT = "RotaryTables", "FusedGemmRotary"

# (places, pairs): models' own, one of each, parts of warps and blocks, more of both than a block has.
SIZES = ((128, 32), (8192, 32), (512, 64), (2048, 128), (1, 1), (77, 5), (131, 33), (40000, 16))


def made(places, pairs, dtype, angle="product", base=10000.0):
    frequencies = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    frequencies = (frequencies if angle == "product" else 1 / frequencies).float().cuda()
    tokens = randint(100, random.choice([(places,), (2, places)]), torch.int64)
    return [tokens, frequencies, torch.zeros((), dtype=dtype, device="cuda")]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("constant", [0, 0b110], ids=["inputs", "constants"])
@pytest.mark.parametrize("angle", ["product", "quotient"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_against_float64(size, angle, constant, dtype):
    inputs = made(*size, dtype, angle, random.choice([100.0, 10000.0, 160000.0, 1e6]))
    attributes = [angle, random.choice([1.0, 1.1386, 0.7])]
    tables = [poisoned(*size, dtype=dtype) for _ in range(2)]
    Bound(OP, inputs, tables, attributes, constant_inputs=constant).run()
    torch.cuda.synchronize()
    check(OP, tables, list(reference.rotary_tables(*inputs, *attributes)))


def test_angles_of_many_turns():
    """Beyond 105,615 radians sines take another way to reduce an angle."""
    inputs = made(3000, 32, torch.float32)
    inputs[1] = inputs[1] * 1000
    tables = [poisoned(3000, 32, dtype=torch.float32) for _ in range(2)]
    Bound(OP, inputs, tables, ["product", 1.0]).run()
    torch.cuda.synchronize()
    check(OP, tables, list(reference.rotary_tables(*inputs)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_product_waits_for_its_tables(dtype):
    """Replayed over and over, tables made anew each time from other frequencies in the same memory."""
    batch, sequence, heads = 4, 200, 12
    x, weight, _ = gemm_inputs(batch * sequence, 3 * heads * 64, 768, dtype)
    inputs, tables = made(sequence, 32, dtype), [poisoned(sequence, 32, dtype=dtype) for _ in range(2)]
    y = poisoned(batch, sequence, 3 * heads * 64, dtype=dtype)
    product = [x.view(batch, sequence, 768), weight, *tables, None]
    calls = [Bound(OP, inputs, tables), Bound(PRODUCT, product, [y], [heads, heads, "halves"])]
    graph = capture([call.run for call in calls])
    for _ in range(20):
        inputs[1].copy_(made(sequence, 32, dtype, base=random.uniform(10, 1e6))[1])
        for tensor in (*tables, y):
            tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check(OP, tables, list(reference.rotary_tables(*inputs)))
        check(PRODUCT, [y], [reference.fused_gemm_rotary(*product, heads, heads, "halves")])
