"""Sentence encoders: a transformer with what its sentence-transformers folder says comes after it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

from bertfuse.errors import ExportError, first_line
from bertfuse.runtime.folder import read_any_json, read_json

# The keys of sentence-transformers' pooling configuration, and what to call them.
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
}
_ACTIVATIONS = {"Identity": torch.nn.Identity, "Tanh": torch.nn.Tanh, "GELU": torch.nn.GELU, "ReLU": torch.nn.ReLU}


class SentenceEncoder(torch.nn.Module):
    """A transformer whose token vectors are pooled to one vector a row.

    Args:
        model: a transformers encoder, whose first output is [batch, sequence, hidden].
        pooling: of "mean", "cls", "max", "mean_sqrt_len"; several are concatenated. Padding counts in none.
        dense: modules applied to the pooled vector, in order.
        normalize: whether the result has length 1.
    """

    def __init__(self, model: Any, pooling: tuple[str, ...] = ("mean",), dense: tuple = (), normalize: bool = True):
        super().__init__()
        unknown = set(pooling) - set(_POOLINGS.values())
        if unknown or not pooling:
            raise ExportError(f"pooling {pooling!r} is unknown: choose from {', '.join(_POOLINGS.values())}")
        self.model = model
        self.pooling, self.normalize = pooling, normalize
        self.dense = torch.nn.Sequential(*dense)

    @property
    def config(self) -> Any:
        """The transformer's configuration."""
        return self.model.config

    def set_attn_implementation(self, attention: str) -> None:
        """As PreTrainedModel.set_attn_implementation."""
        self.model.set_attn_implementation(attention)

    def forward(self, input_ids, attention_mask, token_type_ids=None) -> dict[str, torch.Tensor]:
        """{"last_hidden_state": [batch, sequence, hidden], "sentence_embedding": [batch, size]} of int64 inputs."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        taken = inspect.signature(self.model.forward).parameters
        tokens = self.model(**{name: t for name, t in inputs.items() if name in taken and t is not None})[0]
        pooled = torch.cat([_pooled(tokens, attention_mask, mode) for mode in self.pooling], dim=-1)
        sentence = self.dense(pooled)
        if self.normalize:
            sentence = torch.nn.functional.normalize(sentence, p=2.0, dim=1)
        return {"last_hidden_state": tokens, "sentence_embedding": sentence}


def _pooled(tokens: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "cls":
        return tokens[:, 0]
    visible = mask.unsqueeze(-1).to(tokens.dtype)
    if mode == "max":
        return tokens.masked_fill(visible == 0, torch.finfo(tokens.dtype).min).max(dim=1).values
    count = visible.sum(dim=1).clamp(min=1)
    return (tokens * visible).sum(dim=1) / (count if mode == "mean" else count.sqrt())


def sentence_encoder(model: Any, folder: Path, source: str = "") -> SentenceEncoder:
    """`model` with what the sentence-transformers files of `folder`, in errors called `source`, say comes after it.

    Raises ExportError where there are none, or where they name a module or pooling that is not known here.
    """
    source = source or str(folder)
    modules = read_any_json(folder / "modules.json")
    if modules is None:
        raise ExportError(
            f"{source}: has no modules.json, so it is not a sentence-transformers model; take --task feature-extraction"
        )
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ExportError(f"{source}: modules.json is not a list of modules; take --task feature-extraction")
    pooling: tuple[str, ...] = ()
    dense: list[torch.nn.Module] = []
    normalize = False
    for module in modules[1:]:
        kind, path = str(module.get("type", "")).rsplit(".", 1)[-1], module.get("path", "")
        if kind == "Pooling" and not pooling and not dense:
            pooling = _pooling(source, read_json(folder / path / "config.json"))
        elif kind == "Dense" and pooling and not normalize:
            dense.append(_dense(source, folder, path))
        elif kind == "Normalize" and pooling:
            normalize = True
        else:
            raise ExportError(
                f"{source}: modules.json has a {kind} module, which cannot be exported; take --task feature-extraction"
            )
    if not pooling:
        raise ExportError(f"{source}: modules.json has no Pooling module; take --task feature-extraction")
    return SentenceEncoder(model, pooling, tuple(dense), normalize)


def _pooling(source: str, config: dict[str, Any]) -> tuple[str, ...]:
    wanted = config.get("pooling_mode")  # a name, or in older folders one flag for each
    if isinstance(wanted, str | list):
        modes = [wanted] if isinstance(wanted, str) else [str(mode) for mode in wanted]
    else:
        modes = [key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling") and on]
    modes = [_POOLINGS.get(f"pooling_mode_{mode}", mode) for mode in modes]
    if not modes or not set(modes) <= set(_POOLINGS.values()):
        raise ExportError(
            f"{source}: pooling {', '.join(modes) or 'none'} cannot be exported, "
            f"only {', '.join(_POOLINGS.values())}; take --task feature-extraction"
        )
    return tuple(modes)


def _dense(source: str, folder: Path, path: str) -> torch.nn.Module:
    from safetensors.torch import load_file

    config = read_json(folder / path / "config.json")
    activation = str(config.get("activation_function", "Identity")).rsplit(".", 1)[-1]
    file = folder / path / "model.safetensors"
    if activation not in _ACTIVATIONS or not file.is_file():
        why = f"activation {activation}" if file.is_file() else "no model.safetensors"
        raise ExportError(f"{source}: {path} has {why}, so it cannot be exported; take --task feature-extraction")
    try:
        weights = {name.removeprefix("linear."): tensor.float() for name, tensor in load_file(file).items()}
        out_features, in_features = weights["weight"].shape
        linear = torch.nn.Linear(in_features, out_features, bias="bias" in weights)
        linear.load_state_dict(weights)
    except Exception as error:  # safetensors raises its own, torch RuntimeError
        raise ExportError(f"{file}: holds no Dense module: {first_line(error)}; copy the model again") from error
    return torch.nn.Sequential(linear, _ACTIVATIONS[activation]())
