"""One problem, checked: right, inside its memory, the same every time, in a graph, beside itself, and by itself."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from bertfuse.runtime import native

from . import values
from .devices import SLOTS, Cpu, Cuda, KernelError
from .driver import CaptureError
from .layout import Layout
from .number import Number
from .problem import Problem, may_leave_y
from .quantized import written

Expect = Callable[[Problem, dict[str, np.ndarray | None]], list[Number]]

# Kernels of these libraries are somebody else's work, whatever file they come out of.
FOREIGN = (
    "cublas",
    "cudnn",
    "cutlass_tensorop",
    "cutlass_80",
    "sm90_xmma",
    "sm80_xmma",
    "ampere_",
    "at::native",
    "triton_",
)


@dataclass
class Verdict:
    """What came of one problem: findings as (kind, text), the tactic, the largest error (1: all that is allowed)."""

    problem: str
    op: str = ""
    row: str = ""  # what it is counted with: Problem.row
    tactic: str = ""
    findings: list[tuple[str, str]] = field(default_factory=list)
    declined: str = ""
    unsupported: str = ""  # why nothing was checked: the device has no kernel of that form
    ratio: float = 0.0
    kernels: int = 0
    timings: list[tuple[str, float, bool]] = field(default_factory=list)  # where it was measured (tuning.py)


@dataclass
class Data:
    """Two sets of inputs of one problem with what they should give: every tactic gets them."""

    problem: Problem
    inputs: list[dict[str, np.ndarray | None]]
    expected: list[list[Number]]


class Checker:
    """Checks problems of one library on one device. Raises DriverError where a kernel took the device down."""

    def __init__(self, library: Path, device: Cpu | Cuda, expect: Expect) -> None:
        self.library, self.device, self._expect = library, device, expect
        self._data: Data | None = None

    def kernel(self, op: str) -> native.Kernel | None:
        return native.find_kernel(op, self.device.native, self.library)

    def tactics(self, problem: Problem) -> range:
        """The numbers of the problem's tactics from its own on; -1 is the library's choice."""
        if not problem.onwards:
            return range(problem.tactic, problem.tactic + 1)
        kernel = self.kernel(problem.op)
        assert kernel is not None
        return range(problem.tactic, native.num_tactics(kernel, self.bare_call(problem)))

    def bare_call(self, problem: Problem) -> native.Call:
        """The call on addresses that are aligned as the problem says, and hold nothing."""
        return self._call(problem, Layout(problem), 0, 1 << 30)

    def name(self, problem: Problem) -> str:
        """The tactic's name; "" where the op has no choice."""
        kernel = self.kernel(problem.op)
        if kernel is None or not kernel.describe_tactic:
            return ""
        return native.tactic_name_of(kernel, self.bare_call(problem), problem.tactic)

    def prepare(self, problem: Problem) -> Data:
        """Inputs and what is expected of them, kept for the problem's other tactics."""
        key = problem.with_tactic(-1)
        if self._data is None or self._data.problem != key:
            inputs = [values.inputs(problem, which) for which in range(2)]
            expected = [] if problem.broken else [self._expect(problem, arrays) for arrays in inputs]
            self._data = Data(key, inputs, expected)
        return self._data

    def _call(self, problem: Problem, layout: Layout, slot: int, base: int) -> native.Call:
        inputs, outputs = layout.tensors(base)
        weights = [i for i, tensor in enumerate(problem.spec.inputs) if tensor.constant and problem.has(tensor)]
        space = layout.regions.get("workspace")
        return native.Call.of(
            inputs,
            outputs,
            [problem.attribute(attr.name) for attr in problem.spec.attributes],
            tactic=problem.tactic,
            constant_inputs=sum(1 << i for i in weights) if problem.constant else 0,
            flags=(native.ALLOW_TF32 if problem.tf32 else 0)
            | (0 if problem.hints else native.NO_ROW_HINTS)
            | native.environment_flags(),
            workspace=base + space.start if space and space.size else None,
            workspace_size=space.size if space else 0,
            **self.device.fields(slot),
        )

    def check(self, problem: Problem) -> Verdict:
        """Runs one problem with one tactic through every check. A status other than OK is a finding, too."""
        verdict = Verdict(str(problem), problem.op)
        try:
            verdict.tactic = self.name(problem)
            verdict.row = problem.row
            Run(self, problem, self.prepare(problem), verdict).all()
        except (KernelError, native.NativeError) as error:
            # Other statuses of that code (a launch that the device refuses) are findings.
            if error.code == native.NOT_SUPPORTED and any(word in str(error) for word in unsupported_forms(problem)):
                verdict.unsupported, verdict.findings = str(error), []
            else:
                self._refused(problem, verdict, str(error))
        return verdict

    @staticmethod
    def _refused(problem: Problem, verdict: Verdict, message: str) -> None:
        if problem.tactic >= 0 and "launch failed" in message:
            verdict.declined = message  # a tactic may need more than a device has; the choice must not fall on it
        else:
            verdict.findings.append(("refused", f"reports {message!r} for a problem that the op's description allows"))


