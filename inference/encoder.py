"""Sentence vectors, with the arguments and results of sentence-transformers' SentenceTransformer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime.folder import read_json

from .model import Batch, TextModel
from .pooling import Pooling, modules_after, normalized


class Encoder(TextModel):
    """A sentence encoder's folder; arguments as TextModel's.

    `prompts` and `default_prompt_name` are those of config_sentence_transformers.json.
    """

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(folder, **options)
        self.prompts: dict[str, str] = {}
        found = read_json(self.folder / "config_sentence_transformers.json")
        self.prompts = {str(k): str(v) for k, v in (found.get("prompts") or {}).items()}
        self.default_prompt_name: str | None = found.get("default_prompt_name")
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
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """float32 vectors [len(sentences), size], in the order given; [size] of a single string.

        Args:
            sentences: texts; texts longer than `max_seq_length` tokens are cut.
            prompt_name: a key of `prompts`, whose text is put before each sentence; None takes the default one.
            prompt: that text itself.
            batch_size: at most so many texts at once; None: as many as `max_batch_tokens` allows.
            show_progress_bar: on stderr.
            convert_to_numpy: False gives a list of vectors.
            normalize_embeddings: at length 1, also where the model itself does not do so.
            truncate_dim: only the first so many numbers of each vector.
        """
        alone = isinstance(sentences, str)
        texts: list[str] = [sentences] if isinstance(sentences, str) else list(sentences)
        before = self.prompt_text(prompt_name, prompt)
        if before:
            texts = [before + text if isinstance(text, str) else text for text in texts]
        vectors: np.ndarray | None = None
        for batch in self.run(texts, [self.output], batch_size=batch_size, show_progress_bar=bool(show_progress_bar)):
            found = self.vectors(batch, normalize_embeddings, truncate_dim)
            if vectors is None:
                vectors = np.empty((len(texts), found.shape[1]), np.float32)
            vectors[batch.rows] = found
        if vectors is None:
            vectors = np.empty((0, self.dimension or 0), np.float32)[:, :truncate_dim]
        if alone:
            return vectors[0]
        return vectors if convert_to_numpy else list(vectors)

    def vectors(self, batch: Batch, normalize: bool = False, truncate_dim: int | None = None) -> np.ndarray:
        """The batch's vectors [texts, size], from `output`."""
        found = batch.outputs[self.output]
        if self._pooling is not None:
            found = self._pooling(found, batch.mask)
        found = found[:, :truncate_dim]
        return normalized(found.astype(np.float32, copy=False)) if normalize else found

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> np.ndarray | list[np.ndarray]:
        """`encode` with the prompt named "query", where there is one."""
        return self._with_prompt(("query",), sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> np.ndarray | list[np.ndarray]:
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
