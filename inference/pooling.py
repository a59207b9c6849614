"""Pooling of token vectors as modules.json says, for models that were exported without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime.folder import read_any_json, read_json

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
}


def modules_after(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of the modules after the transformer; without modules.json a mean, as sentence-transformers."""
    modules = read_any_json(folder / "modules.json")
    if not isinstance(modules, list):
        return [("Pooling", folder / "")]
    named = [module for module in modules[1:] if isinstance(module, dict)]
    return [(str(m.get("type", "")).rsplit(".", 1)[-1], folder / str(m.get("path", ""))) for m in named]


def pooling_modes(config: dict) -> tuple[str, ...]:
    """The poolings that a 1_Pooling/config.json names, to be concatenated."""
    named = config.get("pooling_mode")
    if isinstance(named, str | list):
        names = [named] if isinstance(named, str) else map(str, named)
        return tuple(_FLAGS.get(f"pooling_mode_{name}", name) for name in names)
    return tuple(mode for flag, mode in _FLAGS.items() if config.get(flag)) or ("mean",)


class Pooling:
    """[batch, sequence, hidden] and its mask to [batch, size], by the folder's modules.

    Raises BertfuseError for modules that cannot be applied here.
    """

    def __init__(self, folder: Path) -> None:
        self.modes: tuple[str, ...] = ("mean",)
        self.normalize = False
        for kind, path in modules_after(folder):
            if kind == "Pooling":
                config = read_json(path / "config.json") if path != folder else {}
                self.modes = pooling_modes(config)
            elif kind == "Normalize":
                self.normalize = True
            else:
                raise BertfuseError(
                    f"{folder}: modules.json has a {kind} module; export with --task auto, which adds it"
                )
        unknown = set(self.modes) - set(_FLAGS.values())
        if unknown:
            raise BertfuseError(
                f"{folder}: pooling {', '.join(unknown)} is unknown; choose from {', '.join(_FLAGS.values())}"
            )

    def __call__(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        tokens = tokens.astype(np.float32, copy=False)
        vectors = np.concatenate([_pooled(tokens, mask, mode) for mode in self.modes], axis=1)
        return normalized(vectors) if self.normalize else vectors


def _pooled(tokens: np.ndarray, mask: np.ndarray, mode: str) -> np.ndarray:
    if mode == "cls":
        return tokens[:, 0]
    seen = mask[..., None].astype(tokens.dtype)
    if mode == "max":
        return np.where(seen > 0, tokens, np.finfo(tokens.dtype).min).max(axis=1)
    count = np.maximum(seen.sum(axis=1), 1)
    return (tokens * seen).sum(axis=1) / (count if mode == "mean" else np.sqrt(count))


def normalized(vectors: np.ndarray) -> np.ndarray:
    """Each row at length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
