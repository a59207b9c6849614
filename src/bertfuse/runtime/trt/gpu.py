"""GPUs by compute capability: this machine's, asked of the driver, and those that an engine is built for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from bertfuse.errors import BertfuseError

from .backend import Backend

PLUGINS_OLDEST = (8, 0)  # what the library's kernels are compiled for, and what PTX cannot go below
# What a portable engine of TensorRT for RTX is for, as its documentation has it.
PORTABLE = ("8.0", "8.6", "8.9", "12.x")
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


def check_plugins_run(capabilities: Sequence[tuple[int, int]]) -> None:
    """Raises BertfuseError for a GPU that the plugins' kernels do not run on."""
    for major, minor in capabilities:
        if (major, minor) < PLUGINS_OLDEST:
            oldest = ".".join(map(str, PLUGINS_OLDEST))
            raise BertfuseError(
                f"compute capability {major}.{minor}: the plugins' kernels begin with {oldest}; build with --no-plugins"
            )


def targets(backend: Backend, texts: Sequence[str]) -> list[tuple[int, int]]:
    """What an engine is built for, from "8.9", "89" or "sm_89"; [] is the portable engine of TensorRT for RTX.

    Raises BertfuseError for what the backend does not build for.
    """
    found = []
    for text in texts:
        digits = text.lower().removeprefix("sm").removeprefix("_").replace(".", "")
        if not digits.isdecimal() or len(digits) not in (2, 3):
            raise BertfuseError(f"--compute-capability {text!r}: write major.minor, as in 8.9")
        capability = int(digits[:-1]), int(digits[-1])
        if capability not in found:
            found.append(capability)
    if backend.name == "rtx":
        known = sorted(
            (int(name[2:-1]), int(name[-1])) for name in backend.trt.ComputeCapability.__members__ if name[:2] == "SM"
        )
        for capability in found:
            if capability not in known:
                names = ", ".join(f"{major}.{minor}" for major, minor in known)
                raise BertfuseError(
                    f"compute capability {capability[0]}.{capability[1]}: {backend} builds for {names}; TensorRT itself"
                    " (--backend tensorrt) runs on the others"
                )
        return found
    gpu = compute_capability()
    for capability in found:
        if capability != gpu:
            raise BertfuseError(
                f"--compute-capability {capability[0]}.{capability[1]}: TensorRT builds for the GPU it runs on"
                f" ({'none here' if gpu is None else f'{gpu[0]}.{gpu[1]}'}); --backend rtx builds for others"
            )
    return [gpu] if gpu else []
