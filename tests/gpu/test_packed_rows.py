"""Packed rows on the GPU: products and LayerNorm of as many rows as the device says, whatever the host expects."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import EPSILON, FLOATS, GPU, check, gemm_inputs, near_one, norm_inputs, randint, randn  # noqa: E402
from tests.gpu.kernels import Bound, KernelError, constants, library_file, native  # noqa: E402
from tests.gpu.packed import Guarded, count_of, expect, pack, tactic_names  # noqa: E402

pytestmark = GPU
GEMMS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm", "FusedGemmGeluLayerNorm")
NAN = float("nan")


def gemm_call(op, capacity, n, k, dtype):
    """Inputs without row_count, attributes, and the float64 result of every row."""
    x, weight, bias = gemm_inputs(capacity, n, k, dtype)
    gelu = ["tanh"] * ("Gelu" in op)
    if "LayerNorm" not in op:
        inputs = [x, weight, bias]
        return inputs, gelu, getattr(reference, "fused_gemm_gelu" if gelu else "fused_gemm")(*inputs, *gelu)
    inputs = [x, weight, bias, *norm_inputs(capacity, n, dtype, op=op)]
    name = "fused_gemm_gelu_layer_norm" if gelu else "fused_gemm_layer_norm"
    return inputs, [EPSILON, *gelu], getattr(reference, name)(*inputs, EPSILON, *gelu)


def rows_of(inputs, rows, capacity):
    """The inputs with their first rows alone."""
    return [
        t[:rows].contiguous() if t is not None and t.shape[:1] == (capacity,) and t.dim() == 2 else t for t in inputs
    ]


def poisoned_behind(inputs, weight, rows, capacity):
    """Copies in which the rows that are not real are NaN."""
    copies = []
    for tensor in inputs:
        if tensor is not weight and tensor.dim() == 2 and tensor.shape[0] == capacity:
            tensor = tensor.clone()
            tensor[rows:] = NAN
        copies.append(tensor)
    return copies


def every_tactic(op, capacity, n, k, dtype, counts, expected_rows=None, tactics=None):
    """Each tactic at each count: like float64, like the kernel of as many rows without row_count, and nothing outside.

    `expected_rows` is what the host expects; by default the count itself. A tactic's results are the same to the bit
    whatever that is.
    """
    inputs, attributes, wanted = gemm_call(op, capacity, n, k, dtype)
    library = library_file()
    for rows in counts:
        expect(max(rows, 1) if expected_rows is None else expected_rows, capacity)
        given = poisoned_behind(inputs, inputs[1], rows, capacity)
        y = Guarded(capacity, n, dtype=dtype)
        call = [*given, count_of(rows)]
        names = tactic_names(op, Bound(op, call, [y.tensor], attributes), library)
        alone = rows_of(inputs, rows, capacity)
        there = {}
        if rows > 0:
            bound = Bound(op, alone, [y.tensor[:rows]], attributes)
            there = {name: i for i, name in enumerate(tactic_names(op, bound, library))}
        for tactic in range(-1, len(names)):
            if tactics is not None and tactic >= 0 and not tactics(names[tactic]):
                continue
            where = (
                f"{op} {dtype} {rows} of {capacity} rows x{n}x{k}, tactic {names[tactic] if tactic >= 0 else 'chosen'}"
            )
            try:
                y = Guarded(capacity, n, dtype=dtype)
                Bound(op, call, [y.tensor], attributes, tactic).run()
                torch.cuda.synchronize()
                y.check()
                if rows == 0:
                    continue
                check(op, [y.tensor[:rows]], [wanted[:rows]])
                # Once more with weights that may be read early, twice in a row.
                early = Guarded(capacity, n, dtype=dtype)
                again = Bound(op, call, [early.tensor], attributes, tactic, constant_inputs=constants(inputs))
                again.run()
                again.run()
                torch.cuda.synchronize()
                early.check()
                assert torch.equal(early.tensor[:rows], y.tensor[:rows]), "something else with constant weights"
                # cuBLASLt computes all rows that there is room for, and chooses by their number.
                if tactic >= 0 and names[tactic] in there and not names[tactic].startswith("cublaslt"):
                    z = torch.full((rows, n), NAN, dtype=dtype, device="cuda")
                    Bound(op, alone, [z], attributes, there[names[tactic]]).run()
                    torch.cuda.synchronize()
                    assert torch.equal(y.tensor[:rows], z), "not what the kernel gives of these rows alone"
            except (AssertionError, KernelError) as error:
                raise AssertionError(f"{where}: {error}") from None


def near(*sizes):
    """Each size and its neighbours."""
    return sorted({max(size + step, 0) for size in sizes for step in (-1, 0, 1)})


# Parts of tiles and of clusters; whole rows in one cluster; nothing aligned.
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", GEMMS)
@pytest.mark.parametrize("n, k", [(384, 136), (768, 200), (37, 29)])
def test_counts_around_tiles(op, dtype, n, k):
    capacity = 517
    counts = [0, 1, *near(64, 128, 256), 385, capacity - 1, capacity, capacity + 9]
    every_tactic(op, capacity, n, k, dtype, [min(count, capacity) for count in counts])


# The persistent kernel: several tiles for a block, a last wave in splits or none, by the number of rows.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", GEMMS)
def test_counts_of_several_waves(op, dtype):
    capacity = 9001
    counts = [0, 1, 129, 1024, 4224, 4225, 4352, 6144, 8448, capacity - 1, capacity]
    every_tactic(op, capacity, 768, 1544, dtype, counts, tactics=lambda name: "128x192" in name)


# Fewer and more than the host expects: blocks of a grid that is too small take several tiles.
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", GEMMS)
@pytest.mark.parametrize("expected_rows", [1, 200, 2100])
def test_other_counts_than_expected(op, dtype, expected_rows):
    every_tactic(op, 2100, 384, 192, dtype, [0, 1, 150, 777, 2049, 2100], expected_rows)


@pytest.mark.parametrize("op", GEMMS)
def test_random_counts(op):
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(6):
        capacity = 2 * rng.randint(0, 2500) + 1  # odd: no weight has so many rows
        n, k = rng.choice((96, 128, 256, 384, 768, 1024)), 8 * rng.randint(1, 200)
        counts = [rng.randint(0, capacity) for _ in range(3)]
        expected_rows = rng.choice((None, rng.randint(1, capacity)))
        dtype = rng.choice((torch.float16, torch.bfloat16))
        print(op, dtype, capacity, n, k, counts, expected_rows)
        every_tactic(op, capacity, n, k, dtype, counts, expected_rows)


@pytest.mark.parametrize("count", [-5, 10**9])
@pytest.mark.parametrize("op", ["FusedGemm", "FusedGemmLayerNorm"])
def test_counts_out_of_range_stand_for_the_nearest(op, count):
    inputs, attributes, wanted = gemm_call(op, 300, 256, 128, torch.float16)
    y = Guarded(300, 256, dtype=torch.float16)
    Bound(op, [*inputs, count_of(count)], [y.tensor], attributes).run()
    torch.cuda.synchronize()
    y.check()
    if count > 0:
        check(op, [y.tensor], [wanted])


def test_hints_change_the_choice_and_can_be_turned_off():
    capacity, library = 8192, library_file()
    inputs, attributes, _ = gemm_call("FusedGemm", capacity, 768, 768, torch.float16)
    y = Guarded(capacity, 768, dtype=torch.float16)

    def chosen(flags=0):
        flags |= native.NO_CUBLASLT  # which has no tiles to choose among
        bound = Bound("FusedGemm", [*inputs, count_of(5)], [y.tensor], attributes, flags=flags)
        return native.tactic_name("FusedGemm", bound.call, -1, library), native.problem(
            "FusedGemm", bound.call, library
        )

    expect(capacity, capacity)
    many = chosen()
    expect(130, capacity)
    few = chosen()
    assert many[0] != few[0]
    assert few[1] == "FusedGemm float16 144x768x768"  # 130, rounded up
    assert chosen(flags=native.NO_ROW_HINTS) == many


MASKS = ((1, 1), (1, 4096), (3, 7), (128, 128), (33, 129), (2, 1023), (1025, 3), (2500, 40), (7, 5000))


def masks(dtype):
    """Random masks of many sizes: holes, left padding, rows of nothing and of everything."""
    for batch, sequence in MASKS:
        real = torch.rand(batch, sequence, device="cuda") < torch.rand(batch, 1, device="cuda") * 1.2
        real[0] = True
        if batch > 2:
            real[1], real[2, : sequence // 2] = False, False
        yield real.to(dtype) * torch.randint(1, 9, (batch, sequence), device="cuda").to(dtype)
    yield torch.zeros(5, 77, device="cuda", dtype=dtype)
    yield torch.full((4, 33), -1, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_pack_tokens(dtype):
    # More places than a warp's registers hold words of, and none at all.
    others = torch.randint(2, (37, 9001), device="cuda").to(dtype), torch.zeros(3, 0, device="cuda", dtype=dtype)
    for mask in (*masks(dtype), *others):
        index, cu_seqlens, count = pack(mask)
        flat = mask.flatten() != 0
        assert torch.equal(index.flatten().long(), torch.cat([flat.nonzero()[:, 0], (~flat).nonzero()[:, 0]]))
        lengths = (mask != 0).sum(1)
        assert torch.equal(cu_seqlens.long(), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        assert count.item() == flat.sum().item()


@pytest.mark.parametrize("width", [1, 3, 8, 384, 769])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unpack_and_first_tokens(dtype, width):
    for mask in masks(torch.int64):
        batch, sequence = mask.shape
        index, cu_seqlens, count = pack(mask)
        rows = count.item()
        x = randn(batch, sequence, width, dtype=dtype)
        x.view(-1, width)[rows:] = NAN
        y = Guarded(batch, sequence, width, dtype=dtype)
        Bound("UnpackTokens", [x, mask, index, count], [y.tensor]).run()
        first = Guarded(batch, width, dtype=dtype)
        Bound("FirstTokens", [x, cu_seqlens], [first.tensor]).run()
        torch.cuda.synchronize()
        y.check()
        first.check()
        wanted = torch.zeros_like(y.tensor)
        wanted[mask != 0] = x.view(-1, width)[:rows]
        assert torch.equal(y.tensor, wanted)
        begins = cu_seqlens.long()
        some = begins[:-1] < begins[1:]
        assert torch.equal(first.tensor[some], x.view(-1, width)[begins[:-1][some]])
        assert (first.tensor[~some] == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ragged_positions(dtype):
    for mask in masks(torch.int64):
        _, cu_seqlens, count = pack(mask)
        lengths = (mask != 0).sum(1)
        tokens = torch.zeros(1, count.item(), dtype=dtype, device="cuda")
        longest = torch.zeros(max(int(lengths.max()), 1), dtype=torch.int32, device="cuda")
        outputs = [torch.full_like(tokens, -7) for _ in range(2)]
        Bound("RaggedPositions", [tokens, cu_seqlens, longest], outputs).run()
        torch.cuda.synchronize()
        sequences = torch.arange(len(lengths), device="cuda").repeat_interleave(lengths)
        assert torch.equal(outputs[0][0].long(), sequences)
        places = torch.arange(count.item(), device="cuda") - cu_seqlens.long()[sequences]
        assert torch.equal(outputs[1][0].long(), places)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", [77, 384, 768])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_embed_layer_norm(dtype, width, index):
    for mask in masks(torch.int32):
        batch, sequence = mask.shape
        places, _, count = pack(mask)
        rows = count.item()
        tables = [randn(size, width, dtype=dtype) for size in (50, sequence, 3)]
        gamma, beta = near_one(width, dtype), randn(width, dtype=dtype)
        ids, types = randint(50, (batch, sequence), index), randint(3, (batch, sequence), index)
        positions = randint(sequence, (batch, sequence), index)
        ids[mask == 0] = 10**6  # padding is not looked up
        words, position, type_table = tables
        for given in (
            (position, gamma, beta, types, type_table, None),
            (position, gamma, beta, types, type_table, positions),
            (None, gamma, beta, None, None, None),
        ):
            y = Guarded(batch, sequence, width, dtype=dtype)
            inputs = [ids, words, *given, places, count]
            Bound("EmbedLayerNorm", inputs, [y.tensor], [EPSILON]).run()
            torch.cuda.synchronize()
            y.check()
            real = ids * (mask != 0)
            wanted = reference.embed_layer_norm(real, words, *given, EPSILON)[mask != 0]
            if rows:
                check("EmbedLayerNorm", [y.tensor.view(-1, width)[:rows]], [wanted])


def test_bad_offsets_and_indices_touch_nothing_else():
    """What no device can report: results are unspecified, and every access lies within the tensors."""
    torch.manual_seed(3)
    for _ in range(30):
        rows, sequences, width = random.randint(1, 300), random.randint(1, 40), 8 * random.randint(1, 40)
        wild = torch.randint(-(2**31), 2**31 - 1, (sequences + 1,), device="cuda").int()
        index = torch.randint(-(2**31), 2**31 - 1, (1, rows), device="cuda").int()
        count = count_of(random.choice((-3, 0, rows, rows + 7, 2**31 - 1)))
        x = randn(1, rows, width, dtype=torch.float16)
        mask = torch.ones(1, rows, dtype=torch.int64, device="cuda")
        longest = torch.zeros(random.randint(1, 9), dtype=torch.int32, device="cuda")
        first, unpacked = Guarded(sequences, width, dtype=torch.float16), Guarded(1, rows, width, dtype=torch.float16)
        ids = [Guarded(1, rows, dtype=torch.float32) for _ in range(2)]
        sequence_ids, position_ids = (guarded.tensor.view(torch.int32) for guarded in ids)
        Bound("FirstTokens", [x, wild], [first.tensor]).run()
        Bound("UnpackTokens", [x, mask, index, count], [unpacked.tensor]).run()
        Bound("RaggedPositions", [sequence_ids, wild, longest], [sequence_ids, position_ids]).run()
        table = randn(30, width, dtype=torch.float16)
        embedded = Guarded(1, rows, width, dtype=torch.float16)
        norm = near_one(width, torch.float16), randn(width, dtype=torch.float16)
        inputs = [mask, table, table, *norm, None, None, None, index, count]
        Bound("EmbedLayerNorm", inputs, [embedded.tensor], [EPSILON]).run()
        torch.cuda.synchronize()
        for guarded in (first, unpacked, embedded, *ids):
            guarded.check()
        assert torch.isfinite(first.tensor).all()
        assert ((sequence_ids >= 0) & (sequence_ids < sequences)).all()
        assert ((position_ids >= 0) & (position_ids < len(longest))).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_one_captured_graph_for_all_masks(dtype):
    """Mask to unpacked rows, through products of each kind: a graph captured for one mask, replayed over 100 others."""
    batch, sequence, hidden = 16, 96, 256
    capacity = batch * sequence
    mask = torch.ones(batch, sequence, dtype=torch.int64, device="cuda")
    ids = randint(100, (batch, sequence), torch.int64)
    tables = [randn(size, hidden, dtype=dtype) for size in (100, sequence)]
    norm = [near_one(hidden, dtype), randn(hidden, dtype=dtype)]
    index = torch.zeros(batch, sequence, dtype=torch.int32, device="cuda")
    cu_seqlens, count = torch.zeros(batch + 1, dtype=torch.int32, device="cuda"), count_of(0)
    up, down = (gemm_inputs(1, n, k, dtype)[1:] for n, k in ((1024, hidden), (hidden, 1024)))
    x, h, z, y = (
        torch.zeros(batch, sequence, width, dtype=dtype, device="cuda") for width in (hidden, 1024, hidden, hidden)
    )

    def bound(op, inputs, outputs, attributes=()):
        weights = sum(1 << i for i, t in enumerate(inputs) if any(t is w for w in (*tables, *norm, *up, *down)))
        return Bound(op, inputs, outputs, attributes, constant_inputs=weights)

    def chain(tokens, places, embedded, inner, outer, extra):
        return [
            bound("EmbedLayerNorm", [tokens, *tables, *norm, None, None, places, *extra[:2]], [embedded], [EPSILON]),
            bound("FusedGemmGelu", [embedded, *up, extra[1]], [inner], ["none"]),
            bound("FusedGemmLayerNorm", [inner, *down, embedded, *norm, extra[1]], [outer], [EPSILON]),
        ]

    expect(300, capacity)  # what the host goes by when it captures
    ops = [
        bound("PackTokens", [mask], [index, cu_seqlens, count]),
        *chain(ids, None, x, h, z, (index, count)),
        bound("UnpackTokens", [z, mask, index, count], [y]),
    ]
    for op in ops:
        op.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for op in ops:
            op.run()
    for i in range(100):
        real = torch.rand(batch, sequence, device="cuda") < torch.rand(batch, 1, device="cuda") * (i / 50)
        mask.copy_(real)
        for tensor in (x, h, z, y):
            tensor.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        rows = int(real.sum())
        if rows == 0:
            assert (y == 0).all()
            continue
        tokens = ids[real][None]
        positions = real.nonzero()[:, 1][None]
        e, g, o = (torch.full((1, rows, n), NAN, dtype=dtype, device="cuda") for n in (hidden, 1024, hidden))
        for op in chain(tokens, positions, e, g, o, (None, None)):
            op.run()
        torch.cuda.synchronize()
        wanted = torch.zeros_like(y)
        wanted[real] = o[0]
        # Other tactics may round otherwise: as near as two right results are to each other.
        check("FusedGemmLayerNorm", [y], [wanted.double()], scale=4)
        assert (y[~real] == 0).all()


@pytest.mark.parametrize("batch, sequence", [(16, 33), (120, 300)])
def test_unpack_tokens_right_after_pack_tokens(batch, sequence):
    """As ONNX Runtime orders them in a ragged model. The count of the mask before must not be what is read."""
    width = 8
    mask = torch.ones(batch, sequence, dtype=torch.int64, device="cuda")
    index = torch.zeros(batch, sequence, dtype=torch.int32, device="cuda")
    cu_seqlens, count = torch.zeros(batch + 1, dtype=torch.int32, device="cuda"), count_of(0)
    x = randn(batch, sequence, width, dtype=torch.float16)
    y = torch.zeros_like(x)
    ops = [
        Bound("PackTokens", [mask], [index, cu_seqlens, count]),
        Bound("UnpackTokens", [x, mask, index, count], [y]),
    ]
    for op in ops:
        op.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for op in ops:
            op.run()
    for i in range(200):
        mask.copy_(torch.rand(batch, sequence, device="cuda") < (0.9 if i % 2 else 0.1))
        y.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        wanted = torch.zeros_like(x)
        wanted[mask != 0] = x.view(-1, width)[: int(mask.sum())]
        assert torch.equal(y, wanted)


def test_streams_at_once_with_counts_of_their_own():
    jobs = []
    for i in range(8):
        inputs, attributes, wanted = gemm_call("FusedGemmLayerNorm", 1000, 768, 768, torch.float16)
        rows = 100 * i + 1
        y = Guarded(1000, 768, dtype=torch.float16)
        bound = Bound("FusedGemmLayerNorm", [*inputs, count_of(rows)], [y.tensor], attributes)
        jobs.append((torch.cuda.Stream(), bound, y, rows, wanted))
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, bound, y, _, _ in jobs:
            with torch.cuda.stream(stream):
                y.tensor.fill_(NAN)
                bound.run()
    torch.cuda.synchronize()
    for _, _, y, rows, wanted in jobs:
        y.check()
        check("FusedGemmLayerNorm", [y.tensor[:rows]], [wanted[:rows]])
