"""What of CUDA's driver interface a check needs: memory, streams, graphs and the names of kernels. No PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from bertfuse.errors import BertfuseError

_CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: whatever a graph cannot hold is an error
_NON_BLOCKING = 1
_KERNEL_NODE = 0
_MULTIPROCESSORS = 16


class DriverError(RuntimeError):
    """A CUDA error; after most of them nothing in this process runs on the GPU any more."""


class CaptureError(RuntimeError):
    """A call that cannot be captured in a graph; the device works on."""


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return None if library.cuInit(0) else library


def device_count() -> int:
    """GPUs that the driver offers; 0 without a driver."""
    library, count = _library(), ctypes.c_int()
    return 0 if library is None or library.cuDeviceGetCount(ctypes.byref(count)) else count.value


def multiprocessors(device: int) -> int:
    library, count, handle = _library(), ctypes.c_int(), ctypes.c_int()
    if library is None or library.cuDeviceGet(ctypes.byref(handle), device):
        return 0
    return 0 if library.cuDeviceGetAttribute(ctypes.byref(count), _MULTIPROCESSORS, handle) else count.value


def _call(name: str, *arguments: Any) -> None:
    library = _library()
    if library is None:
        raise BertfuseError("there is no NVIDIA driver on this machine (libcuda.so.1)")
    code = getattr(library, name)(*arguments)
    if code:
        raise DriverError(f"{name}: {_text(library, code)}")


def _text(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return f"CUDA error {code}: {(text.value or b'unknown').decode()}"


def _handle(name: str, *arguments: Any) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call(name, ctypes.byref(made), *arguments)
    return made


class Context:
    """The GPU's primary context, which the library's CUDA runtime uses, too; current in the calling thread."""

    def __init__(self, device: int) -> None:
        number = ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(number), device)
        _call("cuCtxSetCurrent", _handle("cuDevicePrimaryCtxRetain", number))

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        _call("cuMemFree_v2", ctypes.c_uint64(address))

    def allocate_pinned(self, size: int) -> int:
        address = _handle("cuMemHostAlloc", ctypes.c_size_t(size), 0).value
        assert address is not None
        return address

    def free_pinned(self, address: int) -> None:
        _call("cuMemFreeHost", ctypes.c_void_p(address))


class Stream:
    """A stream that waits for no other."""

    def __init__(self) -> None:
        self.handle = _handle("cuStreamCreate", _NON_BLOCKING)

    def upload(self, address: int, source: int, size: int) -> None:
        _call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            self.handle,
        )

    def download(self, target: int, address: int, size: int) -> None:
        _call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(target),
            ctypes.c_uint64(address),
            ctypes.c_size_t(size),
            self.handle,
        )

    def synchronize(self) -> None:
        _call("cuStreamSynchronize", self.handle)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Captures what is launched in the block; the graph has nodes after it. Raises CaptureError."""
        _call("cuStreamBeginCapture_v2", self.handle, _CAPTURE_THREAD_LOCAL)
        graph, handle = Graph(), ctypes.c_void_p()
        library = _library()
        assert library is not None
        try:
            yield graph
        finally:
            code = library.cuStreamEndCapture(self.handle, ctypes.byref(handle))
        if code:
            raise CaptureError(f"cannot be captured in a CUDA graph: {_text(library, code)}")
        graph.handle = handle
        graph.executable = _handle("cuGraphInstantiateWithFlags", graph.handle, ctypes.c_uint64(0))

    def launch(self, graph: Graph) -> None:
        _call("cuGraphLaunch", graph.executable, self.handle)


class Graph:
    """A captured graph and its executable form."""

    handle: ctypes.c_void_p | None = None
    executable: ctypes.c_void_p | None = None

    def kernels(self) -> tuple[list[str], int]:
        """The kernels' names, as the compiler mangled them, and how many nodes are none (copies, memsets)."""
        nodes = self._nodes()
        launches = self.launches()
        return [name for name, *_ in launches], len(nodes) - len(launches)

    def launches(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
        """Name, grid, block and bytes of dynamic shared memory of each kernel."""
        found = []
        for node in self._nodes():
            kind = ctypes.c_int()
            _call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            if kind.value != _KERNEL_NODE:
                continue
            parameters = KernelNode()
            _call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(parameters))
            text = ctypes.c_char_p()
            ask, what = (
                ("cuFuncGetName", parameters.function)
                if parameters.function
                else ("cuKernelGetName", parameters.kernel)
            )
            _call(ask, ctypes.byref(text), ctypes.c_void_p(what))
            name = (text.value or b"").decode(errors="replace")
            found.append((name, tuple(parameters.grid), tuple(parameters.block), parameters.shared_bytes))
        return found

    def _nodes(self) -> list[int]:
        count = ctypes.c_size_t()
        _call("cuGraphGetNodes", self.handle, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * max(1, count.value))()
        if count.value:
            _call("cuGraphGetNodes", self.handle, nodes, ctypes.byref(count))
        return list(nodes[: count.value])

    def destroy(self) -> None:
        if self.executable:
            _call("cuGraphExecDestroy", self.executable)
        if self.handle:
            _call("cuGraphDestroy", self.handle)
        self.executable = self.handle = None
