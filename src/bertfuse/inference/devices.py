"""Which devices texts can run on, and onnxruntime's providers for each."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

import onnxruntime

from bertfuse.errors import BertfuseError
from bertfuse.runtime.session import CUDA, providers_of


@cache
def gpu_count() -> int:
    """NVIDIA GPUs that the driver gives this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def providers_on(device: str | None) -> list[Any]:
    """onnxruntime's providers for "cpu", "cuda" or "cuda:1"; None: the first GPU where it can be used, else the CPU.

    Raises BertfuseError where there is no such device.
    """
    if device is None:
        device = "cuda" if CUDA in onnxruntime.get_available_providers() and gpu_count() else "cpu"
    kind, _, number = device.partition(":")
    if number and (kind != "cuda" or not re.fullmatch(r"\d{1,3}", number)):
        raise BertfuseError(f"device {device!r} is unknown: write cpu, cuda, or cuda:1 for the second GPU")
    providers: list[Any] = list(providers_of(kind))
    if number:
        if int(number) >= gpu_count():
            raise BertfuseError(f"device {device}: there are {gpu_count()} GPUs here, numbered from 0")
        providers[0] = (CUDA, {"device_id": int(number)})
    return providers
