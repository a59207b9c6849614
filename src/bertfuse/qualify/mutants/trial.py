"""One mutant: made from its number, fed, judged; and made smaller where it is wrong."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np
import onnx

from .facts import Facts, facts
from .inputs import FRACTIONS, STRANGE_MASKS, Signature, feeds, signature
from .mutant import Mutant
from .mutations import MUTATIONS, ROTATIONS
from .verdict import Feed, Verdict, judge

_TRIES = 8  # mutations that find nothing to do are drawn again
# How many mutations a mutant has, and how often.
_COUNTS, _OFTEN = (1, 2, 3), (5, 3, 1)


@dataclass
class Trial:
    """What became of mutant `number`. `model` and `feed` are given of those that are wrong, as small as they got."""

    number: int
    changes: list[str]
    verdict: Verdict
    model: onnx.ModelProto | None = None
    feed: Feed = field(default_factory=dict)
    size: tuple[int, int] = (0, 0)


class Subject:
    """A model whose mutants are tried. `exempt` are kinds of inputs on which the model itself is fused differently."""

    def __init__(self, model: onnx.ModelProto, seed: int, level: str = "full") -> None:
        self.model, self.seed, self.level = model, seed, level
        self.facts: Facts = facts(model)
        self.exempt: dict[str, str] = {}
        turned = any(node.op_type == "Cos" for node in model.graph.node)
        self.mutations = MUTATIONS | (ROTATIONS if turned else {})

    def itself(self) -> Trial | None:
        """Judges the model as it is, kind of input by kind, and sets `exempt`; a Trial where it is plainly wrong.

        The values that exporters do not write a mask of (2, -1, fractions) are no fault of the model as it is where it
        differs on these alone: they are left out for its mutants, and told.
        """
        wrong = None
        for round_ in range(3):
            given = feeds(self.facts.signature, np.random.default_rng([self.seed, round_]), 24)
            if not judge(self.model, given, self.level).bad:
                continue
            for name, feed in given.items():
                kind = name.rsplit(" ", 2)[0]
                verdict = judge(self.model, {name: feed}, self.level)
                if not verdict.bad or kind in self.exempt:
                    continue
                if kind in (*STRANGE_MASKS, *FRACTIONS):
                    self.exempt[kind] = verdict.text
                elif wrong is None:
                    wrong = Trial(-1, ["the model as it is"], verdict, self.model, feed)
        return wrong

    def mutant(self, number: int, only: list[int] | None = None) -> Mutant:
        """Mutant `number`, the same every time; `only` these of its mutations."""
        r = Random(f"{self.seed} {number}")
        made = Mutant(self.model, self.facts)
        for place in range(r.choices(_COUNTS, _OFTEN)[0]):
            own = Random(f"{self.seed} {number} {place}")
            if only is not None and place not in only:
                continue
            for _ in range(_TRIES):
                (mutation,) = own.choices(list(self.mutations), list(self.mutations.values()))
                try:
                    said = mutation(made, own)
                except (ValueError, IndexError, OverflowError, TypeError, KeyError):
                    said = None  # no such thing in this graph
                if said:
                    made.changes.append(said)
                    break
        made.finish()
        return made

    def feeds(self, model: onnx.ModelProto, number: int) -> Mapping[str, Feed]:
        """Inputs for a mutant: of its own types, and near the numbers that it has and the model had not."""
        read = signature(model)
        fresh = sorted(set(read.numbers) - set(self.facts.numbers))
        longest = self.facts.signature.longest
        made = feeds(Signature(read.inputs, fresh or read.numbers, longest), np.random.default_rng([self.seed, number]))
        return {name: feed for name, feed in made.items() if name.rsplit(" ", 2)[0] not in self.exempt}

    def tried(self, number: int, patience: float = 20.0) -> Trial:
        """Makes and judges mutant `number`; what is wrong is made smaller, for at most `patience` seconds."""
        mutant = self.mutant(number)
        if not mutant.changes:
            return Trial(number, [], Verdict("invalid", "no mutation fits"))
        given = self.feeds(mutant.model, number)
        with np.errstate(all="ignore"):
            verdict = judge(mutant.model, given, self.level, invalid=number % 4 == 0)
        trial = Trial(number, mutant.changes, verdict)
        if verdict.bad:
            trial.model, trial.feed = mutant.model, given.get(verdict.feed) or next(iter(given.values()), {})
            if patience:
                with np.errstate(all="ignore"):
                    self._make_smaller(trial, patience)
        return trial

    def _make_smaller(self, trial: Trial, patience: float) -> None:
        from . import minimise

        end = time.monotonic() + patience
        fewer = self._with_fewer_mutations(trial)
        if fewer is not None:
            trial.model, trial.changes = fewer.model, fewer.changes
        trial.model, trial.feed = minimise.smaller(trial.model, trial.feed, trial.verdict, self.level, end)
        trial.verdict = judge(trial.model, {trial.verdict.feed or "inputs": trial.feed}, self.level)

    def _with_fewer_mutations(self, trial: Trial) -> Mutant | None:
        for only in ([0], [1], [2], [0, 1], [1, 2], [0, 2]):
            if len(only) >= len(trial.changes):
                continue
            made = self.mutant(trial.number, only)
            if made.changes and judge(made.model, {"inputs": trial.feed}, self.level).outcome == trial.verdict.outcome:
                return made
        return None


def fingerprint(trial: Trial) -> str:
    """Trials of one are probably of one cause: the same operators once made small, the same failure."""
    ops = " ".join(sorted({node.op_type for node in trial.model.graph.node})) if trial.model is not None else ""
    kinds = sorted(change.split(" ")[0] for change in trial.changes)
    return hashlib.sha256(f"{trial.verdict.outcome} {kinds} {ops}".encode()).hexdigest()[:12]


Progress = Callable[[str], None]
