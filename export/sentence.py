"""Sentence encoders: a transformer, or static embeddings, with the modules that its folder says come after it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from bertfuse.errors import ExportError, first_line
from bertfuse.model_folder.multi_vector import MultiVector
from bertfuse.model_folder.sentence_modules import M3_FILES, POOLINGS, SENTENCE, TOKENS, Module, read_modules, vector_of
from bertfuse.model_folder.towers import takes_images

Features = dict[str, Any]


class SentenceEncoder(torch.nn.Module):
    """A transformer whose token vectors are pooled to one vector a row.

    Args:
        model: a transformers encoder, whose first output is [batch, sequence, hidden].
        pooling: of "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"; several are concatenated.
            Padding counts in none.
        normalize: whether the result has length 1.
        later: the modules after the transformer, in place of these two.
        vector: which of the model's outputs is the row's vector already; None: what is pooled.
    """

    def __init__(
        self,
        model: Any,
        pooling: tuple[str, ...] = ("mean",),
        normalize: bool = True,
        later: Sequence[torch.nn.Module] | None = None,
        vector: str | None = None,
    ) -> None:
        super().__init__()
        if later is None:
            unknown = set(pooling) - set(POOLINGS)
            if unknown or not pooling:
                raise ExportError(f"pooling {pooling!r} is unknown: choose from {', '.join(POOLINGS)}")
            later = [_Pooling(pooling), *([_Normalize(SENTENCE, SENTENCE)] if normalize else [])]
        self.model = model
        self.later = torch.nn.ModuleList(later)
        self.vector = vector

    @property
    def config(self) -> Any:
        """The transformer's configuration."""
        return self.model.config

    def set_attn_implementation(self, attention: str) -> None:
        """As PreTrainedModel.set_attn_implementation."""
        self.model.set_attn_implementation(attention)

    def forward(self, input_ids, attention_mask, token_type_ids=None) -> dict[str, torch.Tensor]:
        """{"last_hidden_state": [batch, sequence, hidden], "sentence_embedding": [batch, size]} of int64 inputs, and
        "token_embeddings" [batch, sequence, size] where a module changes the rows before they are pooled.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.encoded(inputs, attention_mask)

    def encoded(self, inputs: dict[str, torch.Tensor | None], mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """As `forward`, of whatever inputs the model has; `mask` is that of its tokens."""
        taken = inspect.signature(self.model.forward).parameters
        layers = any(isinstance(module, _WeightedLayers) for module in self.later)
        options = {"output_hidden_states": True} if layers else {}
        found = self.model(**{name: t for name, t in inputs.items() if name in taken and t is not None}, **options)
        rows = found[0] if self.vector is None else found["last_hidden_state"]
        features: Features = {TOKENS: rows, "mask": mask}
        if self.vector is not None:
            features[SENTENCE] = found[self.vector]
        features["layers"] = found.hidden_states if layers else None
        for module in self.later:
            module(features)
        changed = {} if features[TOKENS] is rows else {TOKENS: features[TOKENS]}
        return {"last_hidden_state": rows, SENTENCE: features[SENTENCE], **changed}


class M3Encoder(SentenceEncoder):
    """bge-m3: beside the sentence's vector each token's weight and vector, from the same rows.

    Args:
        weights, vectors: layers [hidden] to [1] and to [size].
    """

    def __init__(self, model: Any, weights: torch.nn.Linear, vectors: torch.nn.Linear, **options: Any) -> None:
        super().__init__(model, **options)
        self.weights, self.vectors = weights, vectors

    def encoded(self, inputs: dict[str, torch.Tensor | None], mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """As SentenceEncoder's, and "sparse_vecs" [batch, sequence, 1] and "colbert_vecs" [batch, sequence, size]."""
        found = super().encoded(inputs, mask)
        rows = found["last_hidden_state"]
        features: Features = {TOKENS: self.vectors(rows)}
        _Normalize(TOKENS, TOKENS)(features)
        return {**found, "sparse_vecs": self.weights(rows).relu(), "colbert_vecs": features[TOKENS]}


