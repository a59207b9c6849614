"""Models drawn and checked in a process of their own: a crash, or 4 GiB too many, ends that process alone."""

from __future__ import annotations

import os
import resource
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx

from ..apart import CONTEXT, Ended, messages
from .claims import Claim, check
from .minimise import smaller
from .models import Feed, draw, order
from .runtime import Refused

_START, _TRIAL = 120.0, 60.0  # seconds without a word after which a process is taken for hung
_MOST_BYTES = 8 << 30  # of address space: what a drawn model asks for beyond that is refused
_STAGES = ("drawing it", "importing it", "running it")


@dataclass
class Trial:
    """What became of model `number`: "undrawn", "refused" (by ONNX Runtime, at every run), "held", "wrong", "crashed".

    A model and the inputs that show it are given of what is wrong; `known` counts sizes said, by operator.
    """

    number: int
    subject: str
    outcome: str
    text: str = ""
    claim: Claim | None = None
    runs: int = 0
    nodes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    known: dict[str, int] = field(default_factory=dict)
    model: onnx.ModelProto | None = None
    feed: Feed = field(default_factory=dict)


def trial(seed: int, number: int, only: frozenset[str] | None = None, small: bool = True, stage=None) -> Trial:
    """Draws and checks one model; what is wrong is made small."""
    chosen = [s for s in order(seed) if only is None or s.op in only]
    subject = str(chosen[number % len(chosen)])
    try:
        drawn = draw(seed, number, only)
    except Refused as error:
        return Trial(number, subject, "undrawn", str(error))
    if stage is not None:
        stage.value = 1
    checked = check(drawn.model, drawn.feeds, drawn.hidden, stage)
    counts, nodes = checked.counts, len(drawn.model.graph.node)
    if checked.wrong is None:
        outcome = "held" if checked.runs else "refused"
        return Trial(number, subject, outcome, checked.refused, None, checked.runs, nodes, counts, checked.known)
    made = Trial(
        number, subject, "wrong", str(checked.wrong), checked.wrong, checked.runs, nodes, counts, checked.known
    )
    feed = drawn.feeds[checked.at] if checked.wrong.what != "raises" else drawn.feeds[0]
    made.model, made.feed = drawn.model, feed
    if small:
        made.model, made.feed, made.claim = smaller(drawn.model, feed, checked.wrong, drawn.hidden)
        made.text = str(made.claim)
    return made


def trials(seed: int, first: int = 0, step: int = 1, only: frozenset[str] | None = None) -> Iterator[Trial]:
    """Trials `first`, `first + step` and so on, without end. Close it to stop."""
    while True:
        stage = CONTEXT.Value("i", 0)
        for message in messages(_work, (stage, seed, first, step, only), _START, _TRIAL):
            ended = isinstance(message, Ended)
            yield _ended(seed, first, only, stage.value, str(message)) if ended else message
            first += step


def _ended(seed: int, number: int, only: frozenset[str] | None, stage: int, text: str) -> Trial:
    """ONNX Runtime may end its process as it likes; importing a model may not."""
    chosen = [s for s in order(seed) if only is None or s.op in only]
    subject = str(chosen[number % len(chosen)])
    outcome = "crashed" if stage == 1 else "refused"
    return Trial(number, subject, outcome, f"{_STAGES[stage]}: {text}")


def _work(pipe, stage, seed: int, first: int, step: int, only: frozenset[str] | None) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)  # ONNX Runtime's warnings of its own operators
    number = first
    try:
        while True:
            stage.value = 0
            pipe.send(trial(seed, number, only, stage=stage))
            number += step
    except (BrokenPipeError, KeyboardInterrupt):
        return
    except Exception:  # a defect here: the hunt is to end, and to say where
        pipe.send(RuntimeError(f"model {number} of seed {seed}: {traceback.format_exc()}"))
