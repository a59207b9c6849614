"""Where the custom-op libraries are, and how a session gets them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import bertfuse
from bertfuse.errors import BertfuseError, RuntimeLibraryError
from bertfuse.graph_rewrite.spec import DOMAIN

if TYPE_CHECKING:
    import onnxruntime

# runtime: (file name in the package's lib folder, environment variable that names another file)
LIBRARIES = {
    "onnxruntime": ("libbertfuse_ort.so", "BERTFUSE_ORT_LIBRARY"),
    "tensorrt": ("libbertfuse_trt.so", "BERTFUSE_TRT_LIBRARY"),
}


def library_path(runtime: str = "onnxruntime") -> Path:
    """The library of our ops for `runtime`, a key of LIBRARIES; "tensorrt" is also TensorRT for RTX.

    The environment variables BERTFUSE_ORT_LIBRARY and BERTFUSE_TRT_LIBRARY name another file than the installed one.
    Raises RuntimeLibraryError when there is no such file.
    """
    if runtime not in LIBRARIES:
        raise RuntimeLibraryError(f"runtime {runtime!r} has no library: choose one of {', '.join(LIBRARIES)}")
    name, variable = LIBRARIES[runtime]
    override = os.environ.get(variable)
    if override:
        if not Path(override).is_file():
            raise RuntimeLibraryError(f"{override}: no such library; {variable} names it, correct or unset that")
        return Path(override)
    for folder in bertfuse.__path__:
        path = Path(folder) / "lib" / name
        if path.is_file():
            return path
    raise RuntimeLibraryError(
        f"{name} is not installed; install bertfuse again ('make build' in a checkout) or name one with {variable}"
    )


def misses_library(error: Exception) -> bool:
    """Whether ONNX Runtime's `error` says that it has no kernel and no function for one of our ops."""
    return re.search(rf"\b{DOMAIN}:\w+\(-?\d+\) is not a registered function/op", str(error)) is not None


def register(
    session_options: onnxruntime.SessionOptions,
    *,
    tuning: str | os.PathLike[str] | None = None,
    tf32: bool = False,
    deterministic_rows: bool = False,
) -> None:
    """Adds bertfuse's ops to the sessions made with `session_options`; a second time changes nothing.

    Args:
        session_options: as onnxruntime's.
        tuning: a file that `bertfuse tune` wrote, with the tactics to use on this machine's GPU. Without it the
            environment variable BERTFUSE_TUNING may name one.
        tf32: lets CUDA kernels round the operands of float32 products to TF32 (11 bits), for speed. Without it they are
            exact float32, unless the environment variable BERTFUSE_TF32 is 1.
        deterministic_rows: has CUDA kernels give a sequence the same bits in any batch, more slowly (docs/gpu.md).
            Without it they do where the environment variable BERTFUSE_DETERMINISTIC_ROWS is 1.

    Raises:
        RuntimeLibraryError: the library is missing or does not load.
        BertfuseError: the tuning file cannot be read or is none, or the ops are there with other settings.
    """
    path = library_path("onnxruntime")
    asked = f"{path}|{'' if tuning is None else os.fspath(tuning)}|{tf32}|{deterministic_rows}"
    before = _entry(session_options, _REGISTERED)
    if before == asked:
        return  # a second time, onnxruntime fails: the domain is there
    if before is not None:
        raise BertfuseError(
            "bertfuse's ops are in these SessionOptions already, with other settings or another library; take new ones"
        )
    if tuning is not None:
        session_options.add_session_config_entry("bertfuse.tuning", os.fspath(tuning))
    if tf32:
        session_options.add_session_config_entry("bertfuse.tf32", "1")
    if deterministic_rows:
        session_options.add_session_config_entry("bertfuse.deterministic_rows", "1")
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's own exception classes share no public base
        reason = str(error).strip().splitlines()[0]
        ours = re.search(r"bertfuse (.*(tuning|tf32|row_hints|deterministic_rows|cublaslt).*)", reason)
        if ours:  # the library loads, and says what is wrong with its settings
            raise BertfuseError(ours[1]) from error
        raise RuntimeLibraryError(
            f"{path}: does not load: {reason}; install bertfuse again ('make build' in a checkout)"
        ) from error
    session_options.add_session_config_entry(_REGISTERED, asked)


_REGISTERED = "bertfuse.registered"


def _entry(session_options: onnxruntime.SessionOptions, key: str) -> str | None:
    try:
        return session_options.get_session_config_entry(key)
    except RuntimeError:  # it has none
        return None
