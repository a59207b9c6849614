"""For polygraphy: ONNX Runtime sessions with custom-op libraries, in scripts and in `polygraphy run --onnxrt-ops`.

polygraphy's own SessionFromOnnx makes its session options itself and has no way to register a library in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from polygraphy import util
from polygraphy.backend.base import BaseLoader
from polygraphy.logger import G_LOGGER

from bertfuse.errors import RuntimeLibraryError

from .library import library_path


class SessionWithOpLibraries(BaseLoader):
    """A polygraphy loader of an onnxruntime.InferenceSession whose models may use ops of custom-op libraries.

    Args:
        model: a path, serialised bytes, or a callable that returns one of them (such as polygraphy's BytesFromOnnx).
        libraries: the custom-op libraries to register, in order; None is bertfuse's.
        providers: as SessionFromOnnx's: names of execution providers or parts of them, in any case; None is the CPU.
        graph_optimization_level: an onnxruntime.GraphOptimizationLevel; None is onnxruntime's own default.

    Calling it returns the session, or raises PolygraphyException for a library or provider that is missing.

        runner = OnnxrtRunner(SessionWithOpLibraries("model.fused.onnx", providers=["cuda"]))
    """

    def __init__(
        self,
        model: str | bytes | Callable[[], str | bytes],
        libraries: Sequence[str | Path] | None = None,
        providers: Sequence[Any] | None = None,
        graph_optimization_level: Any = None,
    ) -> None:
        self._model = model
        self._libraries = libraries
        self._providers = providers or ["cpu"]
        self._level = graph_optimization_level

    @util.check_called_by("__call__")
    def call_impl(self) -> onnxruntime.InferenceSession:
        model, _ = util.invoke_if_callable(self._model)
        options = onnxruntime.SessionOptions()
        if self._level is not None:
            options.graph_optimization_level = self._level
        for library in self._paths():
            try:
                options.register_custom_ops_library(str(library))
            except Exception as error:  # onnxruntime's own exception classes share no public base
                G_LOGGER.critical(f"{library}: cannot be registered with ONNX Runtime: {str(error).strip()}")
        return onnxruntime.InferenceSession(model, options, providers=[_provider(entry) for entry in self._providers])

    def _paths(self) -> Sequence[str | Path]:
        if self._libraries is not None:
            return self._libraries
        try:
            return [library_path("onnxruntime")]
        except RuntimeLibraryError as error:
            G_LOGGER.critical(str(error))
            raise


def _provider(entry: Any) -> Any:
    name, *settings = entry if isinstance(entry, tuple) else (entry,)
    available = onnxruntime.get_available_providers()
    found = util.find_str_in_iterable(name, available)
    if found is None:
        G_LOGGER.critical(f"This onnxruntime has no execution provider {name!r}; it has {', '.join(available)}")
    return (found, *settings) if settings else found
