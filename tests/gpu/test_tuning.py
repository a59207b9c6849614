"""Tactics have names, are measured through the library, and are used where a tuning file names them."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import EPSILON, GPU, check, gemm_inputs, norm_inputs, poisoned, randn, run  # noqa: E402
from tests.gpu.kernels import Bound, library_file, native  # noqa: E402
from tests.gpu.packed import expect  # noqa: E402

pytestmark = GPU
HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="Hopper's"
)
SIZES = ((128, 768, 768), (512, 384, 1536), (4096, 1024, 1024), (131, 257, 101))


def gemm(m, n, k, dtype=torch.float16, offset=0):
    inputs = (*gemm_inputs(m, n, k, dtype, offset), *norm_inputs(m, n, dtype, offset))
    return inputs, [poisoned(m, n, dtype=dtype)], [EPSILON]


def names(op, bound):
    return [native.tactic_name(op, bound.call, tactic, library_file()) for tactic in range(bound.tactics())]


def read(rows, header=None):
    """The tuning that the library makes of these rows, and what it remarks."""
    if header is None:
        from bertfuse.analysis.tuning import HEADER as header
    text = "\n".join([header, *("\t".join(row) for row in rows)])
    error, remark = native.Error(), ctypes.create_string_buffer(512)
    tuning = native.load_library(library_file()).bertfuse_read_tuning(
        text.encode(), b"tuning.tsv", remark, len(remark), ctypes.byref(error)
    )
    return tuning, remark.value.decode(), error.message.decode()


def identity():
    return next(native.gpus(library_file())).identity.decode()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_names_tell_tactics_apart(size, dtype):
    bound = Bound("FusedGemmLayerNorm", *gemm(*size, dtype))
    known = names("FusedGemmLayerNorm", bound)
    assert len(set(known)) == len(known)
    assert native.tactic_name("FusedGemmLayerNorm", bound.call, -1, library_file()) in known
    problem = native.problem("FusedGemmLayerNorm", bound.call, library_file())
    assert problem == f"FusedGemmLayerNorm {str(dtype).removeprefix('torch.')} {'x'.join(map(str, size))}"


def test_a_file_names_the_tactic():
    size = (512, 768, 768)
    inputs, outputs, attributes = gemm(*size)
    op = "FusedGemmLayerNorm"
    problem = f"{op} float16 512x768x768"
    expected = reference.fused_gemm_layer_norm(*inputs, *attributes)
    for name in names(op, Bound(op, inputs, outputs, attributes)):
        tuning, remark, _ = read([(identity(), problem, name)])
        assert not remark
        bound = Bound(op, inputs, outputs, attributes, tuning=tuning)
        assert native.tactic_name(op, bound.call, -1, library_file()) == name
        outputs[0].fill_(float("nan"))
        bound.run()
        check(op, outputs, [expected])
    other = gemm(256, 768, 768)
    tuned, untuned = Bound(op, *other, tuning=tuning), Bound(op, *other)
    assert native.tactic_name(op, tuned.call, -1, library_file()) == native.tactic_name(
        op, untuned.call, -1, library_file()
    )


@HOPPER
def test_layer_norms_kernel_is_replaced_alone():
    """Where a row's bits are not to depend on the number of rows, or vectors lie on 8 bytes: the product stays."""
    op, product = "FusedGemmLayerNorm", "sm90 64x96 cluster 2x1 then LayerNorm, "
    inputs, outputs, attributes = gemm(512, 768, 768)

    def used(kernel, gamma, **fields):
        tuning, remark, _ = read([(identity(), f"{op} float16 512x768x768", product + kernel)])
        assert not remark
        call = [*inputs[:4], gamma, inputs[5]]
        bound = Bound(op, call, outputs, attributes, tuning=tuning, **fields)
        outputs[0].fill_(float("nan"))
        bound.run()
        check(op, outputs, [reference.fused_gemm_layer_norm(*call, *attributes)])
        return native.tactic_name(op, bound.call, -1, library_file())

    deterministic, on_8_bytes = native.DETERMINISTIC_ROWS, randn(768, dtype=torch.float16, offset=4)
    assert used("block per row", inputs[4]) == product + "block per row"
    assert used("block per row", inputs[4], flags=deterministic) == product + "persistent warps"
    assert used("persistent warps", on_8_bytes) == product + "block per row"


def test_a_tactic_that_alignment_forbids_is_left():
    inputs, outputs, attributes = gemm(512, 768, 768)
    op = "FusedGemmLayerNorm"
    fastest = names(op, Bound(op, inputs, outputs, attributes))[0]
    tuning, remark, _ = read([(identity(), f"{op} float16 512x768x768", fastest)])
    assert not remark
    inputs, outputs, attributes = gemm(512, 768, 768, offset=1)
    run(op, inputs, outputs, attributes, tuning=tuning)
    check(op, outputs, [reference.fused_gemm_layer_norm(*inputs, *attributes)])


def test_attention_tactic():
    qkv, bias = randn(2, 100, 3 * 128, dtype=torch.float16), randn(3 * 128, dtype=torch.float16)
    y = poisoned(2, 100, 128, dtype=torch.float16)
    for name in ("mma 64x64", "mma 128x64", "simt"):
        tuning, remark, _ = read([(identity(), "FusedAttention float16 2x100x2x64", name)])
        bound = Bound("FusedAttention", [qkv, bias, None], [y], [2, 0.125], tuning=tuning)
        assert not remark and native.tactic_name("FusedAttention", bound.call, -1, library_file()) == name
        y.fill_(float("nan"))
        bound.run()
        check("FusedAttention", [y], [reference.fused_attention(qkv, bias, None, 2, 0.125)])


