"""How two models' answers to the same texts differ, as their users see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Similarities of all pairs of more texts than these take seconds and tell no more.
_MOST_TEXTS = 2000


@dataclass(frozen=True)
class Judgement:
    """`count` texts by two models; `of_tokens`: tokens, as of a tagger.

    cosine_least, cosine_mean   between the two models' vectors or logits of one text
    rank_correlation            Spearman's, of the similarities of all pairs of texts (of one score each: of the scores)
    neighbours_kept             the share of texts whose nearest other text is the same
    argmax_kept                 the share of texts whose class of the largest logit is the same
    What a model has no use for, or too few texts tell, is None.
    """

    count: int
    cosine_least: float | None = None
    cosine_mean: float | None = None
    rank_correlation: float | None = None
    neighbours_kept: float | None = None
    argmax_kept: float | None = None
    of_tokens: bool = False

    @property
    def counted(self) -> str:
        """As in "12 texts"."""
        return f"{self.count} {'token' if self.of_tokens else 'text'}{'' if self.count == 1 else 's'}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """For people, a line each."""
        found = []
        if self.cosine_least is not None:
            found.append(f"cosine: {self.cosine_least:.5f} at least, {self.cosine_mean:.5f} in the mean")
        if self.rank_correlation is not None:
            ranked = "scores" if self.cosine_least is None else "similarities"
            found.append(f"rank correlation of {ranked}: {self.rank_correlation:.5f}")
        if self.neighbours_kept is not None:
            found.append(f"nearest neighbours kept: {self.neighbours_kept:.1%}")
        if self.argmax_kept is not None:
            found.append(f"largest logit kept: {self.argmax_kept:.2%}")
        return found


def answer_output(outputs: Sequence[Any]) -> str:
    """The output of a session that users take: a sentence's vector, logits, or the first."""
    names = [value.name for value in outputs]
    return next((name for name in ("sentence_embedding", "logits") if name in names), names[0])


def rows_of(name: str, array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """[rows, size]: one row for each text, of logits [B, S, C] one for each real token. Hidden states are averaged."""
    array = np.asarray(array, np.float64)
    if array.ndim == 1:
        return array[:, None]
    if array.ndim < 3 or array.shape[:2] != mask.shape:
        return array.reshape(len(array), -1)
    real = mask != 0
    if name == "logits":
        return array[real]
    return (array * real[..., None]).sum(axis=1) / np.maximum(real.sum(axis=1), 1)[:, None]


def judge(name: str, reference: np.ndarray, other: np.ndarray, of_texts: bool = True) -> Judgement:
    """Two models' rows [rows, size] of the output `name`; tokens' (`of_texts` False) are not compared in pairs."""
    count, size = reference.shape
    if size == 1:
        some = count > 2
        ranks = _spearman(reference[:, 0], other[:, 0]) if some else None
        return Judgement(count, rank_correlation=ranks, of_tokens=not of_texts)
    a, b = _unit(reference), _unit(other)
    cosines = (a * b).sum(axis=1)
    found: dict[str, float | None] = {"cosine_least": float(cosines.min()), "cosine_mean": float(cosines.mean())}
    if name == "logits":
        found["argmax_kept"] = float((reference.argmax(axis=1) == other.argmax(axis=1)).mean())
    elif of_texts and count > 2:
        a, b = a[:_MOST_TEXTS], b[:_MOST_TEXTS]
        ours, theirs = a @ a.T, b @ b.T
        pairs = np.triu_indices(len(a), 1)
        found["rank_correlation"] = _spearman(ours[pairs], theirs[pairs])
        for similarities in (ours, theirs):
            np.fill_diagonal(similarities, -np.inf)
        found["neighbours_kept"] = float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean())
    return Judgement(count, **found, of_tokens=not of_texts)


def judge_sessions(reference: Any, other: Any, feeds: Sequence[Mapping[str, np.ndarray]]) -> Judgement:
    """Two sessions of one interface on the same inputs [B, S], by the output that users take."""
    name = answer_output(reference.get_outputs())
    answers = [[session.run([name], feed)[0] for feed in feeds] for session in (reference, other)]
    return judge_answers(name, *answers, feeds)


def judge_answers(
    name: str, reference: Sequence[np.ndarray], other: Sequence[np.ndarray], feeds: Sequence[Mapping[str, np.ndarray]]
) -> Judgement:
    """Two models' arrays of the output `name`, one for each of the inputs [B, S] in `feeds`."""
    masks = [mask_of(feed) for feed in feeds]
    found = [[rows_of(name, array, mask) for array, mask in zip(of, masks, strict=True)] for of in (reference, other)]
    of_texts = all(len(rows) == len(mask) for rows, mask in zip(found[0], masks, strict=True))
    return judge(name, *map(np.concatenate, found), of_texts)


def mask_of(feed: Mapping[str, np.ndarray]) -> np.ndarray:
    """[B, S]: 0 on padding; without a mask among the inputs all is real."""
    mask = next((array for name, array in feed.items() if "mask" in name), None)
    return np.ones_like(next(iter(feed.values()))) if mask is None else np.asarray(mask)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of ranks; equal numbers get the mean of their ranks."""
    ranks = [_ranks(values) for values in (a, b)]
    if any(rank.std() == 0 for rank in ranks):
        return 1.0 if np.array_equal(*ranks) else 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]
