"""The C ABI of our libraries (plugins/include/bertfuse) through ctypes: kernels, GPU code, measuring tactics.

Needs no framework and, where `load_library` is given a path, nothing of this package.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ABSENT, CPU, CUDA = 0, 0, 1
ALLOW_TF32 = 1
NO_ROW_HINTS = 2  # of packed rows: tactics are chosen by shapes alone
DETERMINISTIC_ROWS = 4  # a sequence's bits are the same in any batch
NO_CUBLASLT = 8  # products run in our own kernels
INVALID_ARGUMENT = 1  # a code: a shape, count or attribute that the op does not take
NOT_SUPPORTED = 2  # a code: valid, but this library or device has no kernel for it
MAX_RANK = 8


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
    )

    @classmethod
    def of(cls, dtype: int, shape: Sequence[int], data: int | None = None) -> Tensor:
        """A tensor of an ONNX element type; without `data` only its shape is known."""
        tensor = cls(data=data, dtype=dtype, rank=len(shape))
        tensor.shape[: len(shape)] = list(shape)
        return tensor


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
        ("prepared", ctypes.c_void_p),
        ("next_weight", ctypes.c_void_p),
        ("next_weight_bytes", ctypes.c_size_t),
    )

    @classmethod
    def of(
        cls, inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: Iterable[int | float | str], **fields: Any
    ) -> Call:
        """A call on those tensors; attributes in the op's order. `fields` are the structure's own."""
        values = (Value * 16)()
        count = 0
        for slot, value in zip(values, attributes, strict=False):
            count += 1
            if isinstance(value, int):
                slot.i = value
            elif isinstance(value, float):
                slot.f = value
            else:
                slot.s = value.encode()
        return cls(
            struct_size=ctypes.sizeof(cls),
            num_inputs=len(inputs),
            inputs=(Tensor * max(1, len(inputs)))(*inputs),
            num_outputs=len(outputs),
            outputs=(Tensor * max(1, len(outputs)))(*outputs),
            num_attributes=count,
            attributes=values,
            **{"tactic": -1, **fields},
        )


def _asks(answer: Any) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), ctypes.POINTER(answer), ctypes.POINTER(Error))


_TEXT = (ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Error))
_TIMING = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double, ctypes.c_int32)


class Kernel(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("op", ctypes.c_char_p),
        ("workspace_size", _asks(ctypes.c_size_t)),
        ("num_tactics", _asks(ctypes.c_int32)),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), ctypes.POINTER(Error))),
        ("describe_tactic", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), ctypes.c_int32, *_TEXT)),
        ("describe_problem", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), *_TEXT)),
        ("describe_choice", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), *_TEXT)),
        ("prepared_size", _asks(ctypes.c_size_t)),
        ("prepare", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), ctypes.c_void_p, ctypes.POINTER(Error))),
    )


class Gpu(ctypes.Structure):
    """What the library says of one GPU; architectures as 90 for 9.0."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("identity", ctypes.c_char * 320),  # what measurements hold for, as tuning files name it
        ("compute_capability", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("code_architecture", ctypes.c_int32),
        ("ptx_architecture", ctypes.c_int32),
        ("backends", ctypes.c_char * 64),  # the families of kernels that it runs, the fastest first
    )


class NativeError(RuntimeError):
    """What the library reported, with its code."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@cache
def load_library(path: str | Path | None = None) -> ctypes.CDLL:
    """The library for ONNX Runtime, which exports the ABI, with its functions' types; `path` names another file.

    Raises RuntimeLibraryError where it is missing, does not load or does not export the ABI.
    """
    if path is None:
        from .library import library_path

        path = library_path("onnxruntime")
    try:
        return _declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        from bertfuse.errors import RuntimeLibraryError

        raise RuntimeLibraryError(
            f"{path}: is not a library of this release: {error}; install bertfuse again ('make build' in a checkout)"
        ) from error


def load_cublaslt() -> None:
    """Loads cuBLASLt out of pip's packages, where the process has none: for tools that load neither runtime.

    ONNX Runtime's CUDA provider and PyTorch bring it by themselves; the library finds what is loaded.
    """
    for name in (name for _, name in _CUBLASLT):
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        return
    package = importlib.util.find_spec("nvidia")
    for folder in package.submodule_search_locations or [] if package else []:
        for where, name in _CUBLASLT:
            try:
                ctypes.CDLL(str(Path(folder, where, "lib", name)))
            except OSError:
                continue
            return


# NVIDIA's packages: the folder below `nvidia`, and the library's name.
_CUBLASLT = (("cu13", "libcublasLt.so.13"), ("cublas", "libcublasLt.so.12"), ("cublas", "libcublasLt.so.11"))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    error, call = ctypes.POINTER(Error), ctypes.POINTER(Call)
    text = ctypes.c_char_p
    for name, result, arguments in (
        ("bertfuse_find_kernel", ctypes.POINTER(Kernel), (text, ctypes.c_int32)),
        ("bertfuse_gpu_architectures", text, ()),
        ("bertfuse_gpu_count", ctypes.c_int32, ()),
        ("bertfuse_describe_gpu", ctypes.c_int32, (ctypes.c_int32, ctypes.POINTER(Gpu), error)),
        ("bertfuse_tune", ctypes.c_int32, (text, call, ctypes.c_double, _TIMING, ctypes.c_void_p, error)),
        ("bertfuse_read_tuning", ctypes.c_void_p, (text, text, text, ctypes.c_size_t, error)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def environment_flags() -> int:
    """A call's flags by the environment, as a session reads it: NO_CUBLASLT where BERTFUSE_CUBLASLT is 0."""
    return NO_CUBLASLT if os.environ.get("BERTFUSE_CUBLASLT") == "0" else 0


