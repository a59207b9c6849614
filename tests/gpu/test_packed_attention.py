"""FusedAttention over packed sequences: every tactic against float64, and what no sequence may see or touch.

Rows of other sequences, and rows behind the last one, may hold anything: a sequence's results do not change by a bit.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bertfuse.qualify.tolerances import TOLERANCES  # noqa: E402
from tests.gpu import reference  # noqa: E402
from tests.gpu.harness import FLOATS, GPU, check, poisoned, randn  # noqa: E402
from tests.gpu.kernels import Bound, KernelError, library_file, native  # noqa: E402
from tests.gpu.packed import expect  # noqa: E402

pytestmark = GPU

OP = "FusedAttention"
GUARD = 1024  # elements on either side of y
EDGES = (0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193, 255, 257)  # of boxes and tiles
# (heads, head size): those of tensor cores, and others. 300 is more than one block of the portable kernel holds.
HEADS = ((3, 64), (5, 32), (2, 128), (3, 24), (1, 48), (2, 80), (2, 96), (1, 300))


@pytest.fixture(autouse=True)
def rng():
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")  # pytest shows it where a test fails
    torch.manual_seed(seed)
    return np.random.default_rng(seed)


@dataclass
class Problem:
    """Packed rows on the device: qkv [B, S, 3H] or [1, rows, 3H], of which offsets[-1] rows are real."""

    qkv: torch.Tensor
    bias: torch.Tensor
    cu_seqlens: torch.Tensor
    offsets: list[int]
    heads: int
    size: int

    @property
    def scale(self):
        return self.size**-0.5

    @property
    def rows(self):
        return self.qkv.shape[0] * self.qkv.shape[1]

    def lengths(self):
        return np.diff(self.offsets)


def device_offsets(offsets):
    return torch.tensor(np.asarray(offsets, np.int32)).cuda()


def make(lengths, heads, size, dtype, shape=None, gain=1.0):
    offsets = [0, *np.cumsum(lengths).tolist()]
    shape = shape or (1, offsets[-1])
    qkv = randn(*shape, 3 * heads * size, dtype=dtype, gain=gain)
    qkv.view(-1, qkv.shape[-1])[offsets[-1] :] = float("nan")
    bias = randn(3 * heads * size, dtype=dtype)
    return Problem(qkv, bias, device_offsets(offsets), offsets, heads, size)


class Output:
    """Poisoned room for y between two guards."""

    def __init__(self, problem):
        shape = (*problem.qkv.shape[:2], problem.heads * problem.size)
        count = int(np.prod(shape))
        self.flat = poisoned(count + 2 * GUARD, dtype=problem.qkv.dtype)
        self.before = self.bits().clone()
        self.y = self.flat[GUARD : GUARD + count].view(shape)

    def bits(self):
        return self.flat.view(torch.int32 if self.flat.dtype == torch.float32 else torch.int16)

    def rows(self):
        return self.y.view(-1, self.y.shape[-1])

    def assert_untouched(self, real_rows):
        """But for the first rows everything is as it was."""
        end = GUARD + real_rows * self.y.shape[-1]
        now = self.bits()
        assert torch.equal(now[:GUARD], self.before[:GUARD]), "written ahead of y"
        assert torch.equal(now[end:], self.before[end:]), "written behind the last sequence"


def bind(problem, output, tactic=-1, cu_seqlens=None):
    inputs = [problem.qkv, problem.bias, None, problem.cu_seqlens if cu_seqlens is None else cu_seqlens]
    return Bound(OP, inputs, [output.y], [problem.heads, problem.scale], tactic)


def compute(problem, tactic=-1):
    output = Output(problem)
    bind(problem, output, tactic).run()
    torch.cuda.synchronize()
    output.assert_untouched(problem.offsets[-1])
    return output.rows()[: problem.offsets[-1]]


def sequence_by_sequence(problem, function):
    """function(qkv of one sequence), joined."""
    rows = problem.qkv.view(-1, problem.qkv.shape[-1])
    ends = zip(problem.offsets, problem.offsets[1:], strict=False)
    parts = [function(rows[None, begin:end])[0] for begin, end in ends if end > begin]
    return torch.cat(parts) if parts else rows.new_empty(0, problem.heads * problem.size, dtype=torch.double)


def expected(problem):
    return sequence_by_sequence(
        problem, lambda qkv: reference.fused_attention(qkv, problem.bias, None, problem.heads, problem.scale)
    )


def tactics(problem):
    bound = bind(problem, Output(problem))
    return [(i, native.tactic_name(OP, bound.call, i, library_file())) for i in range(bound.tactics())]


def compare_all(problem, more=0.0):
    wanted = expected(problem)
    for tactic, name in [(-1, "default"), *tactics(problem)]:
        try:
            check(OP, [compute(problem, tactic)], [wanted], more=more)
        except AssertionError as error:
            raise AssertionError(f"{name}, lengths {problem.lengths().tolist()}: {error}") from None


def mixture(rng, count, longest):
    """Edges of tiles, and lengths between them."""
    drawn = np.where(rng.random(count) < 0.5, rng.choice(EDGES, count), rng.integers(0, longest + 1, count))
    return np.minimum(drawn, longest)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("heads,size", HEADS)
def test_lengths(heads, size, dtype, rng):
    """Both layouts: with room for padding, of which nothing is written, and without."""
    for count, longest in ((1, 70), (7, 300), (40, 260)):
        lengths = mixture(rng, count, longest)
        compare_all(make(lengths, heads, size, dtype, (count, longest)))
        if lengths.sum():
            compare_all(make(lengths, heads, size, dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("length", [1, 16, 63, 64, 65, 127, 128, 129, 384])
def test_one_length(length, dtype):
    """No padding at all, and more tiles than a GPU has multiprocessors."""
    compare_all(make([length] * 90, 3, 64, dtype, (90, length)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("heads,size", [(2, 64), (1, 32), (1, 128)])
def test_long_beside_short(heads, size, dtype, rng):
    lengths = [3, 4096, 0, 1, 1000, 64, 2049, 0, 5]
    rng.shuffle(lengths)
    compare_all(make(lengths, heads, size, dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("highest", [3, 90])
def test_thousands_of_sequences(highest, dtype, rng):
    """Many more than a warp has lanes, runs of empty ones among them."""
    lengths = rng.integers(0, highest, 2000)
    lengths[rng.integers(0, 1900) :][:100] = 0
    problem = make(lengths, 2, 64, dtype)
    compare_all(problem)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]], ids=str)
def test_nothing(lengths):
    problem = make(lengths, 2, 64, torch.float16, (3, 5))
    for tactic, _ in tactics(problem):
        assert compute(problem, tactic).numel() == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("heads,size", [(3, 64), (2, 32), (1, 128), (2, 24)])
def test_others_do_not_matter(heads, size, dtype, rng):
    """Not by a bit: NaN, infinities and large values in neighbours, in rows behind, and nothing at all."""
    lengths = np.maximum(mixture(rng, 60, 200), 1)
    total = int(lengths.sum())
    problem = make(lengths, heads, size, dtype, (1, total + 70))
    rows = problem.qkv.view(-1, problem.qkv.shape[-1])
    own = rows.clone()
    owner = torch.tensor(np.repeat(np.arange(60), lengths)).cuda()
    for tactic, name in tactics(problem):
        rows.copy_(own)
        alone = compute(problem, tactic)
        for odd in (0, 1):
            others = torch.cat([owner % 2 == odd, torch.ones(70, dtype=torch.bool, device="cuda")])
            for value in (float("nan"), float("inf"), -float("inf"), 3e4, 0.0):
                rows.copy_(own)
                rows[others] = value
                mine = (owner % 2 != odd).nonzero()[:, 0]
                assert torch.equal(compute(problem, tactic)[mine], alone[mine]), f"{name}: others hold {value}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_large_scores(dtype, rng):
    """Weights that the first keys' maximum does not bound: the online softmax starts anew, row by row."""
    gain, size = 12, 64
    problem = make(mixture(rng, 20, 400), 2, size, dtype, gain=gain)
    spread = sequence_by_sequence(
        problem, lambda qkv: reference.attention_spread(qkv, problem.bias, problem.heads, problem.scale)
    )
    # As test_attention_extreme_scores in test_kernels.py reasons.
    unit = {torch.float32: 2.0**-24 * 6, torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}[dtype]
    score_error = problem.scale * gain**2 * math.sqrt(size) * unit
    absolute = (gain - 1) * TOLERANCES[OP, str(dtype).removeprefix("torch.")].atol
    compare_all(problem, absolute + math.expm1(5 * score_error) * spread)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_graph_for_all_lengths(dtype, rng):
    """Captured once at [B, S]; then offsets and rows change in place."""
    batch, longest, heads, size = 24, 150, 2, 64
    problem = make([longest] * batch, heads, size, dtype, (batch, longest))
    for tactic, name in tactics(problem):
        output = Output(problem)
        bound = bind(problem, output, tactic)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()  # the copy of what the output held is made on another stream
        with torch.cuda.stream(stream):
            bound.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            bound.run()
        for _ in range(12):
            now = make(mixture(rng, batch, longest), heads, size, dtype, (batch, longest))
            now.bias = problem.bias
            problem.qkv.copy_(now.qkv)
            problem.cu_seqlens.copy_(now.cu_seqlens)
            output.flat.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            output.assert_untouched(now.offsets[-1])
            try:
                check(OP, [output.rows()[: now.offsets[-1]]], [expected(now)])
            except AssertionError as error:
                raise AssertionError(f"{name}, lengths {now.lengths().tolist()}: {error}") from None


