"""The GPU of this machine, asked of the driver."""

from __future__ import annotations

import ctypes

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def compute_capability(device: int = 0) -> tuple[int, int] | None:
    """The compute capability of that GPU; None without such a GPU or its driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device):
        return None
    found = []
    for attribute in (_MAJOR, _MINOR):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle):
            return None
        found.append(value.value)
    return found[0], found[1]
