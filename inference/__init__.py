"""Texts in, vectors, scores and labels out: a model folder with its tokenizer, pooling, activation and labels.

Arguments and results are those of sentence-transformers and of transformers' pipelines. Needs onnxruntime, tokenizers
and NumPy; neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "Encoder": "encoder",
    "Reranker": "reranker",
    "Classifier": "classifier",
    "Tagger": "tagger",
    "MaskFiller": "mask_filler",
    "QuestionAnswerer": "question_answerer",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