def bad_offsets(rng, count, rows):
    """Negative, too large, descending; any 32 bits."""
    good = np.sort(rng.integers(0, rows + 1, count + 1))
    yield -good
    yield good[::-1].copy()
    yield good + rows // 2
    yield rng.permutation(good)
    yield np.where(np.arange(count + 1) % 2 == 0, 0, rows)
    yield np.where(np.arange(count + 1) % 2 == 0, rows, 0)
    yield rng.integers(-(2**31), 2**31, count + 1)
    yield np.full(count + 1, 2**31 - 1)
    yield np.full(count + 1, -(2**31))
    yield np.where(np.arange(count + 1) % 2 == 0, -(2**31), 2**31 - 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [64, 128, 24])
def test_bad_offsets(size, dtype, rng):
    """End in time and touch nothing outside of y; afterwards everything works."""
    problem = make([50] * 70, 2, size, dtype, (70, 50))
    wanted = expected(problem)
    for tactic, _ in tactics(problem):
        for offsets in bad_offsets(rng, 70, problem.rows):
            output = Output(problem)
            bind(problem, output, tactic, device_offsets(offsets)).run()
            torch.cuda.synchronize()
            output.assert_untouched(problem.rows)
        check(OP, [compute(problem, tactic)], [wanted])


def test_two_streams(rng):
    """Calls beside each other give what they give alone, every time."""
    problems = [make(mixture(rng, 80, 200), 4, 64, dtype) for dtype in (torch.float16, torch.bfloat16)]
    streams = [torch.cuda.Stream() for _ in problems]
    for tactic, name in tactics(problems[0]):
        alone = [compute(problem, tactic).clone() for problem in problems]
        outputs = [[Output(problem) for _ in range(10)] for problem in problems]
        torch.cuda.synchronize()
        for turn in range(10):
            for problem, stream, own in zip(problems, streams, outputs, strict=True):
                with torch.cuda.stream(stream):
                    bind(problem, own[turn], tactic).run()
        torch.cuda.synchronize()
        for problem, own, wanted in zip(problems, outputs, alone, strict=True):
            for output in own:
                assert torch.equal(output.rows()[: problem.offsets[-1]], wanted), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("offset,expected_last", [(1, "simt"), (2, "simt"), (8, "mma")])
