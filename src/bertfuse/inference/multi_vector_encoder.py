"""A vector for each token, with the arguments and results of sentence-transformers' MultiVectorEncoder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.late_texts import DOCUMENT, QUERY, know_prefixes, read_texts, skipped_ids
from bertfuse.model_folder.multi_vector import read_multi_vector
from bertfuse.model_folder.sentence_modules import TOKENS

from .batches import Tokens
from .maxsim import maxsim
from .model import Batch
from .pooling import normalized
from .prompts import PromptedModel
from .vectors import as_tensor, check_precision, quantized


class MultiVectorEncoder(PromptedModel):
    """A folder of late interaction; it is what Encoder gives of such a folder. Arguments as Encoder's."""

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(folder, **options)
        self.require(TOKENS, "a vector for each token")
        self.late = read_multi_vector(self.folder)
        self.similarity_fn_name = self.settings.similarity_fn_name
        for prefix, key in zip(self.late.prefixes, (QUERY, DOCUMENT), strict=False):
            before = self.prompts.get(key, "")
            self.prompts[key] = prefix + before.removeprefix(prefix)
        know_prefixes(self.tokenizer, self.late.prefixes)
        tasks = (QUERY, DOCUMENT)
        self._skipped = {task: skipped_ids(self.folder, self.late, self.tokenizer, task) for task in tasks}
        said = self.session.get_modelmeta().custom_metadata_map.get("bertfuse.padding", "keep")
        self._packed = self.ragged or said != "keep"
        self._unseen = False  # whether filled-up tokens are seen by none
        self._of_task: dict[str | None, MultiVectorEncoder] = {None: self}
        self._of_task |= {QUERY: self._reading(QUERY), DOCUMENT: self._reading(DOCUMENT)}

    def _reading(self, task: str) -> MultiVectorEncoder:
        """This encoder with the tokenizer of texts of that task."""
        reading = read_texts(self.folder, self.late, task, self.max_seq_length)
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.tokenizer, made._max_seq_length, made._unseen = reading.tokenizer, reading.longest, reading.unseen
        return made

    def _tokenized(self, first: int, texts: list[Any], keep: bool, offsets: bool) -> Tokens:
        tokens = super()._tokenized(first, texts, keep, offsets)
        if not self._unseen or tokens.encodings is None:
            return tokens
        seen = np.array([sum(encoding.attention_mask) for encoding in tokens.encodings], np.int64)
        return replace(tokens, seen=seen)

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = False,
        precision: str | None = "float32",
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        device: str | None = None,
        task: str | None = None,
    ) -> Any:
        """For each text float32 [tokens, size], in the order given; of a single string that array.

        `task` is "query" or "document": how texts are cut, filled up, and which words have no vector. `precision` is
        Encoder.encode's, of the numbers of all tokens. The other arguments are those of Encoder.encode.
        """
        self.check_device(device)
        precision = check_precision(precision)
        if task not in self._of_task:
            raise BertfuseError(f"task {task!r}: give 'query', 'document' or None")
        alone = isinstance(sentences, str)
        before = self.prompt_text(prompt_name, prompt)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        texts = [before + text if isinstance(text, str) else text for text in texts]
        made: list[Any] = [None] * len(texts)
        reader = self.reader(task)
        options = {"batch_size": batch_size, "show_progress_bar": bool(show_progress_bar), "encodings": True}
        for batch in reader.run(texts, [TOKENS], **options):
            for row, vectors in zip(batch.rows, reader.rows(batch, task, truncate_dim), strict=True):
                made[row] = normalized(vectors) if normalize_embeddings else vectors
        if precision != "float32" and made:
            ends = np.cumsum([len(vectors) for vectors in made])[:-1]
            made = np.split(quantized(np.concatenate(made), precision), ends)
        made = [as_tensor(vectors) for vectors in made] if convert_to_tensor else made
        return made[0] if alone else made

    def reader(self, task: str | None) -> MultiVectorEncoder:
        """The encoder of texts of that task. Raises BertfuseError where this model cannot read them."""
        found = self._of_task[task]
        if found._unseen and self._packed:
            raise BertfuseError(
                f"{self.path}: queries have vectors of tokens that no other sees, which a model without padding does"
                " not compute; optimize it with --padding keep"
            )
        return found

    def rows(self, batch: Batch, task: str | None = None, truncate_dim: int | None = None) -> list[np.ndarray]:
        """Of each text of a batch that was run with encodings the vectors of its tokens, float32 [tokens, size]."""
        skipped = self._skipped[task or DOCUMENT]
        made = []
        for encoding, length, vectors in zip(batch.encodings, batch.lengths, batch.outputs[TOKENS], strict=True):
            found = vectors[:length, :truncate_dim]
            if len(skipped):
                found = found[~np.isin(np.array(encoding.ids, np.int64), skipped)]
            made.append(np.ascontiguousarray(found, np.float32))
        return made

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` of queries, with the prompt of that name, where there is one."""
        return super().encode_query(sentences, **({"task": QUERY} | options))

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` of documents, with the prompt named "document", "passage" or "corpus", where there is one."""
        return super().encode_document(sentences, **({"task": DOCUMENT} | options))

    def similarity(self, embeddings1: Sequence[np.ndarray], embeddings2: Sequence[np.ndarray]) -> np.ndarray:
        """float32 [N, M] of N queries' and M documents' vectors: MaxSim, or its mean over a query's tokens."""
        return maxsim(embeddings1, embeddings2, mean=self.similarity_fn_name == "meanmaxsim")

    def similarity_pairwise(self, embeddings1: Sequence[np.ndarray], embeddings2: Sequence[np.ndarray]) -> np.ndarray:
        """float32 [N] of the pairs of N queries and N documents."""
        if len(embeddings1) != len(embeddings2):
            raise BertfuseError(f"{len(embeddings1)} queries and {len(embeddings2)} documents are no pairs")
        pairs = zip(embeddings1, embeddings2, strict=True)
        return np.array([self.similarity([a], [b])[0, 0] for a, b in pairs], np.float32)

    @property
    def dimension(self) -> int | None:
        """How many numbers a token's vector has; None where the file does not say."""
        size = next(value.shape[-1] for value in self.session.get_outputs() if value.name == TOKENS)
        return size if isinstance(size, int) else None

    def get_sentence_embedding_dimension(self) -> int | None:
        return self.dimension

    get_embedding_dimension = get_sentence_embedding_dimension
