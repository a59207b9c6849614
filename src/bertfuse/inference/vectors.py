"""What is done with finished vectors: fewer bits for each number, similarities, tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .pooling import normalized

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def ranges_of(vectors: np.ndarray) -> np.ndarray:
    """[2, size] float32: the least and the largest number of each column of [N, size]."""
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)]).astype(np.float32)


def quantized(vectors: np.ndarray, precision: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """Float vectors [N, size] as sentence_transformers.quantize_embeddings gives them.

    "int8" and "uint8" cut the range of each column into 255 steps: that of `ranges` [2, size], or without them the one
    among these vectors. "binary" and "ubinary" keep a bit for each number, whether it is positive: [N, size / 8] int8
    (less 128) and uint8.
    """
    if precision == "float32" or not len(vectors):
        return vectors
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    least, most = ranges_of(vectors) if ranges is None else ranges
    steps = (most - least) / 255
    found = np.clip(np.floor((vectors - least) / np.where(steps == 0, 1, steps)), 0, 255)
    return found.astype(np.uint8) if precision == "uint8" else (found - 128).astype(np.int8)


def check_precision(precision: str | None) -> str:
    """Raises BertfuseError for a precision that is unknown; None is float32."""
    if precision is not None and precision not in PRECISIONS:
        raise BertfuseError(f"precision {precision!r} is unknown: choose from {', '.join(PRECISIONS)}")
    return precision or "float32"


def _differences(a: np.ndarray, b: np.ndarray, power: int) -> np.ndarray:
    return np.stack([(np.abs(row - b) ** power).sum(axis=-1) for row in a]) if len(a) else np.empty((0, len(b)))


# [N, size] and [M, size] to [N, M], larger where more alike; names as in config_sentence_transformers.json.
SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda a, b: normalized(a) @ normalized(b).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -np.sqrt(_differences(a, b, 2)),
    "manhattan": lambda a, b: -_differences(a, b, 1),
}

# [N, size] twice to [N], as above.
PAIRWISE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda a, b: (normalized(a) * normalized(b)).sum(axis=-1),
    "dot": lambda a, b: (a * b).sum(axis=-1),
    "euclidean": lambda a, b: -np.linalg.norm(a - b, axis=-1),
    "manhattan": lambda a, b: -np.abs(a - b).sum(axis=-1),
}


def as_tensor(array: np.ndarray) -> Any:
    """The array as a tensor of PyTorch on the CPU. Raises BertfuseError where torch is not installed."""
    try:
        import torch
    except ImportError as error:
        raise BertfuseError("convert_to_tensor needs PyTorch; install torch, or take NumPy arrays") from error
    return torch.from_numpy(np.ascontiguousarray(array))