class TokenEncoder(SentenceEncoder):
    """A transformer with a vector for each of its tokens, made by the modules after it."""

    def encoded(self, inputs: dict[str, torch.Tensor | None], mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """{"token_embeddings": [batch, sequence, size]} of int64 inputs."""
        taken = inspect.signature(self.model.forward).parameters
        found = self.model(**{name: t for name, t in inputs.items() if name in taken and t is not None})
        features: Features = {TOKENS: found[0]}
        for module in self.later:
            module(features)
        return {TOKENS: features[TOKENS]}


class ImageEncoder(SentenceEncoder):
    """A model of images whose output `vector` is theirs, with the modules after it."""

    def forward(self, pixel_values) -> dict[str, torch.Tensor]:
        """{"last_hidden_state": [batch, patches, hidden], "sentence_embedding": [batch, size]} of float images."""
        return self.encoded({"pixel_values": pixel_values}, None)


class StaticEncoder(torch.nn.Module):
    """Static embeddings: a row of a table for each token, and of these the mean, of no token zeros.

    Args:
        table: [vocabulary, size].
        later: the modules after it.
    """

    def __init__(self, table: torch.Tensor, later: Sequence[torch.nn.Module] = ()) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(table.float())
        self.later = torch.nn.ModuleList(later)
        self.config = transformers.PretrainedConfig(
            vocab_size=table.shape[0], hidden_size=table.shape[1], architectures=["StaticEmbedding"]
        )

    def set_attn_implementation(self, attention: str) -> None:
        """As PreTrainedModel.set_attn_implementation; there is no attention here."""

    def forward(self, input_ids, attention_mask) -> dict[str, torch.Tensor]:
        """{"sentence_embedding": [batch, size]} of int64 inputs."""
        features: Features = {SENTENCE: _pooled(self.embedding(input_ids), attention_mask, "mean")}
        for module in self.later:
            module(features)
        return {SENTENCE: features[SENTENCE]}


class _Pooling(torch.nn.Module):
    def __init__(self, modes: Sequence[str]) -> None:
        super().__init__()
        self.modes = tuple(modes)

    def forward(self, features: Features) -> None:
        tokens, mask = features[TOKENS], features["mask"]
        features[SENTENCE] = torch.cat([_pooled(tokens, mask, mode) for mode in self.modes], dim=-1)


def _pooled(tokens: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "cls":
        return tokens[:, 0]
    visible = mask.unsqueeze(-1).to(tokens.dtype)
    if mode == "max":
        return tokens.masked_fill(visible == 0, torch.finfo(tokens.dtype).min).max(dim=1).values
    places = torch.arange(tokens.shape[1], device=tokens.device)
    if mode == "lasttoken":
        last = (mask * places).max(dim=1).values
        return (tokens * visible).gather(1, last[:, None, None].expand(-1, 1, tokens.shape[2])).squeeze(1)
    if mode == "weightedmean":
        # Of 1, not of the length: float16 ends at 65504, which the sum of 1 to 362 exceeds.
        visible = visible * ((places + 1).to(tokens.dtype) / tokens.shape[1])[:, None]
        return (tokens * visible).sum(dim=1) / visible.sum(dim=1).clamp(min=1e-6)
    count = visible.sum(dim=1).clamp(min=1)
    return (tokens * visible).sum(dim=1) / (count if mode == "mean" else count.sqrt())


class _Normalize(torch.nn.Module):
    def __init__(self, reads: str, writes: str) -> None:
        super().__init__()
        self.reads, self.writes = reads, writes

    def forward(self, features: Features) -> None:
        given = features[self.reads]
        if self.reads == TOKENS:  # without the expansion to all numbers, by which it would not be of each row alone
            features[self.writes] = given / given.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        else:
            features[self.writes] = torch.nn.functional.normalize(given, p=2.0, dim=given.dim() - 1)


class _LayerNorm(torch.nn.Module):
    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(len(tensors["norm.weight"]))
        self.load_state_dict(tensors)

    def forward(self, features: Features) -> None:
        features[SENTENCE] = self.norm(features[SENTENCE])


class _Dense(torch.nn.Module):
    def __init__(self, module: Module, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        out_features, in_features = tensors["linear.weight"].shape
        self.linear = torch.nn.Linear(in_features, out_features, bias="linear.bias" in tensors)
        self.residual: torch.nn.Module | None = None
        if module.config.get("use_residual"):
            same = in_features == out_features
            self.residual = torch.nn.Identity() if same else torch.nn.Linear(in_features, out_features, bias=False)
        self.activation = getattr(torch.nn, module.activation)()
        self.load_state_dict(tensors)
        self.reads, self.writes = module.reads, module.writes

    def forward(self, features: Features) -> None:
        given = features[self.reads]
        made = self.activation(self.linear(given))
        features[self.writes] = made if self.residual is None else made + self.residual(given)


class _WeightedLayers(torch.nn.Module):
    """The mean of all layers' outputs from `start` on, by learned weights; layer 0 is the embedding's."""

    def __init__(self, start: int, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        weights = tensors["layer_weights"].float()
        self.start, self.weights = start, (weights / weights.sum()).tolist()

    def forward(self, features: Features) -> None:
        layers = features["layers"][self.start :]
        if len(layers) != len(self.weights):
            raise ExportError(
                f"WeightedLayerPooling has {len(self.weights)} weights, for layers {self.start} to"
                f" {self.start + len(self.weights) - 1}; the transformer gives {len(layers)} from there on"
            )
        features[TOKENS] = sum(weight * layer for weight, layer in zip(self.weights, layers, strict=True))


def sentence_encoder(model: Any, folder: Path, source: str = "") -> SentenceEncoder:
    """`model` with what the sentence-transformers files of `folder`, in errors called `source`, say comes after it.

    Raises BertfuseError where they name a module or a setting that is not known here.
    """
    modules = read_modules(folder, source)
    if all((folder / file).is_file() for file in M3_FILES.values()):
        layers = {name: _layer(folder / file) for name, file in M3_FILES.items()}
        made = [_made(module) for module in modules.later]
        return M3Encoder(model, layers["sparse_vecs"], layers["colbert_vecs"], later=made)
    kind = ImageEncoder if takes_images(folder) else SentenceEncoder
    return kind(model, later=[_made(module) for module in modules.later], vector=vector_of(modules.first.folder))


def _layer(file: Path) -> torch.nn.Linear:
    """A linear layer that torch.save wrote, read without running what a pickle may hold. Raises ExportError."""
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        layer = torch.nn.Linear(*reversed(tensors["weight"].shape), bias="bias" in tensors)
        layer.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except Exception as error:  # torch raises many
        raise ExportError(f"{file}: holds no linear layer: {first_line(error)}; copy the model again") from error
    return layer


def token_encoder(model: Any, late: MultiVector) -> TokenEncoder:
    """`model` with the modules after it. Raises BertfuseError where they have no weights."""
    return TokenEncoder(model, later=[_made(module) for module in late.later])


def static_encoder(folder: Path, source: str = "") -> StaticEncoder:
    """The static embeddings of the folder, with the modules after them. Raises BertfuseError as `sentence_encoder`."""
    modules = read_modules(folder, source)
    tensors = read_tensors(modules.first)
    if "embedding.weight" in tensors:
        table = tensors["embedding.weight"]
    elif "embeddings" in tensors:  # as model2vec saves them
        table = tensors["embeddings"].float()
        table = table[tensors["mapping"].long()] if "mapping" in tensors else table
        table = table * tensors["weights"].float()[:, None] if "weights" in tensors else table
    else:
        raise ExportError(f"{modules.first.folder / 'model.safetensors'}: holds no embeddings; save the model again")
    return StaticEncoder(table, [_made(module) for module in modules.later])


def _made(module: Module) -> torch.nn.Module:
    try:
        if module.kind == "Pooling":
            return _Pooling(module.poolings)
        if module.kind == "Normalize":
            return _Normalize(module.reads, module.writes)
        tensors = read_tensors(module)
        if module.kind == "LayerNorm":
            return _LayerNorm(tensors)
        if module.kind == "WeightedLayerPooling":
            return _WeightedLayers(int(module.config.get("layer_start", 4)), tensors)
        return _Dense(module, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ExportError(
            f"{module.folder / 'model.safetensors'}: holds no {module.kind} module: {first_line(error)}; copy the model"
            " again"
        ) from error


def read_tensors(module: Module) -> dict[str, torch.Tensor]:
    """What the module's model.safetensors holds, in float32. Raises ExportError."""
    from safetensors.torch import load_file

    file = module.folder / "model.safetensors"
    try:
        tensors = load_file(file)
    except Exception as error:  # safetensors raises its own
        raise ExportError(
            f"{file}: holds no {module.kind} module: {first_line(error)}; copy the model again"
        ) from error
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
