"""What the CUDA ops launch, recorded on a machine without a GPU (plugins/fake_cudart/).

As a program it records random calls, one JSON line each, and says what is wrong with them; with --like the calls of
another record, and what of them differs. So two builds of the library can be compared:
python -m tests.launches BEFORE.so --seed 1 --count 1000 -o before.jsonl
python -m tests.launches AFTER.so --like before.jsonl
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import bertfuse
from bertfuse.qualify.check import Checker, unsupported_forms
from bertfuse.qualify.draw import Draw
from bertfuse.qualify.layout import Layout
from bertfuse.qualify.problem import Problem, may_leave_y, parse
from bertfuse.runtime import native

# Where tensors lie: nothing is there. Two numbers of 32 bits side by side look like an address near it where the second
# is 23131, a prime; with 0x5A00 for it, and 2^40 bytes to look at, any number from 23040 to 23295 did.
BASE = 0x5A5B00000000
BEYOND = 1 << 20  # bytes behind the last tensor that an address is looked for in
STREAM = 0x57
# Where fake_cudart puts pinned memory: the table of expected rows of each device (plugins/ops/row_hints.h).
_PINNED, _PINNED_STEP = 0x5F0000000000, 0x10000
# An anonymous namespace's mangled name holds a hash of its file; its length comes before it.
_OF_A_FILE = re.compile(r"(\d+)(?=_GLOBAL__N_|_INTERNAL_)")
_NO_CODE = "CUDA error 209"  # cudaErrorNoKernelImageForDevice: the library was not built for the device
_PACK_TOKENS = parse("PackTokens float32 N=1 S=1 tactic=-1 mask=ones seed=1")


def _without_file(name: str) -> str:
    while found := _OF_A_FILE.search(name):
        name = name[: found.start()] + name[found.end() + int(found[1]) :]
    return name


@dataclass(frozen=True)
class Setting:
    """How a call is made.

    Attributes:
        device: number of fake_cudart's device.
        flags: of the call, beside those that the problem sets.
        workspace: the share of what the kernel asks for that it gets.
        expected: of packed rows, how many the host expects; None: nothing is known.
        tuned: the name of a tactic that was measured for the problem.
    """

    device: int = 0
    flags: int = 0
    workspace: float = 1.0
    expected: int | None = None
    tuned: str = ""


@dataclass
class Recorded:
    """One call and what it did; `regions` are what it may touch: (name, start, size)."""

    problem: Problem
    setting: Setting
    tactic: str = ""
    error: str = ""
    code: int = 0
    regions: list[tuple[str, int, int]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """As a record has it: without what differs between two builds of one source."""
        for event in self.events:
            if "launch" in event:
                event["launch"] = _without_file(event["launch"])
        names = {"problem": str(self.problem), "setting": asdict(self.setting)}
        return {**names, "tactic": self.tactic, "error": self.error, "events": self.events}


class FakeDevice:
    """A GPU of fake_cudart, as qualify's devices are."""

    native = native.CUDA

    def fields(self, slot: int) -> dict[str, Any]:
        return {"stream": STREAM}


