"""Products in the process's cuBLASLt: every algorithm against float64, captured, from several threads, packed.

PyTorch brings the library. tests/plugins/test_cublaslt.py has what needs no GPU: bad libraries, failing calls.
"""

from __future__ import annotations

import random
import threading

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import EPSILON, FLOATS, GPU, check, gemm_inputs, norm_inputs, poisoned  # noqa: E402
from tests.gpu.kernels import Bound, constants, library_file, native  # noqa: E402
from tests.gpu.packed import Guarded, count_of, expect, tactic_names  # noqa: E402


def _absent() -> bool:
    if not torch.cuda.is_available():
        return True
    try:
        gpu = next(native.gpus(library_file()), None)
    except Exception:  # GPU says why there is no library
        return True
    return gpu is None or "cublaslt" not in gpu.backends.decode().split()


pytestmark = [*GPU, pytest.mark.skipif(_absent(), reason="the process has no libcublasLt that can be used")]
OPS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm", "FusedGemmGeluLayerNorm")
DTYPES = [*FLOATS, "tf32"]


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(10**6)
    print("seed", seed)
    torch.manual_seed(seed)
    return random.Random(seed)


def size(rng: random.Random, most: int) -> int:
    """As often small as large, on a boundary of 8 elements or not."""
    drawn = int(most ** rng.random())
    return max(1, drawn // 8 * 8 if rng.random() < 0.6 and drawn >= 8 else drawn)


def product(op, m, n, k, dtype, offset, rng):
    """Inputs, attributes and float64 results of a call."""
    x, weight, bias = gemm_inputs(m, n, k, dtype, offset)
    if op == "FusedGemm":
        inputs = (x, weight, bias if rng.random() < 0.6 else None)
        attributes = [rng.choice(("none", "gelu", "gelu_tanh"))]
        return inputs, attributes, reference.fused_gemm(*inputs, *attributes)
    gelu = rng.choice(("none", "tanh"))
    if op == "FusedGemmGelu":
        return (x, weight, bias), [gelu], reference.fused_gemm_gelu(x, weight, bias, gelu)
    inputs = (x, weight, bias, *norm_inputs(m, n, dtype, offset, op))
    if op == "FusedGemmLayerNorm":
        return inputs, [EPSILON], reference.fused_gemm_layer_norm(*inputs, EPSILON)
    return inputs, [EPSILON, gelu], reference.fused_gemm_gelu_layer_norm(*inputs, EPSILON, gelu)


def settings(dtype):
    """The tensors' type, flags of the call, and the row of the table of tolerances."""
    if dtype == "tf32":
        return torch.float32, native.ALLOW_TF32, "tf32"
    return dtype, 0, None


def of_cublaslt(op, bound):
    names = tactic_names(op, bound, library_file())
    return {i: name for i, name in enumerate(names) if name.startswith("cublaslt")}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_random_products(op, dtype, rng):
    """Every algorithm, on tensors on and off alignment; a second time with weights that may be read early."""
    dtype, flags, row = settings(dtype)
    ran = 0
    for _ in range(12):
        m, n, k, offset = size(rng, 5000), size(rng, 4096), size(rng, 3072), rng.choice((0, 0, 0, 1, 4, 8))
        if "LayerNorm" in op:
            n = max(n, 64)  # of a few columns that are nearly alike a rounding shifts all
        inputs, attributes, wanted = product(op, m, n, k, dtype, offset, rng)
        probe = Bound(op, inputs, [poisoned(m, n, dtype=dtype)], attributes, flags=flags)
        for tactic, name in of_cublaslt(op, probe).items():
            y, again = (Guarded(m, n, dtype=dtype) for _ in range(2))
            where = f"{op} {dtype} {m}x{n}x{k} offset {offset} {attributes}, {name}"
            print(where)
            Bound(op, inputs, [y.tensor], attributes, tactic, flags=flags).run()
            bound = Bound(op, inputs, [again.tensor], attributes, tactic, constants(inputs), flags=flags)
            bound.run()
            bound.run()
            torch.cuda.synchronize()
            y.check()
            again.check()
            # Of a few products the sum is far from normal, and larger beside its deviation than the table is made for.
            more = 2e-3 if row == "tf32" and k < 64 else 0.0
            check(op, [y.tensor], [wanted], dtype=row, more=more)
            assert torch.equal(y.tensor, again.tensor), f"{where}: other bits with constant weights"
            ran += 1
    assert ran, "cuBLASLt has no algorithm for any of the products"


FAST_TENSOR_CORES = (8, 0), (9, 0), (10, 0)  # three products of TF32 faster than one of float32: PrefersThreeTf32()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_bert_sizes_have_algorithms(op, dtype, rng):
    """What models ask for: there are algorithms, and by TF32 products run in the first one but for few rows with more
    than a product; exact ones of float32 stay with the tensor cores, and of few rows in front of a LayerNorm k is
    split."""
    dtype, flags, row = settings(dtype)
    for m, n, k in ((128, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (131, 384, 1536)):
        inputs, attributes, wanted = product(op, m, n, k, dtype, 0, rng)
        y = poisoned(m, n, dtype=dtype)
        bound = Bound(op, inputs, [y], attributes, flags=flags)
        assert of_cublaslt(op, bound), f"{op} {dtype} {m}x{n}x{k}: no algorithm"
        if dtype == torch.float32 and torch.cuda.get_device_capability() in FAST_TENSOR_CORES:
            name = native.tactic_name(op, bound.call, -1, library_file())
            few = m <= 128 and op != "FusedGemm"  # and more than a product: PrefersFewRows()
            assert name.startswith("cublaslt" if flags and not few else "mma "), name
            assert flags or m >= 1024 or not op.endswith("LayerNorm") or "split-K" in name, name
        bound.run()
        torch.cuda.synchronize()
        check(op, [y], [wanted], dtype=row)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_captured_in_a_graph(op, dtype, rng):
    """Every algorithm, replayed over other inputs at the same addresses."""
    m, n, k = 8 * rng.randint(8, 100), 8 * rng.randint(8, 200), 8 * rng.randint(8, 200)
    inputs, attributes, _ = product(op, m, n, k, dtype, 0, rng)
    probe = Bound(op, inputs, [poisoned(m, n, dtype=dtype)], attributes)
    for tactic in of_cublaslt(op, probe):
        y = poisoned(m, n, dtype=dtype)
        bound = Bound(op, inputs, [y], attributes, tactic)
        bound.run()  # CUDA loads code on its first use
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bound.run()
            bound.run()
        first = y.clone()
        inputs[0].neg_()
        bound.run()
        torch.cuda.synchronize()
        other = y.clone()
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, other) and not torch.equal(y, first)
        inputs[0].neg_()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_threads_with_streams_of_their_own(dtype, rng):
    """Eight threads share the handle and the plans: each gets its own results, to the bit of a run alone."""
    jobs = []
    for _ in range(8):
        op = rng.choice(OPS)
        m, n, k = rng.choice(((256, 768, 768), (131, 1024, 512), (64, 384, 1536)))
        inputs, attributes, wanted = product(op, m, n, k, dtype, 0, rng)
        y = poisoned(m, n, dtype=dtype)
        tactic = rng.choice(list(of_cublaslt(op, Bound(op, inputs, [y], attributes))))
        bound = Bound(op, inputs, [y], attributes, tactic)
        bound.run()
        torch.cuda.synchronize()
        check(op, [y], [wanted])
        jobs.append((bound, y, y.clone()))
    faults = []

    def work(bound, y, alone):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                y.fill_(float("nan"))
                bound.run()
                stream.synchronize()
                if not torch.equal(y, alone):
                    faults.append("other bits beside other threads")
                    return

    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_packed_rows(op, dtype, rng):
    """Of other numbers of rows than are expected, too; what is behind the real ones reaches none of these."""
    capacity, n, k = rng.randint(100, 900), 8 * rng.randint(8, 120), 8 * rng.randint(8, 120)
    inputs, attributes, wanted = product(op, capacity, n, k, dtype, 0, rng)
    half, most = capacity // 2, capacity - 1
    for rows, expected in ((0, 1), (1, 1), (half, half), (half, 1), (most, half), (most, 1), (capacity, capacity)):
        expect(expected, capacity)
        given = [t.clone() if t is not None else None for t in inputs]
        for tensor in given:
            if tensor is not None and tensor.dim() == 2 and tensor.shape[0] == capacity and tensor is not given[1]:
                tensor[rows:] = float("nan")
        call = [*given, count_of(rows)]
        probe = Bound(op, call, [poisoned(capacity, n, dtype=dtype)], attributes)
        for tactic in of_cublaslt(op, probe):
            y = Guarded(capacity, n, dtype=dtype)
            Bound(op, call, [y.tensor], attributes, tactic).run()
            torch.cuda.synchronize()
            y.check()
            if rows:
                check(op, [y.tensor[:rows]], [wanted[:rows]])


def test_turned_off(rng):
    inputs, attributes, wanted = product("FusedGemmLayerNorm", 300, 768, 768, torch.float32, 0, rng)
    y = poisoned(300, 768, dtype=torch.float32)
    bound = Bound("FusedGemmLayerNorm", inputs, [y], attributes, flags=native.NO_CUBLASLT)
    assert not of_cublaslt("FusedGemmLayerNorm", bound)
    assert native.tactic_name("FusedGemmLayerNorm", bound.call, -1, library_file()).startswith(("mma", "simt"))
    bound.run()
    torch.cuda.synchronize()
    check("FusedGemmLayerNorm", [y], [wanted])