def test_packed_attention_tactic():
    """By the number of sequences and of rows; a padded call of the same shape is another problem."""
    qkv, bias = randn(4, 60, 3 * 128, dtype=torch.float16), randn(3 * 128, dtype=torch.float16)
    offsets = torch.tensor([0, 30, 100], dtype=torch.int32, device="cuda")
    y = poisoned(4, 60, 128, dtype=torch.float16)
    sequences = [qkv.view(1, 240, -1)[:, begin:end] for begin, end in ((0, 30), (30, 100))]
    parts = [reference.fused_attention(sequence, bias, None, 2, 0.125)[0] for sequence in sequences]
    attention, attributes = "FusedAttention", [2, 0.125]
    for name in names(attention, Bound(attention, [qkv, bias, None, offsets], [y], attributes)):
        expect(240, 240)
        tuning, remark, _ = read([(identity(), "FusedAttention float16 2x240x2x64 packed", name)])
        bound = Bound(attention, [qkv, bias, None, offsets], [y], attributes, tuning=tuning)
        assert not remark and native.tactic_name(attention, bound.call, -1, library_file()) == name
        y.fill_(float("nan"))
        bound.run()
        check(attention, [y.view(240, -1)[:100]], [torch.cat(parts)])
    times = native.time_tactics(attention, bound.call, 5.0, library_file())
    assert {row[0] for row in times} == set(names(attention, bound))


def test_what_does_not_fit_is_remarked():
    row = (identity(), "FusedGemmGelu float16 128x768x768", "mma 128x128")
    assert "measured on 'NVIDIA Nothing'" in read([("NVIDIA Nothing", *row[1:])])[1]
    assert "1 of 2 rows" in read([row, (*row[:2], "sm90 1x1 cluster 9x9")])[1]
    assert "1 of 1 rows" in read([(row[0], "FusedGemmNothing float16 1x1x1", "mma 128x128")])[1]
    assert "library 0.0.0" in read([row], "bertfuse tuning 1, library 0.0.0")[1]
    tuning, _, error = read([row], "something else")
    assert tuning is None and "is not a tuning file" in error


@pytest.mark.parametrize("row", ["128x0x768", "128x-192x768", "0x768x768", "128x768", "128x768x0", "1x2x3x4"])
def test_sizes_that_no_product_has_are_remarked(row):
    assert "1 of 1 rows" in read([(identity(), f"FusedGemmLayerNorm float16 {row}", "mma 128x128")])[1]


def test_tf32_has_rows_of_its_own():
    """What was measured without TF32 does not decide where it is allowed, nor the other way round."""
    op, size = "FusedGemmLayerNorm", (512, 768, 768)
    call = gemm(*size, torch.float32)
    own = native.NO_CUBLASLT
    exact, rounded = Bound(op, *call, flags=own), Bound(op, *call, flags=native.ALLOW_TF32 | own)
    assert native.problem(op, rounded.call, library_file()) == f"{op} tf32 512x768x768"
    simt = [f"simt then LayerNorm, {kernel} per row" for kernel in ("block", "warp")]
    of_both = [names(op, bound) for bound in (exact, rounded)]
    assert all(listed[-2:] == simt and all(name.startswith("mma ") for name in listed[:-2]) for listed in of_both)
    tuning, remark, _ = read([(identity(), f"{op} float32 512x768x768", simt[0])])
    assert not remark
    tuned = Bound(op, *call, flags=native.ALLOW_TF32 | own, tuning=tuning)
    assert native.tactic_name(op, tuned.call, -1, library_file()).startswith("mma ")
    tuning, remark, _ = read([(identity(), f"{op} tf32 512x768x768", simt[0])])
    assert not remark
    tuned = Bound(op, *call, flags=native.ALLOW_TF32 | own, tuning=tuning)
    assert native.tactic_name(op, tuned.call, -1, library_file()) == simt[0]
    of_halves = "mma 256x128 then LayerNorm, block per row"  # too large a tile for float32
    assert "1 of 1 rows" in read([(identity(), f"{op} float32 512x768x768", of_halves)])[1]


def test_a_call_that_is_not_valid_has_no_problem():
    qkv, bias = randn(2, 10, 48, dtype=torch.float16), randn(48, dtype=torch.float16)
    bound = Bound("FusedAttention", [qkv, bias, None], [poisoned(2, 10, 16, dtype=torch.float16)], [0, 0.125])
    with pytest.raises(native.NativeError, match="FusedAttention: attribute 'num_heads'"):
        native.problem("FusedAttention", bound.call, library_file())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_tactic_is_timed(dtype):
    inputs, outputs, attributes = gemm(1024, 768, 768, getattr(torch, dtype))
    bound = Bound("FusedGemmLayerNorm", inputs, outputs, attributes, constant_inputs=0b110110)
    timings = native.time_tactics("FusedGemmLayerNorm", bound.call, 2.0, library_file())
    assert sorted(name for name, _, _ in timings) == sorted(names("FusedGemmLayerNorm", bound))
    assert sum(is_default for _, _, is_default in timings) == 1
    assert all(1 < microseconds < 1e5 for _, microseconds, _ in timings)
    best = min(microseconds for _, microseconds, _ in timings)
    slow = min(microseconds for name, microseconds, _ in timings if name.startswith("simt"))
    assert slow > 1.5 * best or dtype == "float32"