def test_alignment(offset, expected_last, dtype, rng):
    """Pointers off alignment fall back, and are right."""
    lengths = mixture(rng, 20, 150)
    problem = make(lengths, 2, 64, dtype)
    moved = randn(*problem.qkv.shape, dtype=dtype, offset=offset)
    problem.qkv = moved.copy_(problem.qkv)
    assert expected_last in [name.split()[0] for _, name in tactics(problem)]
    compare_all(problem)


def test_a_packed_call_is_a_problem_of_its_own():
    """To tuning: padded and packed calls of one shape choose among different tactics."""
    problem = make([10, 30, 2], 2, 64, torch.float16, (3, 40))
    bound = bind(problem, Output(problem))
    expect(problem.rows, problem.rows)
    assert native.problem(OP, bound.call, library_file()) == "FusedAttention float16 3x120x2x64 packed"


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="Hopper's")
def test_tactic_by_the_expected_mean_length():
    """Of the rows that were real the last time that there was room for so many."""
    problem = make([20] * 70, 4, 64, torch.float16, (70, 391))
    bound = bind(problem, Output(problem))
    if "sm90" not in next(native.gpus(library_file())).backends.decode():
        pytest.skip("this library has no kernels for Hopper")
    for rows, name, rounded in (
        (problem.rows, "sm90 128x64 pipelines 2", 28672),
        (1400, "sm90 64x32 pipelines 2", 1408),
    ):
        expect(rows, problem.rows)
        assert native.tactic_name(OP, bound.call, -1, library_file()) == name
        assert native.problem(OP, bound.call, library_file()) == f"FusedAttention float16 70x{rounded}x4x64 packed"
    compare_all(problem)


def test_the_mask_is_not_read():
    """Offsets stand in the mask's place: with both it is the offsets that count."""
    problem = make([10, 30, 2], 2, 64, torch.float16, (3, 40))
    output = Output(problem)
    mask = torch.zeros(3, 40, dtype=torch.int64, device="cuda")
    inputs = [problem.qkv, problem.bias, mask, problem.cu_seqlens]
    Bound(OP, inputs, [output.y], [problem.heads, problem.scale]).run()
    torch.cuda.synchronize()
    check(OP, [output.rows()[:42]], [expected(problem)])


def test_too_many_rows():
    """Offsets have 32 bits, and tiles are counted in as many."""
    problem = make([1], 1, 24, torch.float16)
    bound = bind(problem, Output(problem))
    bound.call.inputs[0].shape[1] = bound.call.outputs[0].shape[1] = 2**31
    with pytest.raises(KernelError, match="packed sequences, expected at most"):
        bound.run()
