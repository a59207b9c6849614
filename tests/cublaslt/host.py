"""The library on both fakes, fake_cudart and fake_cublaslt: whole calls on the host's memory."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.qualify import values
from bertfuse.qualify.layout import Layout
from bertfuse.qualify.problem import Problem
from bertfuse.runtime import native
from tests.launches import Recorder, Setting


class Behaviour(ctypes.Structure):
    """As fake_cublaslt.cc has it."""

    _fields_ = (
        ("version", ctypes.c_size_t),
        ("create", ctypes.c_int),
        ("heuristic", ctypes.c_int),
        ("matmul", ctypes.c_int),
        ("algorithms", ctypes.c_int),
        ("workspace", ctypes.c_size_t * 8),
        ("states", ctypes.c_int * 8),
        ("biased", ctypes.c_int),
        ("computes", ctypes.c_int),
    )

    def __init__(self, workspace: tuple[int, ...] = (), states: tuple[int, ...] = (), **fields: int) -> None:
        super().__init__(**{"version": 130002, "algorithms": 3, "biased": 1, "computes": 1, **fields})
        self.workspace[: len(workspace)] = workspace
        self.states[: len(states)] = states


@dataclass
class Ran:
    """One call: its memory afterwards, and what it asked of cuBLASLt and launched."""

    problem: Problem
    layout: Layout
    base: int
    before: np.ndarray
    memory: np.ndarray
    tactic: str = ""
    error: str = ""
    launches: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if kind in event]

    def address(self, name: str) -> int:
        return self.base + self.layout.regions[name].start if name in self.layout.regions else 0

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        start = self.layout.regions[name].start
        return self.memory[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


class Host:
    """The library on both fakes. Only one in a process."""

    def __init__(self, library: Path, fake: str | None = "libfake_cublaslt.so", **behaviour: Any) -> None:
        self.recorder = Recorder(library, flags=0)
        self.library = library
        self.fake: ctypes.CDLL | None = None
        if fake:
            self.load(library.with_name(fake), **behaviour)
        native_gpus = list(native.gpus(library))
        # Where the library has code, its kernels launch, too; 7.5 refuses bfloat16.
        code = [gpu.code_architecture or gpu.ptx_architecture for gpu in native_gpus]
        self.devices = [i for i, gpu in enumerate(native_gpus) if code[i] and gpu.compute_capability >= 80]
        self.backends = [gpu.backends.decode().split() for gpu in native_gpus]

    def load(self, path: Path, **behaviour: Any) -> None:
        self.fake = ctypes.CDLL(str(path))
        self.fake.fake_cublaslt_take.restype = ctypes.c_char_p
        self.behave(**behaviour)

    def behave(self, **behaviour: Any) -> None:
        assert self.fake is not None
        self.fake.fake_cublaslt_behave(ctypes.byref(Behaviour(**behaviour)))

    def take(self) -> list[dict[str, Any]]:
        text = self.fake.fake_cublaslt_take().decode() if self.fake else ""
        return [json.loads(line) for line in text.splitlines()]

    def tactics(self, problem: Problem, setting: Setting) -> list[str]:
        count = len(self.recorder.tactics(problem, setting)) - 1
        return [self.name(problem.with_tactic(i), setting) for i in range(count)]

    def name(self, problem: Problem, setting: Setting) -> str:
        call = self.recorder.call(problem, Layout(problem), setting)
        return native.tactic_name_of(self.recorder.kernel(problem), call, problem.tactic)

    def run(self, problem: Problem, setting: Setting, *, take: bool = True) -> Ran:
        """Runs the call on the host's memory; `take`: with what was recorded, which other threads must not do."""
        kernel, layout = self.recorder.kernel(problem), Layout(problem)
        if problem.packed is not None:
            self.recorder._expect(setting.device, problem.capacity, setting.expected)
        asking = self.recorder.call(problem, layout, setting)
        tuning = self.recorder._tuning(kernel, asking, setting) if setting.tuned else None
        asking.tuning = tuning
        layout.add_workspace(int(native.workspace_size(kernel, asking) * setting.workspace))
        image = layout.image(values.inputs(problem))
        room = np.empty(layout.size + 256, np.uint8)
        skip = -room.ctypes.data % 256
        memory = room[skip : skip + layout.size]
        memory[:] = image
        ran = Ran(problem, layout, memory.ctypes.data, image, memory)
        call = self.recorder._checker._call(problem, layout, 0, ran.base)
        call.flags |= setting.flags
        call.device_id, call.tuning = setting.device, tuning
        error = native.Error()
        try:
            ran.tactic = native.tactic_name_of(kernel, call, problem.tactic)
            native.check(kernel.run(ctypes.byref(call), ctypes.byref(error)), error)
        except native.NativeError as failure:
            ran.error = str(failure)
        if take:
            ran.launches = [json.loads(line) for line in self.recorder._fake.fake_cudart_take().decode().splitlines()]
            ran.events = self.take()
            assert not ran.of("fault"), f"{problem} on {setting}: {ran.of('fault')}"
        return ran
