"""Where kernels run: the CPU or a GPU, each with memory of its own in slots, and streams."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime import native

from . import driver
from .host import HOST

SLOTS = 2  # sets of tensors, each with a stream
_STEP = 1 << 16


class KernelError(RuntimeError):
    """A status other than OK, with the message that the kernel gave, and its code."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Device(Protocol):
    """Memory in SLOTS slots and a stream for each. `native` is the number that the C ABI has for the kind."""

    native: int

    def reserve(self, slot: int, size: int) -> int: ...
    def upload(self, slot: int, image: np.ndarray) -> None: ...
    def download(self, slot: int, size: int) -> np.ndarray: ...
    def run(self, kernel: native.Kernel, calls: Sequence[tuple[int, native.Call, int]]) -> None: ...
    def capture(self, kernel: native.Kernel, slot: int, call: native.Call) -> Any: ...
    def replay(self, slot: int, captured: Any) -> None: ...
    def fields(self, slot: int) -> dict[str, Any]: ...


def _launch(kernel: native.Kernel, call: native.Call) -> None:
    error = native.Error()
    code = kernel.run(ctypes.byref(call), ctypes.byref(error))
    if code:
        raise KernelError(error.message.decode(errors="replace"), code)


class Cpu:
    """Slots are arrays; kernels of several slots run in threads."""

    native = native.CPU

    def __init__(self) -> None:
        self._memory = [np.zeros(_STEP, np.uint8) for _ in range(SLOTS)]
        self._threads = ThreadPoolExecutor(SLOTS)

    def reserve(self, slot: int, size: int) -> int:
        """The address of at least that many bytes, on a 256-byte boundary."""
        if self._memory[slot].size < size + 256:
            self._memory[slot] = np.zeros(size + _STEP, np.uint8)
        return (self._memory[slot].ctypes.data + 255) // 256 * 256

    def _view(self, slot: int, size: int) -> np.ndarray:
        start = -self._memory[slot].ctypes.data % 256
        return self._memory[slot][start : start + size]

    def upload(self, slot: int, image: np.ndarray) -> None:
        self._view(slot, image.size)[:] = image

    def download(self, slot: int, size: int) -> np.ndarray:
        return self._view(slot, size).copy()

    def run(self, kernel: native.Kernel, calls: Sequence[tuple[int, native.Call, int]]) -> None:
        """Runs each (slot, call, times); calls of different slots at once. Raises KernelError."""

        def work(call: native.Call, times: int) -> None:
            for _ in range(times):
                _launch(kernel, call)

        if len(calls) == 1:
            return work(*calls[0][1:])
        for future in [self._threads.submit(work, call, times) for _, call, times in calls]:
            future.result()

    def capture(self, kernel: native.Kernel, slot: int, call: native.Call) -> None:
        return None

    def replay(self, slot: int, captured: None) -> None:
        raise NotImplementedError

    def fields(self, slot: int) -> dict[str, Any]:
        return {"host": ctypes.addressof(HOST)}


class Cuda:
    """Slots are device memory with a pinned copy on the host; each has a stream."""

    native = native.CUDA

    def __init__(self, number: int) -> None:
        self.number = number
        self._context = driver.Context(number)
        self._streams = [driver.Stream() for _ in range(SLOTS)]
        self._sizes, self._device, self._pinned = [0] * SLOTS, [0] * SLOTS, [0] * SLOTS

    def reserve(self, slot: int, size: int) -> int:
        """The address of at least that many bytes, on a 256-byte boundary."""
        if self._sizes[slot] < size:
            if self._sizes[slot]:
                self._context.free(self._device[slot])
                self._context.free_pinned(self._pinned[slot])
            self._sizes[slot] = 0
            self._device[slot] = self._context.allocate(2 * size + _STEP)
            self._pinned[slot] = self._context.allocate_pinned(2 * size + _STEP)
            self._sizes[slot] = 2 * size + _STEP
        return self._device[slot]

    def upload(self, slot: int, image: np.ndarray) -> None:
        ctypes.memmove(self._pinned[slot], image.ctypes.data, image.size)
        self._streams[slot].upload(self._device[slot], self._pinned[slot], image.size)

    def download(self, slot: int, size: int) -> np.ndarray:
        """What the slot holds once its stream has ended. Raises DriverError for a fault of a kernel."""
        self._streams[slot].download(self._pinned[slot], self._device[slot], size)
        self._streams[slot].synchronize()
        memory = np.empty(size, np.uint8)
        ctypes.memmove(memory.ctypes.data, self._pinned[slot], size)
        return memory

    def run(self, kernel: native.Kernel, calls: Sequence[tuple[int, native.Call, int]]) -> None:
        """Launches each (slot, call, times) in its slot's stream, the slots in turns. Raises KernelError."""
        for turn in range(max(times for _, _, times in calls)):
            for _, call, times in calls:
                if turn < times:
                    _launch(kernel, call)

    def capture(self, kernel: native.Kernel, slot: int, call: native.Call) -> driver.Graph:
        with self._streams[slot].capture() as graph:
            _launch(kernel, call)
        return graph

    def replay(self, slot: int, captured: driver.Graph) -> None:
        self._streams[slot].launch(captured)

    def fields(self, slot: int) -> dict[str, Any]:
        return {"stream": self._streams[slot].handle, "device_id": self.number}


def open_device(name: str) -> Cpu | Cuda:
    return Cpu() if name == "cpu" else Cuda(int(name.removeprefix("cuda:")))


def device_names(wanted: str | None, library: Path) -> list[str]:
    """The devices that `wanted` names ("cpu,cuda:0"; "cuda" is every GPU); all that the library has kernels for.

    Raises BertfuseError for one that is not there.
    """
    gpus = [f"cuda:{number}" for number in range(driver.device_count())]
    has_code = bool(native.gpu_architectures(library))
    if wanted is None:
        return ["cpu", *(gpus if has_code else [])]
    found: list[str] = []
    for name in wanted.split(","):
        if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
            raise BertfuseError(
                f"--devices {name!r}: write cpu, cuda (every GPU) or cuda:NUMBER, with commas between them"
            )
        if name != "cpu" and not has_code:
            raise BertfuseError(f"--devices {name}: {library.name} holds no CUDA kernels; 'bertfuse doctor' says why")
        if name == "cuda" and gpus:
            found += gpus
        elif name == "cpu" or name in gpus:
            found.append(name)
        else:
            raise BertfuseError(f"--devices {name}: the driver offers {', '.join(gpus) or 'no GPU'}")
    return list(dict.fromkeys(found))
