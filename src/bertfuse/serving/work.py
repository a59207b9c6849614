"""What a front asks an engine for, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# What of a model: a vector of each text; a vector of each token; the head's outputs; weights of words.
WHAT = ("vectors", "tokens", "logits", "words")
IMAGE_TOKENS = 200  # what an image costs about: CLIP's towers of 224 pixels have 50 to 257 patches


@dataclass(frozen=True)
class Work:
    """One request's tokenised texts, one after the other.

    Args:
        model: which of the engine's models, by position.
        what: one of WHAT.
        lengths: int32 [N], tokens of each text.
        ids: int32 [T].
        type_ids: uint8 [T]; None where all are 0.
        left_out: how many tokens of each text, the first ones, "vectors" does not pool: a prompt's.
        seen: int32 [N], how many tokens of each text, the first ones, others see; None: all.
        pixels: uint8 [N, height, width, 3], of images in place of texts; their lengths are 1, and they have no ids.
    """

    model: int
    what: str
    lengths: np.ndarray
    ids: np.ndarray
    type_ids: np.ndarray | None = None
    left_out: int = 0
    seen: np.ndarray | None = None
    pixels: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        """How much there is to compute."""
        return len(self.ids) if self.pixels is None else IMAGE_TOKENS * len(self.pixels)

    @property
    def kind(self) -> tuple[int, str, int]:
        """What one output of one model is read for."""
        return self.model, self.what, self.left_out


@dataclass(frozen=True)
class Timing:
    """Of a request's first batch: nanoseconds until it began and that it ran, requests and tokens in it, and how many
    requests waited."""

    queue: int = 0
    run: int = 0
    batch_requests: int = 0
    batch_tokens: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class Answer:
    """Args:
    rows: float32 [N, size] of "vectors" and "logits"; of "tokens" [T, size]; of "words" [M, 2]: ids and weights.
    counts: int32 [N], how many rows are each text's; None: one.
    """

    rows: np.ndarray
    counts: np.ndarray | None = None
    timing: Timing = field(default_factory=Timing)


class EngineError(Exception):
    """The model failed on this request; the message is one line."""


class EngineFull(Exception):
    """So many requests wait that this one is not taken."""
