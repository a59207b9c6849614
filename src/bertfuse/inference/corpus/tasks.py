"""What is computed of each row: vectors, scores of pairs, labels; as columns of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.sentence_modules import SENTENCE, TOKENS

from ..activations import labels_of, of_classifier, of_reranker
from ..classifier import Classifier
from ..encoder import Encoder
from ..model import Batch, Text, TextModel
from ..multi_vector_encoder import DOCUMENT, QUERY, MultiVectorEncoder
from ..pooling import normalized
from ..reranker import MaxSimReranker, Reranker
from ..routed import RoutedEncoder
from ..sparse_encoder import SparseEncoder
from ..vectors import quantized

_MODEL_FILES = ("*.onnx", "onnx/*.onnx", "*.safetensors", "*.json", "*/config.json")


class Task(Protocol):
    """A model and what it makes of texts."""

    model: TextModel
    outputs: Sequence[str]
    labels: list[str]  # what the indices in a column "label" stand for

    def text(self, row: tuple[str, ...]) -> Text: ...

    def columns(self, batch: Batch) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class Wanted:
    """What a command asks for; the same wish in every process.

    Args:
        command: "embed", "rerank" or "classify".
        model: the model's folder.
        options: TextModel's, without the device.
        query: rerank: the first text of every pair; None: it is in the rows.
        prompt, prompt_name, normalize, truncate_dim, precision: embed: as Encoder.encode takes them.
        ranges: embed: of "int8" and "uint8" the least and the largest numbers of each column, from `calibrated`.
    """

    command: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    query: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    normalize: bool = False
    truncate_dim: int | None = None
    precision: str = "float32"
    ranges: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def settings(self) -> dict[str, Any]:
        """What results depend on, to be compared with an earlier run's."""
        speed = ("max_batch_tokens", "library", "tuning")
        kept = {name: value for name, value in self.options.items() if name not in speed and value is not None}
        place = Path(self.model)
        if not place.exists():
            return asdict(self) | {"options": kept}
        found = [place] if place.is_file() else sorted({file for kind in _MODEL_FILES for file in place.glob(kind)})
        files = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in found]
        return asdict(self) | {"model": str(place.resolve()), "options": kept, "model_files": files}

    def load(self, device: str | None, threads: int | None = None) -> Task:
        """The task with its model on `device`, which computes with that many threads on a CPU. Raises BertfuseError."""
        made: Any = {"embed": _embed, "rerank": Rerank, "classify": Classify}[self.command]
        return made(self, {"device": device, "threads": threads} | self.options)


def _embed(wanted: Wanted, options: dict[str, Any]) -> Task:
    model = Encoder(wanted.model, **options)
    if isinstance(model, RoutedEncoder):
        raise BertfuseError(f"{wanted.model}: name the route (--route): {', '.join(model.routes)}")
    if isinstance(model, MultiVectorEncoder):
        return EmbedTokens(wanted, model)
    return EmbedWords(wanted, model) if isinstance(model, SparseEncoder) else Embed(wanted, model)


class EmbedTokens:
    """A vector for each token: of each row [tokens, size]. With the prompt "query" they are queries, else documents."""

    def __init__(self, wanted: Wanted, model: MultiVectorEncoder) -> None:
        if wanted.precision not in ("float32", "binary", "ubinary"):
            raise BertfuseError(f"{wanted.model}: vectors of tokens are float32, binary or ubinary here")
        self._task = QUERY if wanted.prompt_name == QUERY else DOCUMENT
        name = wanted.prompt_name or (DOCUMENT if DOCUMENT in model.prompts else None)
        self._before = model.prompt_text(None if name not in model.prompts else name, wanted.prompt)
        self.model, self.labels, self.outputs = _WithEncodings(model.reader(self._task)), [], [TOKENS]
        self._wanted = wanted

    def text(self, row: tuple[str, ...]) -> Text:
        return self._before + row[0]

    def columns(self, batch: Batch) -> dict[str, np.ndarray]:
        rows = self.model.encoder.rows(batch, self._task, self._wanted.truncate_dim)
        made = np.empty(len(rows), object)
        for row, vectors in enumerate(rows):
            vectors = normalized(vectors) if self._wanted.normalize else vectors
            made[row] = quantized(vectors, self._wanted.precision)
        return {"embeddings": made}


