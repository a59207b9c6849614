"""Scores of pairs of texts, with the arguments and results of sentence-transformers' CrossEncoder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import folder_of
from bertfuse.model_folder.multi_vector import is_multi_vector
from bertfuse.model_folder.sentence_settings import read_settings

from .activations import Activation, applied, of_reranker, softmax
from .model import TextModel
from .multi_vector_encoder import MultiVectorEncoder
from .vectors import as_tensor


class Reranker(TextModel):
    """A cross-encoder's folder; of one of late interaction this gives a MaxSimReranker.

    `activation_fn` is predict's, where a call gives none; `max_length` is another name of `max_seq_length`, as
    CrossEncoder's. Other arguments as TextModel's.
    """

    def __new__(cls, folder: str | os.PathLike[str], **options: Any) -> Any:
        path = Path(folder)
        late = cls is Reranker and is_multi_vector(path if path.is_dir() else folder_of(path))
        return super().__new__(MaxSimReranker if late else cls)

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        activation_fn: Activation | None = None,
        max_length: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, **({"max_seq_length": max_length} | options))
        self.require("logits", "a reranker")
        self.activation_fn = activation_fn
        read_settings(self.folder)  # refuses what cannot be applied

    def predict(
        self,
        sentences: tuple[str, str] | Iterable[Sequence[str]],
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
    ) -> Any:
        """float32 scores [len(sentences)], [len(sentences), labels] of a model with several; of one pair without axis.

        `activation_fn` takes the logits [n, labels] in place of the model's own activation: a function of arrays, or
        one of PyTorch's, as torch.nn.Sigmoid(). The other arguments are those of Encoder.encode.
        """
        self.check_device(device)
        pairs, alone = _pairs(sentences)
        scores: np.ndarray | None = None
        for batch in self.run(pairs, ["logits"], batch_size=batch_size, show_progress_bar=bool(show_progress_bar)):
            logits = batch.outputs["logits"].astype(np.float32)
            if scores is None:
                given_one = activation_fn or self.activation_fn
                activation = given_one or of_reranker(self.folder, self.config, logits.shape[1])
                scores = np.empty((len(pairs), logits.shape[1]), np.float32)
            found = applied(activation, logits)
            scores[batch.rows] = softmax(found) if apply_softmax else found
        if scores is None:
            none = np.empty(0, np.float32)
            return as_tensor(none) if convert_to_tensor else none if convert_to_numpy else []
        made = scores[:, 0] if scores.shape[1] == 1 else scores
        return _as_asked(made, alone, convert_to_numpy, convert_to_tensor)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Documents by falling score: [{"corpus_id": 3, "score": 0.9}, …], with "text" where `return_documents`.

        `options` are those of `predict`. Raises BertfuseError for a model with several labels.
        """
        if isinstance(documents, str):
            raise BertfuseError("documents is a single string: give a list of texts")
        documents = list(documents)
        scores = self.predict([(query, document) for document in documents], **options)
        if np.ndim(scores) > 1:
            raise BertfuseError(f"{self.folder}: has {scores.shape[1]} labels; a ranking needs one score, use predict")
        order = np.argsort(-np.asarray(scores, np.float32), kind="stable")[:top_k]
        rows = [{"corpus_id": int(index), "score": scores[index]} for index in order]
        return [row | {"text": documents[row["corpus_id"]]} for row in rows] if return_documents else rows


class MaxSimReranker(Reranker, MultiVectorEncoder):
    """Late interaction in place of a cross-encoder: the score of a pair is the MaxSim of its texts' vectors of tokens.

    It is a MultiVectorEncoder as well; arguments as that and Reranker take them.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        activation_fn: Activation | None = None,
        max_length: int | None = None,
        **options: Any,
    ) -> None:
        MultiVectorEncoder.__init__(self, folder, **({"max_seq_length": max_length} | options))
        self.activation_fn = activation_fn

    def predict(
        self,
        sentences: tuple[str, str] | Iterable[Sequence[str]],
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
    ) -> Any:
        """As Reranker.predict, without softmax; each text is encoded once, however many pairs it is in."""
        if apply_softmax:
            raise BertfuseError(f"{self.folder}: has one score for a pair, so no softmax")
        pairs, alone = _pairs(sentences)
        limits = {"batch_size": batch_size, "show_progress_bar": show_progress_bar, "device": device}
        queries, documents = (list(dict.fromkeys(texts)) for texts in zip(*pairs, strict=True)) if pairs else ([], [])
        of_query = dict(zip(queries, self.encode_query(queries, **limits), strict=True))
        of_document = dict(zip(documents, self.encode_document(documents, **limits), strict=True))
        made = np.empty(len(pairs), np.float32)
        for query, vectors in of_query.items():
            these = [row for row, pair in enumerate(pairs) if pair[0] == query]
            made[these] = self.similarity([vectors], [of_document[pairs[row][1]] for row in these])[0]
        activation = activation_fn or self.activation_fn
        if activation is not None:
            made = applied(activation, made[:, None])[:, 0]
        return _as_asked(made, alone, convert_to_numpy, convert_to_tensor)


def _as_asked(scores: np.ndarray, alone: bool, convert_to_numpy: bool, convert_to_tensor: bool) -> Any:
    if convert_to_tensor:
        return as_tensor(scores)[0] if alone else as_tensor(scores)
    if alone:
        return scores[0]
    return scores if convert_to_numpy else list(scores)


def _pairs(sentences: Any) -> tuple[list[tuple[str, str]], bool]:
    """The pairs, and whether it was one alone. Raises BertfuseError for what is none."""
    sentences = sentences if isinstance(sentences, Sequence) else list(sentences)
    alone = len(sentences) == 2 and all(isinstance(text, str) for text in sentences)
    given: Any = [sentences] if alone else sentences
    for index, pair in enumerate(given):
        if isinstance(pair, str) or len(pair) != 2:
            raise BertfuseError(f"pair {index} is not a pair of texts: give (query, text)")
    return [tuple(pair) for pair in given], alone
