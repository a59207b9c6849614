"""Entities in texts, as transformers' pipeline("token-classification") finds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.tokenizer import cut, special_token

from .activations import labels_of, softmax
from .batches import Tokens
from .model import Text, TextModel

# How the scores of a word's tokens [tokens, labels] become the word's; of "none" and "simple" each token is by itself.
_OF_WORD: dict[str, Callable[[np.ndarray], np.ndarray] | None] = {
    "none": None,
    "simple": None,
    "first": lambda scores: scores[0],
    "average": lambda scores: scores.mean(axis=0),
    "max": lambda scores: scores[scores.max(axis=1).argmax()],
}


class Tagger(TextModel):
    """A tagger's folder. Texts longer than the model are read whole, part by part.

    `aggregation_strategy` and `ignore_labels` are those of calls that give none. `stride` is how many tokens a part has
    in common with the one before, as the pipeline's; None: a quarter of a part. Other arguments as TextModel's.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        aggregation_strategy: str = "simple",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, **options)
        self.require("logits", "a tagger")
        self.stride = stride
        self.aggregation_strategy, self.ignore_labels = _strategy(aggregation_strategy), tuple(ignore_labels)
        self.unknown_token = special_token(self.folder, "unk_token") or "[UNK]"
        if self.task not in ("", "token-classification"):
            raise BertfuseError(f"{self.path}: was exported for {self.task}, not for token-classification")

    def __call__(
        self,
        inputs: str | Iterable[str],
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        aggregation_strategy: str | None = None,
        ignore_labels: Sequence[str] | None = None,
    ) -> list[Any]:
        """[{"entity_group": "PER", "score": 0.99, "word": …, "start": 0, "end": 5}, …] of each text; of a single text
        that list alone.

        Args:
            aggregation_strategy: "simple": neighbouring tokens of one type are one entity, unless its label begins with
                B-. "first", "average", "max": the same of whole words, labelled by their first token, their mean scores
                or their surest token. "none": {"entity", "score", "index", "word", "start", "end"} of each token.
            ignore_labels: entities and tokens with these labels are left out.
        """
        strategy = self.aggregation_strategy if aggregation_strategy is None else _strategy(aggregation_strategy)
        ignored = self.ignore_labels if ignore_labels is None else ignore_labels
        alone = isinstance(inputs, str)
        texts: list[str] = [inputs] if isinstance(inputs, str) else list(inputs)
        made: list[list[dict[str, Any]]] = [[] for _ in texts]
        parts = np.zeros(len(texts), np.int64)
        for batch in self.run(
            texts, ["logits"], batch_size=batch_size, show_progress_bar=show_progress_bar, offsets=True
        ):
            scores = softmax(batch.outputs["logits"].astype(np.float32))
            for row, (part, encoding), found in zip(batch.rows, batch.encodings, scores, strict=True):
                tokens = self._tokens(texts[row], encoding, found, part * (self._room - self.stride))
                found = self._entities(tokens, strategy)
                made[row] += [entity for entity in found if _label(entity) not in ignored]
                parts[row] += 1
        for row in np.flatnonzero(parts > 1):
            made[row] = _without_overlaps(made[row])
        return made[0] if alone else made

    @property
    def stride(self) -> int:
        """Tokens that a part of a long text has in common with the one before it."""
        return self._stride

    @stride.setter
    def stride(self, stride: int | None) -> None:
        room = self._room
        stride = room // 4 if stride is None else stride
        if not 0 <= stride < room:
            raise BertfuseError(f"{self.path}: stride {stride}: parts of {room} tokens have 0 to {room - 1} in common")
        self._stride = stride
        cut(self.tokenizer, self.folder, self.max_seq_length, stride)

    @property
    def _room(self) -> int:
        """Tokens of a part, without special ones."""
        return self.max_seq_length - self.tokenizer.num_special_tokens_to_add(is_pair=False)

    def _tokenized(self, first: int, texts: list[Text], keep: bool, offsets: bool) -> Tokens:
        """The texts in parts that the model takes; their encodings are pairs, with the part's number in its text."""
        whole = super()._tokenized(first, texts, True, offsets)
        assert whole.encodings is not None
        parts = [[encoding, *encoding.overflowing] for encoding in whole.encodings]
        numbered = [pair for each in parts for pair in enumerate(each)]
        if len(numbered) > len(parts):
            whole = Tokens.of([part for _, part in numbered], first, whole.type_ids is not None)
            whole = replace(whole, owners=np.repeat(np.arange(len(parts)), list(map(len, parts))))
        return replace(whole, encodings=numbered)

    def _tokens(self, text: str, encoding: Any, scores: np.ndarray, before: int) -> list[dict[str, Any]]:
        """The text's tokens but special ones, each with its scores and whether it goes on with a word; `before` are
        those before this part of it.
        """
        tokens = []
        continues = bool(getattr(self.tokenizer.model, "continuing_subword_prefix", None))
        for index, special in enumerate(encoding.special_tokens_mask):
            if special:
                continue
            (start, end), word = encoding.offsets[index], encoding.tokens[index]
            parted = start > 0 and " " not in text[start - 1 : start + 1]
            inside = len(word) != end - start if continues else parted
            if word == self.unknown_token:
                word, inside = text[start:end], False
            tokens.append(
                {
                    "index": before + index,
                    "word": word,
                    "start": start,
                    "end": end,
                    "scores": scores[index],
                    "inside": inside,
                }
            )
        return tokens

    def _entities(self, tokens: list[dict[str, Any]], strategy: str) -> list[dict[str, Any]]:
        of_word, words = _OF_WORD[strategy], [[token] for token in tokens]
        if of_word is not None:
            words = []
            for token in tokens:
                if words and token["inside"]:
                    words[-1].append(token)
                else:
                    words.append([token])
        labelled = [self._word(word, of_word) for word in words]
        if strategy == "none":
            return labelled
        groups: list[list[dict[str, Any]]] = []
        last = None
        for word in labelled:
            begins, kind = _tag(word["entity"])
            if kind != last or begins:
                groups.append([])
            last = kind
            groups[-1].append(word)
        return [self._group(group) for group in groups]

    def _word(self, word: list[dict[str, Any]], of_word: Callable[[np.ndarray], np.ndarray] | None) -> dict[str, Any]:
        scores = word[0]["scores"] if of_word is None else of_word(np.stack([token["scores"] for token in word]))
        best = int(scores.argmax())
        names = [token["word"] for token in word]
        return {
            "entity": labels_of(self.config, len(scores))[best],
            "score": float(scores[best]),
            "index": word[0]["index"],
            "word": names[0] if of_word is None else self._joined(names),
            "start": word[0]["start"],
            "end": word[-1]["end"],
        }

    def _group(self, words: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "entity_group": words[0]["entity"].split("-", 1)[-1],
            "score": float(np.mean([word["score"] for word in words])),
            "word": self._joined([word["word"] for word in words]),
            "start": words[0]["start"],
            "end": words[-1]["end"],
        }

    def _joined(self, words: list[str]) -> str:
        decoder = self.tokenizer.decoder
        return decoder.decode(words) if decoder is not None else " ".join(words)


def _strategy(name: str) -> str:
    if str(name).lower() not in _OF_WORD:
        raise BertfuseError(f"aggregation_strategy {name!r} is unknown: choose from {', '.join(_OF_WORD)}")
    return str(name).lower()


def _without_overlaps(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of the text; of entities that begin within one another the longest, of as long ones the surest."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        last = kept[-1] if kept else None
        if last is None or entity["start"] >= last["end"]:
            kept.append(entity)
        elif (entity["end"] - entity["start"], entity["score"]) > (last["end"] - last["start"], last["score"]):
            kept[-1] = entity
    return kept


def _label(entity: dict[str, Any]) -> str:
    return entity["entity"] if "entity" in entity else entity["entity_group"]


def _tag(label: str) -> tuple[bool, str]:
    """Whether the label begins an entity, and its type."""
    return label.startswith("B-"), label[2:] if label[:2] in ("B-", "I-") else label