class _WithEncodings:
    """An encoder whose batches hold the tokens' ids, by which some have no vector."""

    def __init__(self, encoder: MultiVectorEncoder) -> None:
        self.encoder = encoder

    def run(self, texts: Any, outputs: Sequence[str]) -> Any:
        return self.encoder.run(texts, outputs, encodings=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)


class EmbedWords:
    """Weights of words: of each row those that are not 0, or the `truncate_dim` largest."""

    def __init__(self, wanted: Wanted, model: SparseEncoder) -> None:
        if wanted.normalize or wanted.precision != "float32":
            raise BertfuseError(f"{wanted.model}: gives weights of words, which are float32 and not normalized")
        self.model, self.labels, self.outputs = model, [], [SENTENCE]
        self._before, self._most = model.prompt_text(wanted.prompt_name, wanted.prompt), wanted.truncate_dim

    def text(self, row: tuple[str, ...]) -> Text:
        return self._before + row[0]

    def columns(self, batch: Batch) -> dict[str, np.ndarray]:
        rows = self.model.words(batch, self._most)
        made = {name: np.empty(len(rows), object) for name in ("indices", "values")}
        for row, (indices, values) in enumerate(rows):
            made["indices"][row], made["values"][row] = indices, values
        return made


class Embed:
    def __init__(self, wanted: Wanted, model: Encoder) -> None:
        self.model = model
        self.labels: list[str] = []
        self._wanted = wanted
        if wanted.precision in ("int8", "uint8") and wanted.ranges is None:
            raise BertfuseError(f"precision {wanted.precision} needs ranges: see calibrated")
        self._ranges = None if wanted.ranges is None else np.array(wanted.ranges, np.float32)
        self._before = self.model.prompt_text(wanted.prompt_name, wanted.prompt)
        self._skipped = self.model.left_out(self._before)
        self.outputs = [self.model.output_for(self._skipped)]

    def text(self, row: tuple[str, ...]) -> Text:
        return self._before + row[0]

    def columns(self, batch: Batch) -> dict[str, np.ndarray]:
        wanted = self._wanted
        vectors = self.model.vectors(batch, wanted.normalize, wanted.truncate_dim, self._skipped)
        vectors = np.asarray(vectors, np.float32)
        if self._ranges is not None and self._ranges.shape[1] != vectors.shape[1]:
            raise BertfuseError(f"ranges of {self._ranges.shape[1]} columns do not fit vectors of {vectors.shape[1]}")
        return {"embedding": quantized(vectors, wanted.precision, self._ranges)}


class Rerank:
    def __init__(self, wanted: Wanted, options: dict[str, Any]) -> None:
        self.model = Reranker(wanted.model, **options)
        if isinstance(self.model, MaxSimReranker):
            raise BertfuseError(f"{wanted.model}: has vectors of tokens: embed them, and rank with bertfuse.Reranker")
        self.outputs, self.labels = ["logits"], []
        self._query = wanted.query

    def text(self, row: tuple[str, ...]) -> Text:
        return (self._query, row[0]) if self._query is not None else (row[0], row[1])

    def columns(self, batch: Batch) -> dict[str, np.ndarray]:
        logits = batch.outputs["logits"].astype(np.float32)
        scores = of_reranker(self.model.folder, self.model.config, logits.shape[1])(logits)
        return {"score": scores[:, 0]} if scores.shape[1] == 1 else {"scores": scores}


class Classify:
    def __init__(self, wanted: Wanted, options: dict[str, Any]) -> None:
        self.model = Classifier(wanted.model, **options)
        self.outputs = ["logits"]
        count = next(value.shape[-1] for value in self.model.session.get_outputs() if value.name == "logits")
        named = self.model.config.get("id2label") or {}
        self.labels = labels_of(self.model.config, count if isinstance(count, int) else len(named))

    def text(self, row: tuple[str, ...]) -> Text:
        return (row[0], row[1]) if len(row) > 1 else row[0]

    def columns(self, batch: Batch) -> dict[str, np.ndarray]:
        logits = batch.outputs["logits"].astype(np.float32)
        if logits.shape[1] != len(self.labels):
            raise BertfuseError(f"{self.model.folder}: {logits.shape[1]} scores but {len(self.labels)} labels")
        scores = of_classifier(self.model.config, logits.shape[1])(logits)
        best = scores.argmax(axis=1)
        return {"label": best.astype(np.int32), "score": scores.max(axis=1), "scores": scores}
