"""Running models: sessions with the custom-op library, and what feeds them. Engines of TensorRT: the package trt."""

from bertfuse.lazy import lazy

_EXPORTS = {
    "library_path": "library",
    "register": "library",
    "InferenceSession": "session",
    "ragged": "ragged_inputs",
    "random_inputs": "inputs",
    "text_inputs": "inputs",
}

__all__ = list(_EXPORTS)
__getattr__ = lazy(__name__, _EXPORTS)
