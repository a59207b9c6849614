"""Batches of unequal lengths: given, drawn from a named distribution, or those of a file's lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime.inputs import random_inputs, text_inputs

# What lengths of a batch are drawn from: (texts unless told, longest, draw). Medians and spreads of short sentences for
# embedding, of questions with their paragraphs as in SQuAD, and of a query with each of its candidates.
DISTRIBUTIONS: dict[str, tuple[int, int, Any]] = {
    "sentences": (128, 128, lambda rng, count: np.clip(rng.lognormal(np.log(22), 0.6, count), 4, 128)),
    "passages": (32, 384, lambda rng, count: np.clip(rng.normal(177, 80, count), 16, 384)),
    "pairs": (32, 512, lambda rng, count: np.clip(rng.lognormal(np.log(150), 0.5, count), 20, 512)),
}
SEED = 7


def drawn_lengths(name: str, count: int = 0) -> tuple[np.ndarray, int]:
    """Tokens of each text of a distribution, int64 [count, or as many as usual], and what they are padded to."""
    usual, longest, draw = DISTRIBUTIONS[name]
    return draw(np.random.default_rng(SEED), count or usual).astype(int), longest


@dataclass(frozen=True)
class Workload:
    """A padded batch: `feed` holds [B, S] arrays, of which `tokens` places are no padding."""

    name: str
    feed: dict[str, np.ndarray]
    tokens: int

    @property
    def size(self) -> tuple[int, int]:
        batch, sequence = self.feed["input_ids"].shape
        return int(batch), int(sequence)

    @property
    def description(self) -> str:
        """ "sentences:16: 2,048 places, 353 tokens, 83% padding"."""
        places = self.size[0] * self.size[1]
        return f"{self.name}: {places:,} places, {self.tokens:,} tokens, {1 - self.tokens / places:.0%} padding"


def make_workload(text: str, session: Any, sizes: dict[str, int], folder: Path) -> Workload:
    """The workload that `text` names: "sentences:16" (a distribution and how many texts), lengths "9,31,77", or a file.

    A distribution's batch is padded to its longest possible text, as for a server's fixed shape; any other to the
    longest that there is. Lengths get random ids, a file's lines their own by the tokenizer in `folder`. Raises
    BertfuseError for what is none of these.
    """
    name, _, count = text.partition(":")
    if name in DISTRIBUTIONS:
        if count and (not count.isdecimal() or not 0 < int(count) <= 1 << 16):
            raise BertfuseError(f"workload {text!r}: {count!r} is not a number of texts, 1 to {1 << 16}")
        return _of_lengths(text, *drawn_lengths(name, int(count or 0)), session, sizes)
    parts = text.split(",")
    if all(part.strip().isdecimal() for part in parts):
        lengths = np.array([int(part) for part in parts])
        if lengths.max() > 1 << 16 or lengths.min() < 0 or not lengths.any():
            raise BertfuseError(f"workload {text!r}: lengths are 0 to {1 << 16}, and not all of them 0")
        return _of_lengths(text, lengths, int(lengths.max()), session, sizes)
    if not Path(text).is_file():
        raise BertfuseError(
            f"workload {text!r}: give {', '.join(DISTRIBUTIONS)} (with a number of texts: sentences:16), lengths as in "
            "9,31,77, or a file with a text on each line"
        )
    try:
        lines = [line for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BertfuseError(f"{text}: cannot be read as text: {error}") from error
    if not lines:
        raise BertfuseError(f"{text}: has no line with text")
    feed = text_inputs(folder, lines)
    names = {value.name for value in session.get_inputs()}
    return Workload(Path(text).name, {k: v for k, v in feed.items() if k in names}, int(feed["attention_mask"].sum()))


def _of_lengths(name: str, lengths: np.ndarray, sequence: int, session: Any, sizes: dict[str, int]) -> Workload:
    feed = random_inputs(session, sizes, len(lengths), sequence, padded=False)
    real = np.arange(sequence) < lengths[:, None]
    feed |= {key: real.astype(array.dtype) for key, array in feed.items() if "mask" in key}
    return Workload(name, feed, int(real.sum()))
