"""TensorRT and TensorRT for RTX: engines out of fused files, with our plugins or with the op bodies, and their runs."""

from bertfuse.lazy import lazy

_EXPORTS = {
    "build_engine": "build",
    "EngineReport": "build",
    "engine_runner": "run",
    "load_backend": "backend",
    "load_plugins": "backend",
}

__all__ = list(_EXPORTS)
__getattr__ = lazy(__name__, _EXPORTS)
