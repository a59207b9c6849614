"""Texts to token ids and back, in the processes that speak HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.inference.batches import Tokens
from bertfuse.model_folder.files import folder_of
from bertfuse.model_folder.late_texts import Reading, know_prefixes
from bertfuse.model_folder.tokenizer import left_out, open_tokenizer, takes_types

from .checks import RequestError, Text, check_lengths
from .work import Work

# Fewer characters are tokenised where they are: a thread costs more. 2,000 take about 0.1 ms.
INLINE = 2000
SLICE = 64  # texts that a thread tokenises at a time, at most
THREADS = 16  # at most: 100 pairs of 150 words take one of them several times as long as bert-base takes a GPU


@dataclass(frozen=True)
class Tokenised:
    """int32 `lengths` [N] and `ids` [T]; `type_ids` and `seen` as Work has them."""

    lengths: np.ndarray
    ids: np.ndarray
    type_ids: np.ndarray | None = None
    seen: np.ndarray | None = None

    @property
    def total(self) -> int:
        return len(self.ids)

    def work(self, model: int, what: str, left_out: int = 0) -> Work:
        return Work(model, what, self.lengths, self.ids, self.type_ids, left_out, self.seen)

    def part(self, begin: int, end: int) -> Tokenised:
        """The texts from `begin` to before `end`."""
        ends = np.cumsum(self.lengths)
        tokens = slice(int(ends[begin] - self.lengths[begin]), int(ends[end - 1]))
        types = None if self.type_ids is None else self.type_ids[tokens]
        seen = None if self.seen is None else self.seen[begin:end]
        return Tokenised(self.lengths[begin:end], self.ids[tokens], types, seen)


class Tokenizer:
    """The tokenizer of the model file `model`, which cuts texts at `longest` tokens; with `reading` as that does.
    Threads may share it.
    """

    def __init__(self, model: str, longest: int, threads: int | None = None, reading: Reading | None = None) -> None:
        # Its own threads would be one for each core in each process, and cost small requests more than they gain.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.longest, self._folder = longest, folder_of(Path(model))
        self.reading = reading
        self._tokenizer = reading.tokenizer if reading else open_tokenizer(self._folder, longest)
        self._encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        self._typed = takes_types(self._folder)
        self._typed_alone = self._typed and any(self._tokenizer.encode("a").type_ids)
        self._threads = threads or min(THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="tokenise")

    def left_out(self, prompt: str) -> int:
        """How many tokens of a text with that prompt before it pooling leaves out."""
        return left_out(self._folder, self._tokenizer, prompt)

    @cached_property
    def _whole(self) -> Any:
        """The tokenizer without its limit. Most servers never need it, and one of many languages takes 0.2 GB."""
        made = open_tokenizer(self._folder)
        if self.reading is not None:
            know_prefixes(made, self.reading.prefixes)
        made.no_truncation()
        made.no_padding()
        return made

    async def __call__(self, texts: Sequence[Text], truncate: bool, param: str) -> Tokenised:
        """Raises RequestError for a text of too many tokens, unless `truncate`; `param` is the field it is in."""
        sizes = [len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts]
        size = sum(sizes)
        if size <= INLINE:
            return self._tokenised(texts, 0, truncate, param)
        loop = asyncio.get_running_loop()
        slices = [
            loop.run_in_executor(self._pool, self._tokenised, texts[begin:end], begin, truncate, param)
            for begin, end in _slices(sizes, max(INLINE, size // self._threads))
        ]
        parts = await asyncio.gather(*slices)
        if len(parts) == 1:
            return parts[0]
        types = seen = None
        if any(part.type_ids is not None for part in parts):
            given = [np.zeros(part.total, np.uint8) if part.type_ids is None else part.type_ids for part in parts]
            types = np.concatenate(given)
        if self.reading is not None and self.reading.unseen:
            seen = np.concatenate([part.seen for part in parts])
        lengths, ids = (np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "ids"))
        return Tokenised(lengths, ids, types, seen)

    def _tokenised(self, texts: Sequence[Text], first: int, truncate: bool, param: str) -> Tokenised:
        encodings = self._encode(list(texts))
        if not truncate:
            for index, encoding in enumerate(encodings):
                if len(encoding) >= self.longest and encoding.overflowing:
                    check_lengths([len(self._whole.encode(*_parts(texts[index])))], self.longest, param, first + index)
        paired = self._typed_alone or (self._typed and any(not isinstance(text, str) for text in texts))
        made = Tokens.of(encodings, types=paired)
        types = None if made.type_ids is None else made.type_ids.astype(np.uint8)
        seen = None
        if self.reading is not None and self.reading.unseen:
            seen = np.array([sum(encoding.attention_mask) for encoding in encodings], np.int32)
        return Tokenised(made.lengths.astype(np.int32), made.ids.astype(np.int32), types, seen)

    def text(self, ids: Sequence[int], where: str) -> str:
        """The text whose token ids these are, with or without the special tokens around them.

        Raises RequestError where no text is found that has just these ids.
        """
        self.check_ids(ids, where, "input")
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        if text and any(self._whole.encode(text, add_special_tokens=s).ids == list(ids) for s in (False, True)):
            return text
        raise RequestError(f"{where} is not what the model's tokenizer makes of a text: send the text.", param="input")

    def check_ids(self, ids: Sequence[int], where: str, param: str) -> None:
        size = self._tokenizer.get_vocab_size()
        for token in ids:
            if not 0 <= token < size:
                raise RequestError(f"{where} has the token id {token}: the model's vocabulary has {size}.", param=param)

    def pieces(self, text: str, special: bool) -> list[dict[str, Any]]:
        """The text's tokens as text-embeddings-inference's /tokenize gives them; start and stop count characters."""
        encoding = self._whole.encode(text, add_special_tokens=special)
        made = []
        columns = (encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets)
        for token, word, is_special, (start, stop) in zip(*columns, strict=True):
            span = {"start": None, "stop": None} if is_special else {"start": start, "stop": stop}
            shown = word if is_special else text[start:stop]
            made.append({"id": token, "text": shown, "special": bool(is_special), **span})
        return made

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


def _slices(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Begin and end of texts that are tokenised together: SLICE of them, or less, where that is `most` characters."""
    begin = taken = 0
    for at, size in enumerate(sizes):
        if at > begin and (taken + size > most or at - begin == SLICE):
            yield begin, at
            begin, taken = at, 0
        taken += size
    yield begin, len(sizes)


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text
