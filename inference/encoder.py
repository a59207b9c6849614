"""Sentence vectors, with the arguments and results of sentence-transformers' SentenceTransformer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime.folder import read_json

from .model import Batch, TextModel
from .pooling import Pooling, modules_after, normalized
from .vectors import SIMILARITIES, as_tensor, check_precision, quantized


class Encoder(TextModel):
    """A sentence encoder's folder; arguments as TextModel's.

    `prompts`, `default_prompt_name` and `similarity_fn_name` are those of config_sentence_transformers.json, where they
    are not given; `truncate_dim` is encode's, where a call gives none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, **options)
        found = read_json(self.folder / "config_sentence_transformers.json")
        self.prompts = {str(k): str(v) for k, v in (prompts or found.get("prompts") or {}).items()}
        self.default_prompt_name: str | None = default_prompt_name or found.get("default_prompt_name")
        self.similarity_fn_name = str(similarity_fn_name or found.get("similarity_fn_name") or "cosine")
        if self.similarity_fn_name not in SIMILARITIES:
            raise BertfuseError(
                f"similarity_fn_name {self.similarity_fn_name!r} is unknown: choose from {', '.join(SIMILARITIES)}"
            )
        self.truncate_dim = truncate_dim
        self._pooling: Pooling | None = None
        if "sentence_embedding" in self.outputs:
            self.output = "sentence_embedding"
        else:
            named = "token_embeddings" if "token_embeddings" in self.outputs else "last_hidden_state"
            self.output = self.require(named, "a sentence vector")
            self._pooling = Pooling(self.folder)
        self._prompt_is_pooled = all(
            read_json(path / "config.json").get("include_prompt", True) is not False
            for kind, path in modules_after(self.folder)
            if kind == "Pooling"
        )

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """float32 vectors [len(sentences), size], in the order given; [size] of a single string.

        Args:
            sentences: texts, in a list, an array or anything else that can be gone through once; texts longer than
                `max_seq_length` tokens are cut.
            prompt_name: a key of `prompts`, whose text is put before each sentence; None takes the default one.
            prompt: that text itself.
            batch_size: the most texts in one batch; None: as many as `max_batch_tokens` allows.
            show_progress_bar: on stderr.
            output_value: "token_embeddings" gives a list of float32 arrays [tokens, size], the model's rows of all real
                tokens before pooling.
            precision: "int8", "uint8", "binary" or "ubinary": see `quantized`.
            convert_to_numpy: False gives a list of vectors.
            convert_to_tensor: a tensor of PyTorch on the CPU.
            device: that of the encoder, if any; it is chosen when the encoder is made.
            normalize_embeddings: at length 1, also where the model itself does not do so.
            truncate_dim: keep only this many leading numbers of each vector.

        Raises:
            BertfuseError: an argument is none of these, a sentence is no string, or the model has no such output.
        """
        self.check_device(device)
        precision = check_precision(precision)
        alone = isinstance(sentences, str)
        texts: list[str] = [sentences] if isinstance(sentences, str) else list(sentences)
        before = self.prompt_text(prompt_name, prompt)
        if before:
            texts = [before + text if isinstance(text, str) else text for text in texts]
        limits = {"batch_size": batch_size, "show_progress_bar": bool(show_progress_bar)}
        if output_value == "token_embeddings":
            rows = self._token_embeddings(texts, limits)
            rows = [as_tensor(row) for row in rows] if convert_to_tensor else rows
            return rows[0] if alone else rows
        if output_value != "sentence_embedding":
            raise BertfuseError(f"output_value {output_value!r}: give 'sentence_embedding' or 'token_embeddings'")
        truncate_dim = truncate_dim if truncate_dim is not None else self.truncate_dim
        vectors: np.ndarray | None = None
        for batch in self.run(texts, [self.output], **limits):
            found = self.vectors(batch, normalize_embeddings, truncate_dim)
            if vectors is None:
                vectors = np.empty((len(texts), found.shape[1]), np.float32)
            vectors[batch.rows] = found
        if vectors is None:
            vectors = np.empty((0, self.dimension or 0), np.float32)[:, :truncate_dim]
        vectors = quantized(vectors, precision)
        if convert_to_tensor:
            return as_tensor(vectors[0] if alone else vectors)
        if alone:
            return vectors[0]
        return vectors if convert_to_numpy else list(vectors)

    def _token_embeddings(self, texts: list[str], limits: dict[str, Any]) -> list[np.ndarray]:
        named = "token_embeddings" if "token_embeddings" in self.outputs else "last_hidden_state"
        output = self.require(named, "token_embeddings")
        made: list[Any] = [None] * len(texts)
        for batch in self.run(texts, [output], **limits):
            for row, length, found in zip(batch.rows, batch.lengths, batch.outputs[output], strict=True):
                made[row] = found[:length].astype(np.float32)
        return made

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """[N, M] of vectors [N, size] and [M, size]: how alike they are, by `similarity_fn_name`."""
        pair = (np.atleast_2d(np.asarray(given, np.float32)) for given in (embeddings1, embeddings2))
        return SIMILARITIES[self.similarity_fn_name](*pair)

    def get_sentence_embedding_dimension(self) -> int | None:
        """How many numbers a vector of `encode` has; None where the file does not say."""
        size = self.dimension
        return size if size is None or self.truncate_dim is None else min(size, self.truncate_dim)

    def vectors(self, batch: Batch, normalize: bool = False, truncate_dim: int | None = None) -> np.ndarray:
        """The batch's vectors [texts, size], from `output`."""
        found = batch.outputs[self.output]
        if self._pooling is not None:
            found = self._pooling(found, batch.mask)
        found = found[:, :truncate_dim]
        return normalized(found.astype(np.float32, copy=False)) if normalize else found

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt named "query", where there is one."""
        return self._with_prompt(("query",), sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt named "document", "passage" or "corpus", where there is one."""
        return self._with_prompt(("document", "passage", "corpus"), sentences, options)

    @property
    def dimension(self) -> int | None:
        """How many numbers a vector has; None where the file does not say."""
        size = next(value for value in self.session.get_outputs() if value.name == self.output).shape[-1]
        return size * (len(self._pooling.modes) if self._pooling else 1) if isinstance(size, int) else None

    def _with_prompt(self, names: Sequence[str], sentences: Any, options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = next((name for name in names if name in self.prompts), None)
        return self.encode(sentences, **options)

    def prompt_text(self, name: str | None, prompt: str | None) -> str:
        """What is put before a text: `prompt`, else that of the name, else the default one."""
        if prompt is None:
            name = name if name is not None else self.default_prompt_name
            if name is not None and name not in self.prompts:
                known = ", ".join(self.prompts) or "it has none"
                raise BertfuseError(f"{self.folder}: no prompt is named {name!r}: {known}")
            prompt = self.prompts[name] if name is not None else ""
        if prompt and not self._prompt_is_pooled:
            raise BertfuseError(
                f"{self.folder}: its pooling leaves out the prompt's tokens (include_prompt), which this cannot do"
            )
        return prompt