class Run:
    """The checks of one problem with one tactic."""

    def __init__(self, checker: Checker, problem: Problem, data: Data, verdict: Verdict) -> None:
        self.checker, self.device, self.problem, self.data, self.verdict = (
            checker,
            checker.device,
            problem,
            data,
            verdict,
        )
        kernel = checker.kernel(problem.op)
        if kernel is None:
            raise KernelError(f"{problem.op}: the library has no kernel for this device")
        self.kernel = kernel
        self.layout = Layout(problem)
        # Whatever the kernel chooses depends on alignment alone, so any base on the boundary gives the same size.
        size = native.workspace_size(kernel, checker.bare_call(problem))
        self.layout.add_workspace(size)
        self.images = [self.layout.image(arrays) for arrays in data.inputs]
        bases = [self.device.reserve(slot, self.layout.size) for slot in range(SLOTS)]
        self.calls = [checker._call(problem, self.layout, slot, base) for slot, base in enumerate(bases)]

    def all(self) -> None:
        if self.problem.broken:
            return self._survive()
        first = self._eager(0)
        self._compare(first, 0, "")
        second = self._replayed(first) if isinstance(self.device, Cuda) else None
        if not self.verdict.findings:
            self._together([first, second])

    def _survive(self) -> None:
        """Writes nothing outside, whatever counts and offsets say; saying that they are wrong is as good."""
        for which in range(2):
            self._load(0, which)
            try:
                self.device.run(self.kernel, [(0, self.calls[0], 1)])
            except KernelError as error:
                if error.code != native.INVALID_ARGUMENT:
                    raise
            self._results(0, which, " where counts are out of range")

    def _found(self, kind: str, text: str) -> None:
        self.verdict.findings.append((kind, text))

    def _load(self, slot: int, which: int) -> None:
        self.device.upload(slot, self.images[which])

    def _results(self, slot: int, which: int, how: str) -> list[np.ndarray]:
        memory = self.device.download(slot, self.layout.size)
        trespass = self.layout.trespass(self.images[which], memory)
        if trespass:
            self._found("memory", trespass + how)
        return self.layout.outputs(memory, which)

    def _eager(self, which: int) -> list[np.ndarray]:
        self._load(0, which)
        self.device.run(self.kernel, [(0, self.calls[0], 1)])
        return self._results(0, which, "")

    def _replayed(self, first: list[np.ndarray]) -> list[np.ndarray]:
        """Captures the call and replays it over other inputs: the answer must be theirs, by the library's kernels."""
        try:
            captured = self.device.capture(self.kernel, 0, self.calls[0])
        except CaptureError as error:
            self._found("capture", str(error))
            return first
        try:
            self._look(*captured.kernels())
            self._load(0, 1)
            self.device.replay(0, captured)
            second = self._results(0, 1, " in a CUDA graph's replay")
        finally:
            captured.destroy()
        self._compare(second, 1, " in a CUDA graph's replay over other inputs", first)
        return second

    def _look(self, names: list[str], others: int) -> None:
        self.verdict.kernels = len(names)
        if not names and any(region.size for region in self.layout.regions.values() if region.role == "output"):
            self._found("no kernel", f"launched no kernel while it was captured ({others} other nodes)")
        if self.verdict.tactic.startswith("cublaslt"):
            return  # its product is NVIDIA's on purpose
        for name in names:
            if any(word in name for word in FOREIGN):
                self._found("foreign kernel", f"launched another library's kernel {name}")
            elif not _belongs(self.checker.library, name):
                self._found("foreign kernel", f"launched {name}, which is not a kernel of {self.checker.library.name}")

    def _together(self, before: list[list[np.ndarray] | None]) -> None:
        """Twice in a row on other inputs, beside a second stream with the first ones: the same bits as alone."""
        for slot in range(SLOTS):
            self._load(slot, 1 - slot)
        self.device.run(self.kernel, [(slot, self.calls[slot], 2) for slot in range(SLOTS)])
        swapped = [self._results(slot, 1 - slot, " beside another stream") for slot in range(SLOTS)]
        if self.verdict.findings:
            return
        seconds, firsts = swapped
        self._compare(seconds, 1, " with other inputs at the same addresses", before[0])
        if self.verdict.findings:
            self._blame_the_stream()
            return
        for which, (earlier, now) in enumerate(((before[0], firsts), (before[1], seconds))):
            if earlier is not None and not self.problem.hints and not _same(earlier, now):
                alone = [self._eager(which) for _ in range(3)]
                if all(_same(earlier, again) for again in alone):
                    self._found("streams", f"gives other bits beside another stream: {_difference(earlier, now)}")
                else:
                    self._found("not deterministic", f"gives other bits each time: {_difference(earlier, now)}")
                return

    def _blame_the_stream(self) -> None:
        """Where the same call is right by itself, it was the other stream."""
        said, self.verdict.findings = self.verdict.findings, []
        self._compare(self._eager(1), 1, "")
        right, self.verdict.findings = not self.verdict.findings, said
        if right and said[0][0] != "cached":
            self.verdict.findings = [("streams", f"is right by itself; beside another stream {said[0][1]}")]

    def _compare(self, found: list[np.ndarray], which: int, how: str, cached: list[np.ndarray] | None = None) -> None:
        wrong = None
        wanted = list(self.data.expected[which])
        if len(wanted) > 1 and self.problem.writes and not may_leave_y(self.problem):
            # y, which was rounded, says more exactly what its numbers are than the oracle's y does.
            y = Number(found[0].astype(np.float64), 0.0)
            wanted[-2:] = written(self.problem, self.data.inputs[which], y)[1:]
        for tensor, got, want in zip(self.problem.outputs, found, wanted, strict=True):
            ratio, text = compare(got, want)
            self.verdict.ratio = max(self.verdict.ratio, ratio)
            if text:
                wrong = f"{tensor.name} {text}{how}"
                break
        if wrong is None:
            return
        if cached is not None and _alike(cached, found):
            self._found("cached", f"answers with the result of the call before{how}: {wrong}")
        else:
            self._found("not finite" if "is nan" in wrong or "is inf" in wrong else "wrong", wrong)


