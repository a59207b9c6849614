"""Where the custom-op libraries are, and how a session gets them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import bertfuse
from bertfuse.errors import RuntimeLibraryError

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
    raise RuntimeLibraryError(f"{name} is not installed; build it with 'make build' or name one with {variable}")


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Adds bertfuse's ops to the sessions made with `session_options`. Raises RuntimeLibraryError when that fails."""
    path = library_path("onnxruntime")
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's own exception classes share no public base
        reason = str(error).strip().splitlines()[0]
        raise RuntimeLibraryError(f"{path}: does not load: {reason}; build it again with 'make build'") from error
