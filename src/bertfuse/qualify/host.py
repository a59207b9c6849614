"""What a CPU kernel asks of its host (bertfuse_host in op.h): loops."""

from __future__ import annotations

import ctypes

_RANGE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PARALLEL_FOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, _RANGE, ctypes.c_void_p)
_PARTS = 3


class Host(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("parallel_for", _PARALLEL_FOR))


@_PARALLEL_FOR
def _parallel_for(_: None, count: int, grain: int, function: object, user: int) -> None:
    """The ranges one after the other, the last one first: a kernel must not depend on their order."""
    step = max(grain, -(-count // _PARTS), 1)
    for begin in reversed(range(0, count, step)):
        function(user, begin, min(begin + step, count))  # type: ignore[operator]


HOST = Host(None, _parallel_for)