class Recorder:
    """Runs problems on a library that is linked with fake_cudart. Only one in a process."""

    def __init__(self, library: Path, flags: int = native.NO_CUBLASLT) -> None:
        """`flags` of every call. A real cuBLASLt, where this machine has one, must not be given what is no memory."""
        self.library = native.load_library(library)
        self._flags = flags
        self._checker = Checker(library, FakeDevice(), None)  # type: ignore[arg-type]
        self._fake = ctypes.CDLL(str(library.with_name("libfake_cudart.so")))
        self._fake.fake_cudart_take.restype = ctypes.c_char_p
        self.devices: list[int] = []  # compute capabilities, 90 for 9.0
        while capability := self._fake.fake_cudart_compute_capability(len(self.devices)):
            self.devices.append(capability)
        self._gpus = [gpu.identity.decode() for gpu in native.gpus(library)]
        for device in range(len(self.devices)):  # the first call on each allocates its table of expected rows
            self.run(_PACK_TOKENS, Setting(device))

    def _expect(self, device: int, capacity: int, rows: int | None) -> None:
        slot = capacity * 0x9E3779B97F4A7C15 % (1 << 64) >> 52
        entry = ctypes.c_uint64.from_address(_PINNED + device * _PINNED_STEP + 8 * slot)
        entry.value = 0 if rows is None else capacity << 32 | rows

    def _tuning(self, kernel: native.Kernel, call: native.Call, setting: Setting) -> int | None:
        text, remark, error = ctypes.create_string_buffer(256), ctypes.create_string_buffer(512), native.Error()
        kernel.describe_problem(ctypes.byref(call), text, len(text), ctypes.byref(error))
        row = "\t".join((self._gpus[setting.device], text.value.decode(), setting.tuned))
        lines = f"bertfuse tuning 1, library {bertfuse.__version__}\n{row}\n".encode()
        read = self.library.bertfuse_read_tuning(lines, b"tuning", remark, len(remark), ctypes.byref(error))
        native.check(error.code, error)
        return read

    def kernel(self, problem: Problem) -> native.Kernel:
        kernel = self._checker.kernel(problem.op)
        assert kernel is not None, f"{problem.op}: the library has no CUDA kernel"
        return kernel

    def call(self, problem: Problem, layout: Layout, setting: Setting) -> native.Call:
        call = self._checker._call(problem, layout, 0, BASE)
        call.flags |= setting.flags | self._flags
        call.device_id = setting.device
        return call

    def run(self, problem: Problem, setting: Setting = Setting()) -> Recorded:
        kernel, layout, recorded = self.kernel(problem), Layout(problem), Recorded(problem, setting)
        if problem.packed is not None:
            self._expect(setting.device, problem.capacity, setting.expected)
        tuning = None
        try:
            if setting.tuned:
                tuning = self._tuning(kernel, self.call(problem, layout, setting), setting)
            asking = self.call(problem, layout, setting)
            asking.tuning = tuning
            layout.add_workspace(int(native.workspace_size(kernel, asking) * setting.workspace))
            call = self.call(problem, layout, setting)
            call.tuning = tuning
            if kernel.describe_tactic:
                recorded.tactic = native.tactic_name_of(kernel, call, problem.tactic)
            error = native.Error()
            native.check(kernel.run(ctypes.byref(call), ctypes.byref(error)), error)
        except native.NativeError as failure:
            recorded.error, recorded.code = str(failure), failure.code
        recorded.regions = [(region.name, BASE + region.start, region.size) for region in layout.regions.values()]
        recorded.events = [json.loads(line) for line in self._fake.fake_cudart_take().decode().splitlines()]
        return recorded

    def tactics(self, problem: Problem, setting: Setting = Setting()) -> range:
        """The numbers of the problem's tactics, beginning with -1: the one that is chosen."""
        if problem.packed is not None:  # as run() does: how many rows are expected may decide which tactics there are
            self._expect(setting.device, problem.capacity, setting.expected)
        return range(-1, native.num_tactics(self.kernel(problem), self.call(problem, Layout(problem), setting)))


