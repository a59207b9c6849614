"""Weights of words: SPLADE's of a masked language model, and those of a table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers

from bertfuse.errors import ExportError
from bertfuse.model_folder.sentence_modules import SENTENCE
from bertfuse.model_folder.sparse import Sparse

from .sentence import read_tensors

# Words whose logits are in memory at once: with all of them 512 tokens of 30,522 words take 62 MB, of 250,002 512 MB.
CHUNK = 2048


class SpladeEncoder(torch.nn.Module):
    """A masked language model whose logits come to one weight for each word of the vocabulary.

    The product with the vocabulary is cut by words, each part reduced over a text's tokens before the next: there is no
    tensor of all tokens and words. Nothing but standard operators is needed for that, and no loop.

    Args:
        model: of transformers, whose output embeddings are its last layer.
        strategy: "max" or "sum" over a text's tokens.
        activation: "relu" or "log1p_relu", before another log1p.
    """

    def __init__(self, model: Any, strategy: str = "max", activation: str = "relu") -> None:
        super().__init__()
        decoder = model.get_output_embeddings()
        if not isinstance(decoder, torch.nn.Linear):
            raise ExportError(f"{type(model).__name__}: has no layer of logits as its last one")
        weight, bias = decoder.weight.detach(), decoder.bias
        self.weights = torch.nn.ParameterList([part.clone() for part in weight.split(CHUNK)])
        parts = [] if bias is None else [part.clone() for part in bias.detach().split(CHUNK)]
        self.biases = torch.nn.ParameterList(parts)
        model.set_output_embeddings(_Rows(decoder))
        self.model, self.strategy, self.activation = model, strategy, activation

    @property
    def config(self) -> Any:
        """The transformer's configuration."""
        return self.model.config

    def set_attn_implementation(self, attention: str) -> None:
        """As PreTrainedModel.set_attn_implementation."""
        self.model.set_attn_implementation(attention)

    def forward(self, input_ids, attention_mask, token_type_ids=None) -> dict[str, torch.Tensor]:
        """{"sentence_embedding": [batch, words]} of int64 inputs; of "max" also "logits" [batch, 1, words], each word's
        largest or 0: what SpladePooling makes the same weights of.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        taken = inspect.signature(self.model.forward).parameters
        rows = self.model(**{name: t for name, t in inputs.items() if name in taken and t is not None}).logits
        visible = attention_mask.unsqueeze(-1)
        made = []
        for index, weight in enumerate(self.weights):
            logits = torch.nn.functional.linear(rows, weight, self.biases[index] if len(self.biases) else None)
            logits = logits.masked_fill(visible == 0, 0)
            made.append(logits.amax(dim=1) if self.strategy == "max" else self._weight(logits).sum(dim=1))
        words = torch.cat(made, dim=-1)
        if self.strategy == "sum":
            return {SENTENCE: words}
        words = words.relu()
        return {SENTENCE: self._weight(words), "logits": words.unsqueeze(1)}

    def _weight(self, logits: torch.Tensor) -> torch.Tensor:
        weights = (logits.relu() + 1).log()
        return (weights + 1).log() if self.activation == "log1p_relu" else weights


class _Rows(torch.nn.Module):
    """In place of the layer of logits: the rows that it would have been given."""

    def __init__(self, decoder: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = decoder.weight, decoder.bias  # models look at these

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class SparseStaticEncoder(torch.nn.Module):
    """A weight for each word of the vocabulary that a text has, however often.

    Args:
        weights: [words].
    """

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(weights.float(), requires_grad=False)
        self.config = transformers.PretrainedConfig(vocab_size=len(weights), architectures=["SparseStaticEmbedding"])

    def set_attn_implementation(self, attention: str) -> None:
        """As PreTrainedModel.set_attn_implementation; there is no attention here."""

    def forward(self, input_ids, attention_mask) -> dict[str, torch.Tensor]:
        """{"sentence_embedding": [batch, words]} of int64 inputs."""
        size = self.weights.shape[0]
        there = torch.zeros(1, size + 1, dtype=self.weights.dtype).expand(input_ids.shape[0], -1)
        # Padding has a column of its own: its id may be a word's.
        places = torch.where(attention_mask != 0, input_ids, size)
        there = there.scatter(1, places, torch.ones_like(places, dtype=self.weights.dtype))
        return {SENTENCE: there[:, :size] * self.weights}


def splade_encoder(model: Any, sparse: Sparse) -> SpladeEncoder:
    """`model` with what the folder's SpladePooling says. Raises ExportError where it has no layer of logits."""
    return SpladeEncoder(model, sparse.strategy, sparse.activation)


def sparse_static_encoder(sparse: Sparse) -> SparseStaticEncoder:
    """The table of the folder. Raises ExportError where there is none."""
    tensors = read_tensors(sparse.first)
    if "weight" not in tensors:
        raise ExportError(f"{Path(sparse.first.folder) / 'model.safetensors'}: holds no weights; save the model again")
    return SparseStaticEncoder(tensors["weight"])
