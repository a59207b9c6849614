"""What `bertfuse run` says of texts, by the task of the model: one plain dictionary per text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import read_json

from .activations import labels_of, of_classifier
from .classifier import Classifier
from .encoder import Encoder
from .mask_filler import MaskFiller
from .model import TextModel
from .multi_vector_encoder import MultiVectorEncoder
from .question_answerer import QuestionAnswerer
from .reranker import Reranker
from .sparse_encoder import SparseEncoder
from .tagger import Tagger

TOP = 8  # words of a text that are named
COSINES = 8  # of so few texts each with each is said


def task_of(model: TextModel) -> str:
    """The model's task: what the export wrote into the file, else what its outputs and config.json tell."""
    if model.task:
        return model.task
    names = set(model.outputs)
    if names & {"sentence_embedding", "last_hidden_state", "token_embeddings"}:
        return "sentence-similarity"
    if "start_logits" in names:
        return "question-answering"
    named = model.config.get("architectures") or [""]
    for head, task in (("TokenClassification", "token-classification"), ("MaskedLM", "fill-mask")):
        if str(named[0]).endswith(head):
            return task
    return "text-classification"


def answers(
    folder: Path, texts: Sequence[str], pairs: Sequence[str] | None, **options: Any
) -> tuple[str, list[dict[str, Any]], dict[str, np.ndarray]]:
    """The task, an answer for each text (with the second text of `pairs`), and what may be written as arrays.

    `options` are TextModel's. Raises BertfuseError where the task takes no pairs, or needs them.
    """
    if pairs and len(pairs) != len(texts):
        raise BertfuseError(f"{len(texts)} texts but {len(pairs)} second texts: give as many of each")
    model = TextModel(folder, **options)
    task = task_of(model)
    if pairs and task in (
        "sentence-similarity",
        "sparse-encoding",
        "feature-extraction",
        "token-classification",
        "fill-mask",
    ):
        raise BertfuseError(f"a model for {task} takes one text at a time: leave --text-pair out")
    if task == "question-answering" and not pairs:
        raise BertfuseError("question answering needs the context of each question: give --text-pair")
    made = {
        "sentence-similarity": _vectors,
        "feature-extraction": _vectors,
        "sparse-encoding": _words,
        "multi-vector-encoding": _tokens,
        "text-classification": _labels,
        "token-classification": _entities,
        "fill-mask": _masks,
        "question-answering": _spans,
    }.get(task)
    if made is None:
        raise BertfuseError(f"{folder}: task {task!r} is unknown; give arrays (--input file.npz)")
    return (task, *made(folder, list(texts), list(pairs or []), options | {"session": model.session}))


Answers = tuple[list[dict[str, Any]], dict[str, np.ndarray]]


def _vectors(folder: Path, texts: list[str], pairs: list[str], options: dict[str, Any]) -> Answers:
    vectors = np.asarray(Encoder(folder, **options).encode(texts))
    rows: list[dict[str, Any]] = [
        {"text": text, "embedding": vector.tolist()} for text, vector in zip(texts, vectors, strict=True)
    ]
    if 1 < len(texts) <= COSINES:
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        for row, cosines in zip(rows, unit @ unit.T, strict=True):
            row["cosine_similarity"] = [round(float(value), 4) for value in cosines]
    return rows, {"sentence_embedding": vectors}


def _words(folder: Path, texts: list[str], pairs: list[str], options: dict[str, Any]) -> Answers:
    encoder = SparseEncoder(folder, **options)
    found = encoder.encode(texts)
    rows = [
        {"text": text, "indices": indices.tolist(), "values": values.tolist(), "words": dict(words)}
        for text, (indices, values), words in zip(texts, found, encoder.decode(found, TOP), strict=True)
    ]
    return rows, {}


def _tokens(folder: Path, texts: list[str], pairs: list[str], options: dict[str, Any]) -> Answers:
    encoder = MultiVectorEncoder(folder, **options)
    if pairs:
        queries, documents = encoder.encode_query(texts), encoder.encode_document(pairs)
        scores = encoder.similarity_pairwise(queries, documents)
        rows = zip(texts, pairs, scores.tolist(), strict=True)
        return [{"text": a, "text_pair": b, "score": score} for a, b, score in rows], {"scores": scores}
    found = encoder.encode_document(texts)
    said = [
        {"text": text, "tokens": len(rows), "embedding": rows.tolist()} for text, rows in zip(texts, found, strict=True)
    ]
    return said, {f"token_embeddings_{row}": vectors for row, vectors in enumerate(found)}


def _labels(folder: Path, texts: list[str], pairs: list[str], options: dict[str, Any]) -> Answers:
    classifier = Classifier(folder, **options)
    kinds = read_json(classifier.folder / "config_sentence_transformers.json")
    single = len(classifier.config.get("id2label") or {}) == 1 or classifier.config.get("num_labels") == 1
    given: list[Any] = list(zip(texts, pairs, strict=True)) if pairs else texts
    if pairs and (single or kinds.get("model_type") == "CrossEncoder"):
        scores = np.asarray(Reranker(folder, **options).predict(given))
        rows = [
            {"text": a, "text_pair": b, "score": score.tolist()} for (a, b), score in zip(given, scores, strict=True)
        ]
        return rows, {"scores": scores}
    every: list[Any] = [None] * len(texts)
    for row, found in classifier.scores(given):
        every[row] = found
    scores = np.array(every, np.float32).reshape(len(texts), -1)
    labels = labels_of(classifier.config, scores.shape[1])
    several = scores.shape[1] > 1 and of_classifier(classifier.config, scores.shape[1]).__name__ == "sigmoid"
    rows = []
    for index, found in enumerate(scores):
        row: dict[str, Any] = {"text": texts[index]} | ({"text_pair": pairs[index]} if pairs else {})
        if several:  # each label is a question of its own
            row["labels"] = {label: float(score) for label, score in zip(labels, found, strict=True)}
        else:
            row |= {"label": labels[int(found.argmax())], "score": float(found.max())}
        rows.append(row)
    return rows, {"scores": scores}


def _entities(folder: Path, texts: list[str], pairs: list[str], options: dict[str, Any]) -> Answers:
    found = Tagger(folder, **options)(texts)
    return [{"text": text, "entities": entities} for text, entities in zip(texts, found, strict=True)], {}


def _masks(folder: Path, texts: list[str], pairs: list[str], options: dict[str, Any]) -> Answers:
    found = MaskFiller(folder, **options)(texts)
    return [{"text": text, "masks": masks} for text, masks in zip(texts, found, strict=True)], {}


def _spans(folder: Path, texts: list[str], pairs: list[str], options: dict[str, Any]) -> Answers:
    found = QuestionAnswerer(folder, **options)(texts, pairs)
    return [{"text": text, **answer} for text, answer in zip(texts, found, strict=True)], {}
