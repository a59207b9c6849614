"""Weights of words, with the arguments of sentence-transformers' SparseEncoder."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.sentence_modules import SENTENCE

from .model import Batch
from .prompts import PromptedModel


class SparseVectors:
    """Vectors of which few numbers are not 0.

    Args:
        rows: of each vector int32 indices, ascending, and their float32 values.
        size: how many numbers a vector has.
    """

    def __init__(self, rows: list[tuple[np.ndarray, np.ndarray]], size: int) -> None:
        self.rows, self.size = rows, size

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The indices and the values of one vector."""
        return self.rows[row]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return iter(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.size

    def to_dense(self) -> np.ndarray:
        """float32 [vectors, size]."""
        made = np.zeros(self.shape, np.float32)
        for row, (indices, values) in enumerate(self.rows):
            made[row, indices] = values
        return made

    def to_tensor(self) -> Any:
        """A sparse COO tensor of PyTorch. Raises BertfuseError where torch is not installed."""
        try:
            import torch
        except ImportError as error:
            raise BertfuseError("convert_to_tensor needs PyTorch; install torch, or take indices and values") from error
        counts = [len(indices) for indices, _ in self.rows]
        where = np.stack([np.repeat(np.arange(len(self.rows)), counts), _joined(self.rows, 0, np.int64)])
        values = torch.from_numpy(_joined(self.rows, 1, np.float32))
        return torch.sparse_coo_tensor(torch.from_numpy(where), values, self.shape, check_invariants=True)

    def dot(self, other: SparseVectors) -> np.ndarray:
        """float32 [vectors, other's vectors]."""
        indices, values = _joined(other.rows, 0, np.int64), _joined(other.rows, 1, np.float32)
        counts = [len(part) for part, _ in other.rows]
        owners = np.repeat(np.arange(len(counts)), counts)
        made = np.zeros((len(self), len(other)), np.float32)
        for row, (own, weights) in enumerate(self.rows):
            dense = np.zeros(self.size, np.float32)
            dense[own] = weights
            made[row] = np.bincount(owners, dense[indices] * values, minlength=len(counts))
        return made

    def lengths(self) -> np.ndarray:
        """float32 [vectors]: each one's Euclidean length."""
        return np.array([np.linalg.norm(values) for _, values in self.rows], np.float32)


def _joined(rows: list[tuple[np.ndarray, np.ndarray]], part: int, dtype: Any) -> np.ndarray:
    return np.concatenate([row[part] for row in rows] or [np.empty(0)]).astype(dtype)


class SparseEncoder(PromptedModel):
    """A SparseEncoder's folder, SPLADE's or a table of weights; it is what Encoder gives of such a folder.

    `max_active_dims` is that of config_sentence_transformers.json where it is not given. Other arguments as Encoder's.
    """

    def __init__(self, folder: str | os.PathLike[str], *, max_active_dims: int | None = None, **options: Any) -> None:
        super().__init__(folder, **options)
        self.require(SENTENCE, "weights of words")
        self.max_active_dims = self._checked(max_active_dims) or self.settings.max_active_dims
        self.similarity_fn_name = self.settings.similarity_fn_name
        if self.similarity_fn_name not in ("dot", "cosine"):
            raise BertfuseError(f"{self.folder}: similarity {self.similarity_fn_name!r}: weights have dot and cosine")

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        max_active_dims: int | None = None,
        convert_to_tensor: bool = False,
        device: str | None = None,
        task: str | None = None,
    ) -> Any:
        """Weights of the vocabulary's words for each text, in the order given: SparseVectors; of a single string the
        pair of indices and values.

        `max_active_dims` keeps so many of a text's largest weights. `convert_to_tensor` gives a sparse tensor [texts,
        words] of PyTorch. The other arguments are those of Encoder.encode.
        """
        self.check_device(device)
        alone, most = isinstance(sentences, str), self._checked(max_active_dims) or self.max_active_dims
        before = self.prompt_text(prompt_name, prompt)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        texts = [before + text if isinstance(text, str) else text for text in texts]
        made: list[Any] = [None] * len(texts)
        for batch in self.run(texts, [SENTENCE], batch_size=batch_size, show_progress_bar=bool(show_progress_bar)):
            for row, words in zip(batch.rows, self.words(batch, most), strict=True):
                made[row] = words
        vectors = SparseVectors(made, self.dimension)
        if convert_to_tensor:
            return vectors.to_tensor()[0] if alone else vectors.to_tensor()
        return vectors[0] if alone else vectors

    def words(self, batch: Batch, most: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each text of the batch int32 indices of words, ascending, and float32 weights: the `most` largest."""
        return [largest(row, most or self.max_active_dims) for row in batch.outputs[SENTENCE].astype(np.float32)]

    @property
    def dimension(self) -> int:
        """How many words there are."""
        shape = next(value.shape for value in self.session.get_outputs() if value.name == SENTENCE)
        if not isinstance(shape[-1], int):
            raise BertfuseError(
                f"{self.path}: does not say how many words it weighs; export it with 'bertfuse optimize'"
            )
        return shape[-1]

    def get_sentence_embedding_dimension(self) -> int:
        return self.dimension

    get_embedding_dimension = get_sentence_embedding_dimension

    def similarity(self, embeddings1: SparseVectors, embeddings2: SparseVectors) -> np.ndarray:
        """float32 [N, M] of N and M texts' weights: how alike they are, by `similarity_fn_name`."""
        scores = embeddings1.dot(embeddings2)
        if self.similarity_fn_name == "cosine":
            lengths = embeddings1.lengths()[:, None] * embeddings2.lengths()
            scores = scores / np.maximum(lengths, 1e-12)
        return scores

    def decode(self, embeddings: SparseVectors, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """Of each text its words and their weights, the largest first."""
        made = []
        for indices, values in embeddings:
            order = np.argsort(-values, kind="stable")[:top_k]
            names = (self.tokenizer.id_to_token(int(indices[at])) or str(indices[at]) for at in order)
            made.append([(name, float(values[at])) for name, at in zip(names, order, strict=True)])
        return made

    def _checked(self, most: int | None) -> int | None:
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise BertfuseError(f"max_active_dims {most!r}: give 1 or more, or None")
        return most


def largest(weights: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """int32 indices, ascending, and values of those of float32 [words] that are not 0: of the `most` largest."""
    found = np.flatnonzero(weights)
    if most is not None and len(found) > most:
        found = np.sort(found[np.argpartition(-weights[found], most - 1)[:most]])
    return found.astype(np.int32), weights[found]


def largest_of_each(ids: np.ndarray, weights: np.ndarray, left_out: Collection[int | None]) -> Any:
    """int32 ids, ascending, and of each the largest of float32 `weights`, those above 0; both given of tokens [T]."""
    kept = (weights > 0) & ~np.isin(ids, [one for one in left_out if one is not None])
    found, places = np.unique(ids[kept], return_inverse=True)
    best = np.zeros(len(found), np.float32)
    np.maximum.at(best, places, weights[kept])
    return found.astype(np.int32), best