def faults(recorded: Recorded) -> Iterator[str]:
    """What is wrong with a call, as far as its launches tell."""
    setting, problem = recorded.setting, recorded.problem
    if recorded.error:
        short = setting.workspace < 1 and "the workspace has" in recorded.error
        # A device may lack a form of an op or a dtype, and LayerNorm takes as many columns as it says.
        lacks = [*unsupported_forms(problem), "compute capability"] + ["too many"] * (problem.sizes.get("N", 0) > 8192)
        lacking = recorded.code == native.NOT_SUPPORTED and any(word in recorded.error for word in lacks)
        if not (short or lacking or _NO_CODE in recorded.error):
            yield f"reports {recorded.error!r}"
        return
    seen = set()
    end = max((start + size for _, start, size in recorded.regions), default=BASE) + BEYOND
    for event in recorded.events:
        if event.get("error"):
            yield f"launches what the device refuses with {event['error']}: {event['launch']}"
        for parameter in event.get("parameters", ()):
            data = bytes.fromhex(parameter)
            words = struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])
            for address in (word for word in words if BASE <= word < end):
                # Behind rows that were rounded to 8 bits, partial sums may need no room: theirs is the workspace's end.
                of = [
                    name
                    for name, start, size in recorded.regions
                    if start <= address < start + max(1, size) + (name == "workspace")
                ]
                seen.update(of)
                if not of:
                    yield f"passes an address {address - BASE} bytes from the base, which is in no tensor"
    known = all("parameters" in event for event in recorded.events)
    for tensor in problem.outputs[1 if may_leave_y(problem) else 0 :]:  # y may be left unwritten
        size = next(size for name, _, size in recorded.regions if name == tensor.name)
        if known and size and problem.packed != () and tensor.name not in seen:
            yield f"launches nothing that knows its output {tensor.name}"


def draw(recorder: Recorder, seed: int, count: int, all_tactics: float) -> Iterator[tuple[Problem, Setting]]:
    """Random calls; of that share of them with every tactic."""
    chance, problems = random.Random(seed), Draw(seed, budget_scale=1e4)
    for _ in range(count):
        problem = next(problems).with_tactic(-1)
        capacity = 0 if problem.packed is None else problem.capacity
        setting = Setting(
            device=0 if chance.random() < 0.7 else chance.randrange(len(recorder.devices)),
            flags=native.DETERMINISTIC_ROWS if chance.random() < 0.15 else 0,
            workspace=1.0 if chance.random() < 0.8 else chance.random(),
            expected=chance.randint(0, capacity) if capacity and chance.random() < 0.7 else None,
        )
        if capacity and setting.expected is not None:
            problem = replace(problem, hints=True)
        if chance.random() < all_tactics:
            for tactic in recorder.tactics(problem, setting):
                yield problem.with_tactic(tactic), setting
            continue
        tactics = recorder.tactics(problem, setting)
        if len(tactics) > 1 and chance.random() < 0.2:
            named = recorder.run(problem.with_tactic(chance.choice(tactics[1:])), setting).tactic
            setting = replace(setting, tuned=named)
        yield problem, setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="libbertfuse_ort_on_fake_cudart.so")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="calls that are drawn")
    parser.add_argument("--tactics", type=float, default=0.1, help="share of them that run with every tactic")
    parser.add_argument("--like", type=Path, help="a record with the calls to make and what to expect of them")
    parser.add_argument("-o", "--output", type=Path, help="where the record goes")
    options = parser.parse_args()
    recorder = Recorder(options.library.resolve())
    before = [] if options.like is None else [json.loads(line) for line in options.like.open(encoding="utf-8")]
    calls: Iterator[tuple[Problem, Setting]] = ((parse(old["problem"]), Setting(**old["setting"])) for old in before)
    if options.like is None:
        calls = draw(recorder, options.seed, options.count, options.tactics)
    lines, wrong = [], 0
    for call in calls:
        recorded = recorder.run(*call)
        for fault in faults(recorded):
            wrong += 1
            print(f"{recorded.problem} on {recorder.devices[recorded.setting.device]}, {recorded.tactic}: {fault}")
        lines.append(recorded.line())
    if options.output is not None:
        options.output.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    different = [(old, new) for old, new in zip(before, lines, strict=False) if old != new]
    for old, new in different[:10]:
        print(f"before: {json.dumps(old)}\nafter:  {json.dumps(new)}")
    launches = sum("launch" in event for line in lines for event in line["events"])
    print(f"{len(lines)} calls, {launches} launches, {wrong} wrong" + (f", {len(different)} differ" if before else ""))
    raise SystemExit(bool(different or wrong))


if __name__ == "__main__":
    main()
