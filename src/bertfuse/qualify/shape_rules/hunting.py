"""The hunt: models until the time or the count is used up, each checked, findings gathered by what they are about."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bertfuse.errors import BertfuseError

from .minimise import written
from .subjects import subjects
from .worker import Trial, trials

_SAY_EVERY = 20.0  # seconds


@dataclass
class Finding:
    """Something wrong, the smallest model of those that show it. `same` more are wrong in the same way."""

    kind: str
    op: str
    number: int
    text: str
    model: str
    command: str
    nodes: int
    same: int = 0


@dataclass
class Report:
    """`outcomes` as Trial has them; `subjects` the same by operator and version; `counts` of tensors and claims."""

    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    subjects: dict[str, Counter[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        return sum(self.outcomes.values())

    @property
    def checked(self) -> int:
        """Models that ONNX Runtime ran at least once."""
        return self.outcomes["held"] + self.outcomes["wrong"]

    def summary(self) -> str:
        """One line."""
        n = self.outcomes
        return (
            f"{self.tried} models in {self.seconds:.0f} s, seed {self.seed}: "
            f"{self.checked} checked in {self.runs} runs, "
            f"{n['refused'] + n['undrawn']} that ONNX Runtime refuses; {self.counts['known axes']} sizes, "
            f"{self.counts['values']} values said; {n['wrong']} wrong, {n['crashed']} crashes"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "tried": self.tried,
            "checked": self.checked,
            "runs": self.runs,
            "outcomes": dict(self.outcomes),
            "counts": dict(self.counts),
            "subjects": {name: dict(outcomes) for name, outcomes in self.subjects.items()},
            "found": len(self.findings),
            "findings": [asdict(finding) for finding in self.findings],
        }


def hunt(
    *,
    minutes: float | None = None,
    count: int | None = None,
    seed: int | None = None,
    ops: Iterable[str] | None = None,
    numbers: Sequence[int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Draws models, imports them for fusion, and compares what is said of their tensors with what they give.

    minutes   how long at most (8 where neither `minutes` nor `count` is given)
    count     how many models at most
    seed      of everything random; None draws one, which the report holds. Model N of a seed is always the same.
    ops       only models around these operators
    numbers   these models alone, whatever `minutes` and `count` are

    Raises BertfuseError for an operator that is not drawn.
    """
    only = None if ops is None else frozenset(ops)
    if only is not None and (unknown := only - {subject.op for subject in subjects()}):
        raise BertfuseError(f"--ops: '{min(unknown)}' is no operator that is drawn; write it as ONNX does")
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    minutes = 8.0 if minutes is None and count is None else minutes
    report, begin = Report(seed), time.monotonic()
    if numbers is not None:
        for number in numbers:
            with contextlib.closing(trials(seed, number, only=only)) as stream:
                _account(report, next(stream), only)
        report.seconds = time.monotonic() - begin
        return report
    end = begin + 60 * minutes if minutes is not None else float("inf")
    said = begin
    with contextlib.closing(trials(seed, only=only)) as stream:
        for trial in itertools.islice(stream, count):
            _account(report, trial, only)
            now = time.monotonic()
            report.seconds = now - begin
            if progress is not None and now - said > _SAY_EVERY:
                said = now
                progress(report.summary())
            if now >= end:
                break
    return report


def _account(report: Report, trial: Trial, only: frozenset[str] | None) -> None:
    report.outcomes[trial.outcome] += 1
    report.subjects.setdefault(trial.subject, Counter())[trial.outcome] += 1
    report.counts.update(trial.counts)
    report.runs += trial.runs
    if trial.outcome not in ("wrong", "crashed"):
        return
    kind, op = (trial.claim.what, trial.claim.op or trial.subject) if trial.claim else ("crash", trial.subject)
    command = ["bertfuse", "qualify", "--shapes", "--seed", str(report.seed), "--problem", str(trial.number)]
    if only is not None:
        command += ["--ops", ",".join(sorted(only))]
    text = written(trial.model, trial.feed) if trial.model is not None else ""
    nodes = len(trial.model.graph.node) if trial.model is not None else 0
    made = Finding(kind, op, trial.number, trial.text, text, shlex.join(command), nodes)
    for at, old in enumerate(report.findings):
        if (old.kind, old.op) == (kind, op):
            made.same = old.same + 1
            if nodes < old.nodes:
                report.findings[at] = made
            else:
                old.same += 1
            return
    report.findings.append(made)
