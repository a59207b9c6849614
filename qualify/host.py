"""What a CPU kernel asks of its host (bertfuse_host in op.h): loops and a float32 matrix product, with NumPy."""

from __future__ import annotations

import ctypes

import numpy as np

from bertfuse.runtime import native

_RANGE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PARALLEL_FOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, _RANGE, ctypes.c_void_p)
_FLOATS = ctypes.POINTER(ctypes.c_float)
_GEMM = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    _FLOATS,
    _FLOATS,
    _FLOATS,
    _FLOATS,
    ctypes.POINTER(native.Error),
)
_PARTS = 3


class Host(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("parallel_for", _PARALLEL_FOR), ("gemm", _GEMM))


@_PARALLEL_FOR
def _parallel_for(_: None, count: int, grain: int, function: object, user: int) -> None:
    """The ranges one after the other, the last one first: a kernel must not depend on their order."""
    step = max(grain, -(-count // _PARTS), 1)
    for begin in reversed(range(0, count, step)):
        function(user, begin, min(begin + step, count))  # type: ignore[operator]


@_GEMM
def _gemm(_: None, m: int, n: int, k: int, x: object, weight: object, bias: object, y: object, error: object) -> int:
    def view(pointer: object, *shape: int) -> np.ndarray:
        if 0 in shape:
            return np.zeros(shape, np.float32)
        return np.ctypeslib.as_array(pointer, shape)  # type: ignore[call-overload]

    with np.errstate(all="ignore"):  # infinities are among the data
        product = view(x, m, k) @ view(weight, n, k).T
        view(y, m, n)[...] = product + view(bias, n) if bias else product
    return 0


HOST = Host(None, _parallel_for, _gemm)
