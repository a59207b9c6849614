"""The modules after a transformer in NumPy: for models that were exported without them, and prompts that pooling leaves
out."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertfuse.errors import BertfuseError, first_line
from bertfuse.model_folder.sentence_modules import SENTENCE, STATIC, TOKENS, Module, Modules

from .activations import sigmoid


class Pooling:
    """Token vectors [batch, sequence, hidden] and their mask to sentence vectors [batch, size], by a folder's modules.

    Args:
        modules: the folder's.
        folder: what errors call it.
        given: which rows are given: "last_hidden_state", the transformer's, or "token_embeddings", those to be pooled.

    Raises BertfuseError for modules that cannot be applied to the model's outputs.
    """

    def __init__(self, modules: Modules, folder: Path, given: str = "last_hidden_state") -> None:
        later = list(modules.later)
        if given == TOKENS:
            while later and later[0].writes == TOKENS:
                later.pop(0)
        missing = [module.kind for module in later if module.kind == "WeightedLayerPooling"]
        if missing or modules.first.kind == STATIC:
            raise BertfuseError(
                f"{folder}: {(missing or [STATIC])[0]} is not in its ONNX file; export it with 'bertfuse optimize'"
            )
        self.modules = [(module, _weights(module)) for module in later]

    def __call__(self, tokens: np.ndarray, mask: np.ndarray, left_out: int = 0) -> np.ndarray:
        """`mask` int64 [batch, sequence]; pooling leaves out the first `left_out` tokens, which are a prompt's."""
        features = {TOKENS: tokens.astype(np.float32, copy=False)}
        for module, weights in self.modules:
            if module.kind == "Pooling":
                pooled = [_pooled(features[TOKENS], mask, mode, left_out) for mode in module.poolings]
                features[SENTENCE] = np.concatenate(pooled, axis=1)
            elif module.kind == "Normalize":
                features[module.writes] = normalized(features[module.reads])
            elif module.kind == "LayerNorm":
                features[SENTENCE] = _layer_norm(features[SENTENCE], weights)
            else:
                features[module.writes] = _dense(module, features[module.reads], weights)
        return features[SENTENCE]


def _pooled(tokens: np.ndarray, mask: np.ndarray, mode: str, left_out: int) -> np.ndarray:
    kept = np.where(np.arange(mask.shape[1]) < left_out, 0, mask)
    seen = kept[..., None].astype(tokens.dtype)
    rows = np.arange(len(tokens))
    if mode == "cls":
        return tokens[rows, kept.argmax(axis=1)]
    if mode == "lasttoken":
        return (tokens * seen)[rows, (kept * np.arange(kept.shape[1])).argmax(axis=1)]
    if mode == "max":
        return np.where(seen > 0, tokens, np.finfo(tokens.dtype).min).max(axis=1)
    if mode == "weightedmean":
        seen = seen * np.arange(1, kept.shape[1] + 1, dtype=tokens.dtype)[:, None]
    count = np.maximum(seen.sum(axis=1), 1)
    return (tokens * seen).sum(axis=1) / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count)


def _weights(module: Module) -> dict[str, np.ndarray]:
    if module.kind not in ("Dense", "LayerNorm"):
        return {}
    from safetensors.numpy import load_file

    file = module.folder / "model.safetensors"
    needed = ("linear.weight",) if module.kind == "Dense" else ("norm.weight", "norm.bias")
    try:
        found = {name: array.astype(np.float32) for name, array in load_file(file).items()}
        return found | {name: found[name] for name in needed}
    except Exception as error:  # safetensors raises its own, and KeyError for types that NumPy lacks
        raise BertfuseError(f"{file}: holds no {module.kind} module: {first_line(error)}; copy it again") from error


def _layer_norm(vectors: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    centred = vectors - vectors.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(1e-5))
    return scaled * weights["norm.weight"] + weights["norm.bias"]


def _dense(module: Module, given: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    made = given @ weights["linear.weight"].T
    if "linear.bias" in weights:
        made = made + weights["linear.bias"]
    made = _ACTIVATIONS[module.activation](made).astype(np.float32)
    if module.config.get("use_residual"):
        made = made + (given @ weights["residual.weight"].T if "residual.weight" in weights else given)
    return made


# torch.nn's with their defaults; their names are `sentence_modules.ACTIVATIONS`.
_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))) / 2,
    "Sigmoid": sigmoid,
    "SiLU": lambda x: x * sigmoid(x),
    "LeakyReLU": lambda x: np.where(x > 0, x, 0.01 * x),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "Softplus": lambda x: np.logaddexp(x, 0),
}


def normalized(vectors: np.ndarray) -> np.ndarray:
    """Each row at length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