def unsupported_forms(problem: Problem) -> list[str]:
    """What a refusal names that is no fault: forms of an op that a device may have no kernel for."""
    return ["packed"] * (problem.packed is not None) + [problem.weights, *problem.given] * bool(problem.weights)


def compare(got: np.ndarray, want: Number) -> tuple[float, str]:
    """The largest error as a share of what is allowed, and what is wrong ("": nothing).

    What is NaN in the oracle may be anything, unless its error is 0; an infinity must be that infinity.
    """
    if not got.size:
        return 0.0, ""
    with np.errstate(all="ignore"):
        actual = got.astype(np.float64)
        ratio = np.abs(actual - want.value) / want.error
        finite = np.isfinite(want.value) & np.isfinite(want.error)
        ratio = np.where(finite, np.where(np.isnan(ratio), np.inf, ratio), 0.0)
        ratio[np.isinf(want.value) & (actual != want.value) & ~np.isnan(want.error)] = np.inf
        ratio[np.isnan(want.value) & (want.error == 0) & ~np.isnan(actual)] = np.inf
    worst = np.unravel_index(ratio.argmax(), ratio.shape)
    largest = float(ratio[worst])
    if largest <= 1:
        return largest, ""
    place, count = ", ".join(map(str, map(int, worst))), int(np.count_nonzero(~(ratio <= 1)))
    times = f", {largest:.3g} times what is allowed" if np.isfinite(largest) else ""
    return (largest if np.isfinite(largest) else 0.0), (
        f"[{place}] is {actual[worst]:.7g}, expected {want.value[worst]:.7g}{times}; {count} of {ratio.size} wrong"
    )


def _alike(earlier: list[np.ndarray], now: list[np.ndarray]) -> bool:
    """Whether `now` begins with the rows of `earlier`, or those with it: of packed rows there may be more or less."""
    pairs = [(x, y) if len(x) < len(y) else (y, x) for x, y in zip(earlier, now, strict=True) if x.ndim and y.ndim]
    return any(short.size for short, _ in pairs) and _same([x for x, _ in pairs], [y[: len(x)] for x, y in pairs])


def _same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(
        np.array_equal(x.reshape(-1).view(np.uint8), y.reshape(-1).view(np.uint8)) for x, y in zip(a, b, strict=True)
    )


def _difference(a: list[np.ndarray], b: list[np.ndarray]) -> str:
    for x, y in zip(a, b, strict=True):
        places = np.flatnonzero((x != y).reshape(-1))
        if places.size:
            at = int(places[0])
            return f"{places.size} of {x.size} differ, the first {x.reshape(-1)[at]} and {y.reshape(-1)[at]} at {at}"
    return "the bits of NaN or of zero"


@cache
def _belongs(library: Path, kernel: str) -> bool:
    """Whether the library's file names that kernel, as every host program does that can launch it."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(kernel.encode()) >= 0
