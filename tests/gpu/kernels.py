"""The CUDA kernels called from Python through the C ABI, on PyTorch's tensors: no framework between test and kernel."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

import torch

DTYPES = {
    torch.float32: 1,
    torch.int32: 6,
    torch.int64: 7,
    torch.float16: 10,
    torch.bfloat16: 16,
}
CUDA = 1
MAX_RANK = 8


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
    )


class Value(ctypes.Union):
    _fields_ = (("i", ctypes.c_int64), ("f", ctypes.c_float), ("s", ctypes.c_char_p))


class Error(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int32), ("message", ctypes.c_char * 508))


class Call(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("num_inputs", ctypes.c_int32),
        ("inputs", ctypes.POINTER(Tensor)),
        ("num_outputs", ctypes.c_int32),
        ("num_attributes", ctypes.c_int32),
        ("outputs", ctypes.POINTER(Tensor)),
        ("attributes", ctypes.POINTER(Value)),
        ("workspace", ctypes.c_void_p),
        ("workspace_size", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("device_id", ctypes.c_int32),
        ("tactic", ctypes.c_int32),
        ("constant_inputs", ctypes.c_uint64),
        ("host", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("tuning", ctypes.c_void_p),
    )


_SUPPORTS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), ctypes.POINTER(Error))
_WORKSPACE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.POINTER(Call))
_TACTICS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call))


class Kernel(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("op", ctypes.c_char_p),
        ("variant", ctypes.c_char_p),
        ("supports", _SUPPORTS),
        ("workspace_size", _WORKSPACE),
        ("num_tactics", _TACTICS),
        ("run", _SUPPORTS),
    )


def library_file() -> Path:
    """libbertfuse_cuda_test.so: BERTFUSE_CUDA_TEST_LIBRARY, or where CMake with -DBERTFUSE_GPU_TESTS=ON puts it."""
    default = Path(__file__).parents[2] / "build" / "lib" / "libbertfuse_cuda_test.so"
    return Path(os.environ.get("BERTFUSE_CUDA_TEST_LIBRARY", default))


@lru_cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_file()))
    library.bertfuse_test_find_kernel.restype = ctypes.POINTER(Kernel)
    library.bertfuse_test_find_kernel.argtypes = (ctypes.c_char_p, ctypes.c_int32)
    return library


class KernelError(RuntimeError):
    """What the kernel reported."""


def _describe(tensor: torch.Tensor | None) -> Tensor:
    described = Tensor()
    if tensor is not None:
        assert tensor.is_contiguous()
        described.data = tensor.data_ptr()
        described.dtype = DTYPES[tensor.dtype]
        described.rank = tensor.dim()
        described.shape[: tensor.dim()] = list(tensor.shape)
    return described


class Bound:
    """One op with its tensors: run() launches it on PyTorch's current stream and allocates nothing.

    `constant_inputs` is the call's field: bit i says that nothing under way writes input i.
    """

    def __init__(self, op, inputs, outputs, attributes=(), tactic=-1, constant_inputs=0):
        pointer = _library().bertfuse_test_find_kernel(op.encode(), CUDA)
        if not pointer:
            raise KernelError(f"{op}: no CUDA kernel in {library_file()}")
        self.kernel = pointer.contents
        self._keep = (list(inputs), list(outputs))
        self._inputs = (Tensor * max(1, len(inputs)))(*[_describe(t) for t in inputs])
        self._outputs = (Tensor * max(1, len(outputs)))(*[_describe(t) for t in outputs])
        self._values = (Value * max(1, len(attributes)))()
        for slot, value in zip(self._values, attributes, strict=False):
            if isinstance(value, int):
                slot.i = value
            elif isinstance(value, float):
                slot.f = value
            else:
                slot.s = value.encode()
        self.call = Call(
            struct_size=ctypes.sizeof(Call),
            num_inputs=len(inputs),
            inputs=self._inputs,
            num_outputs=len(outputs),
            num_attributes=len(attributes),
            outputs=self._outputs,
            attributes=self._values,
            device_id=torch.cuda.current_device(),
            tactic=tactic,
            constant_inputs=constant_inputs,
        )
        if self.kernel.workspace_size:
            size = self.kernel.workspace_size(ctypes.byref(self.call))
            self.workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")  # NaN where not written
            self.call.workspace = self.workspace.data_ptr() if size else None
            self.call.workspace_size = size

    def tactics(self) -> int:
        return self.kernel.num_tactics(ctypes.byref(self.call)) if self.kernel.num_tactics else 1

    def run(self) -> None:
        self.call.stream = torch.cuda.current_stream().cuda_stream
        error = Error()
        code = self.kernel.run(ctypes.byref(self.call), ctypes.byref(error))
        if code:
            raise KernelError(error.message.decode())
