"""BERT-family encoders, fused: Hugging Face model -> ONNX -> a handful of custom ops with CUDA kernels behind them.

Everything is imported on first use, so that `import bertfuse` costs nothing and a missing extra hurts only its user.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "export_model": "bertfuse.export",
    "optimize": "bertfuse.optimization",
    "quantize": "bertfuse.quantization",
    "fuse": "bertfuse.graph_rewrite",
    "explain": "bertfuse.graph_rewrite",
    "FuseOptions": "bertfuse.graph_rewrite",
    "FusionResult": "bertfuse.graph_rewrite",
    "Miss": "bertfuse.graph_rewrite",
    "library_path": "bertfuse.runtime",
    "register": "bertfuse.runtime",
    "InferenceSession": "bertfuse.runtime",
    "compare_models": "bertfuse.measuring.compare",
    "Encoder": "bertfuse.inference",
    "SparseEncoder": "bertfuse.inference",
    "MultiVectorEncoder": "bertfuse.inference",
    "Reranker": "bertfuse.inference",
    "Classifier": "bertfuse.inference",
    "Tagger": "bertfuse.inference",
    "ragged": "bertfuse.runtime",
    "BertfuseError": "bertfuse.errors",
}

__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'bertfuse' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    except ModuleNotFoundError as error:
        from bertfuse.errors import without_onnxruntime

        raise without_onnxruntime(error) from error


def __dir__() -> list[str]:
    return sorted(__all__)