def check(code: int, error: Error) -> None:
    """Raises NativeError where a function of the ABI reported a failure."""
    if code:
        raise NativeError(error.message.decode(errors="replace"), code)


def find_kernel(op: str, device: int = CUDA, path: str | Path | None = None) -> Kernel | None:
    """The op's kernel on the CPU or CUDA, None where the library has none.

    Raises NativeError for a library of another release, whose table is laid out in another way.
    """
    pointer = load_library(path).bertfuse_find_kernel(op.encode(), device)
    if pointer and pointer.contents.struct_size != ctypes.sizeof(Kernel):
        raise NativeError(
            f"{path or 'the library'}: is of another release; install bertfuse again ('make build' in a checkout)"
        )
    return pointer.contents if pointer else None


def gpu_architectures(path: str | Path | None = None) -> list[str]:
    """The architectures that the library's GPU code was built for, as CMake spells them; empty without GPU code."""
    return load_library(path).bertfuse_gpu_architectures().decode().split()


def gpus(path: str | Path | None = None) -> Iterator[Gpu]:
    """The GPUs that the CUDA driver offers; none without a driver. Raises NativeError for one that cannot be asked."""
    library = load_library(path)
    for index in range(library.bertfuse_gpu_count()):
        gpu, error = Gpu(), Error()
        check(library.bertfuse_describe_gpu(index, ctypes.byref(gpu), ctypes.byref(error)), error)
        yield gpu


def _ask(function: Any, call: Call, answer: Any) -> int:
    error = Error()
    if function:
        check(function(ctypes.byref(call), ctypes.byref(answer), ctypes.byref(error)), error)
    return int(answer.value)


def workspace_size(kernel: Kernel, call: Call) -> int:
    """Bytes that the kernel needs for the call."""
    return _ask(kernel.workspace_size, call, ctypes.c_size_t())


def num_tactics(kernel: Kernel, call: Call) -> int:
    """How many tactics the call has; 0 where the op has no choice."""
    return _ask(kernel.num_tactics, call, ctypes.c_int32())


def problem(op: str, call: Call, path: str | Path | None = None) -> str | None:
    """What the call's tactic is chosen by, as tuning files name it; None where the op has no choice."""
    kernel = find_kernel(op, CUDA, path)
    if kernel is None or not kernel.describe_problem:
        return None
    text, error = ctypes.create_string_buffer(256), Error()
    check(kernel.describe_problem(ctypes.byref(call), text, len(text), ctypes.byref(error)), error)
    return text.value.decode()


def tactic_name(op: str, call: Call, tactic: int = -1, path: str | Path | None = None) -> str:
    """The name of one of the call's tactics; of -1: the one that is chosen. "" where the op has no choice."""
    kernel = find_kernel(op, CUDA, path)
    return "" if kernel is None or not kernel.describe_tactic else tactic_name_of(kernel, call, tactic)


def tactic_name_of(kernel: Kernel, call: Call, tactic: int = -1) -> str:
    """As `tactic_name`, of a kernel that has a choice."""
    text, error = ctypes.create_string_buffer(256), Error()
    check(kernel.describe_tactic(ctypes.byref(call), tactic, text, len(text), ctypes.byref(error)), error)
    return text.value.decode()


def chosen_by(op: str, call: Call, path: str | Path | None = None) -> str:
    """What chose the call's tactic: "tuning file", "measured" or "model" (bertfuse/op.h); "" where no op tells."""
    kernel = find_kernel(op, CUDA, path)
    if kernel is None or not kernel.describe_choice:
        return ""
    text, error = ctypes.create_string_buffer(64), Error()
    check(kernel.describe_choice(ctypes.byref(call), text, len(text), ctypes.byref(error)), error)
    return text.value.decode()


def read_tuning(text: str, name: str, path: str | Path | None = None) -> str:
    """What the library remarks on a tuning file's text, "" where all of it fits; `name` is the file's, for messages.

    Raises NativeError for what is no tuning file.
    """
    return tuning_of(text, name, path)[1]


def tuning_of(text: str, name: str, path: str | Path | None = None) -> tuple[int, str]:
    """The same for the `tuning` of calls, a pointer that is never freed, with the library's remark."""
    remark, error = ctypes.create_string_buffer(512), Error()
    read = load_library(path).bertfuse_read_tuning(
        text.encode(), name.encode(), remark, len(remark), ctypes.byref(error)
    )
    check(0 if read else error.code, error)
    return read, remark.value.decode(errors="replace")


def time_tactics(
    op: str, call: Call, milliseconds: float, path: str | Path | None = None
) -> list[tuple[str, float, bool]]:
    """(name, microseconds, whether it is the default) of every tactic that runs the call on its device.

    The call's shapes, dtypes and attributes count; the library takes tensors of its own. Raises NativeError.
    """
    found: list[tuple[str, float, bool]] = []

    @_TIMING
    def report(_: None, name: bytes, microseconds: float, is_default: int) -> None:
        found.append((name.decode(), microseconds, bool(is_default)))

    error = Error()
    code = load_library(path).bertfuse_tune(
        op.encode(), ctypes.byref(call), milliseconds, report, None, ctypes.byref(error)
    )
    check(code, error)
    return found
