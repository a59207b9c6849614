"""A vector for each token, with the arguments and results of sentence-transformers' MultiVectorEncoder."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import longest_sequence
from bertfuse.model_folder.multi_vector import read_multi_vector
from bertfuse.model_folder.sentence_modules import TOKENS
from bertfuse.model_folder.tokenizer import cut, open_tokenizer, special_token

from .batches import Tokens
from .model import Batch
from .pooling import normalized
from .prompts import PromptedModel
from .vectors import as_tensor, check_precision, quantized

QUERY, DOCUMENT = "query", "document"
_ROWS = 1 << 16  # of documents, which are scored at once


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
        self._know_prefixes(self.tokenizer)
        found = (self.tokenizer.token_to_id(word) for word in self.late.skipped)
        unknown = self.tokenizer.token_to_id(special_token(self.folder, "unk_token") or "[UNK]")
        self._skipped = np.array(sorted({word for word in found if word is not None and word != unknown}), np.int64)
        said = self.session.get_modelmeta().custom_metadata_map.get("bertfuse.padding", "keep")
        self._packed = self.ragged or said != "keep"
        self._unseen = False  # whether filled-up tokens are seen by none
        self._of_task: dict[str | None, MultiVectorEncoder] = {None: self}
        self._of_task |= {QUERY: self._reading(QUERY), DOCUMENT: self._reading(DOCUMENT)}

    def _know_prefixes(self, tokenizer: Any) -> None:
        from tokenizers import AddedToken

        known = [AddedToken(p, normalized=False, special=True) for p in self.late.prefixes if tokenizer.token_to_id(p)]
        if known:
            tokenizer.add_special_tokens(known)

    def _reading(self, task: str) -> MultiVectorEncoder:
        """This encoder with the tokenizer of texts of that task."""
        late = self.late
        expansion = late.expansion if task == QUERY else None
        asked = late.query_length if task == QUERY else late.document_length
        if expansion is not None and expansion.fixed:
            asked = expansion.length
        longest = min(asked or self.max_seq_length, longest_sequence(self.config) or 1 << 30)
        made = copy.copy(self)
        made.tokenizer = open_tokenizer(self.folder, longest)
        self._know_prefixes(made.tokenizer)
        made._max_seq_length = longest
        cut(made.tokenizer, self.folder, longest)
        if expansion is not None:
            names = (expansion.token, special_token(self.folder, "mask_token"), special_token(self.folder, "eos_token"))
            token = next((name for name in names if name is not None), "")
            filler = made.tokenizer.token_to_id(token)
            if filler is None:
                raise BertfuseError(f"{self.folder}: queries are filled up with {token!r}, which its tokenizer lacks")
            made.tokenizer.enable_padding(length=expansion.length, pad_id=filler, pad_token=token)
            made._unseen = not expansion.attend
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
        skips = len(self._skipped) and (task or DOCUMENT) in self.late.skipped_in
        made = []
        for encoding, length, vectors in zip(batch.encodings, batch.lengths, batch.outputs[TOKENS], strict=True):
            found = vectors[:length, :truncate_dim]
            if skips:
                found = found[~np.isin(np.array(encoding.ids, np.int64), self._skipped)]
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


def maxsim(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray], mean: bool = False) -> np.ndarray:
    """float32 [N, M]: for each token of a query the largest product with a document's tokens, and of these the sum.

    A document without tokens scores 0.
    """
    queries = [np.asarray(one, np.float32) for one in queries]
    documents = [np.asarray(one, np.float32) for one in documents]
    made = np.zeros((len(queries), len(documents)), np.float32)
    lengths = np.array([len(one) for one in documents], np.int64)
    there = np.flatnonzero(lengths)
    first = 0
    while first < len(there):
        held = np.cumsum(lengths[there[first:]])
        these = there[first : first + max(1, int(np.searchsorted(held, _ROWS, side="right")))]
        rows = np.concatenate([documents[at] for at in these])
        starts = np.cumsum(lengths[these]) - lengths[these]
        for row, query in enumerate(queries):
            if len(query):
                best = np.maximum.reduceat(query @ rows.T, starts, axis=1)
                made[row, these] = best.mean(axis=0) if mean else best.sum(axis=0)
        first += len(these)
    return made
