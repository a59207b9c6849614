"""From a fault to the smallest problem that has it: bisection over what a process had run, then over sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .packed import shrunk
from .problem import GIVEN, PACKED_ALONE, Problem, parse, writing_without
from .worker import Answer, Fault, Settings, Worker

FAULTS = ("signal", "exit", "hang", "device")
CHANCES = 3  # other bits each time are not other bits every time


@dataclass
class Finding:
    """What was found.

    Attributes:
        kind: a fault's (FAULTS) or a check's.
        problems: what shows it, in one process, in this order.
        found_with: the problem as it was drawn.
        repeats: whether it was seen again in a new process.
        command: repeats it.
        occurrences: of this kind, op, dtype and tactic in the hunt.
        trials: how many runs the search for the smallest problem took.
    """

    kind: str
    text: str
    op: str
    dtype: str
    tactic: str
    device: str
    problems: list[str]
    found_with: str
    repeats: bool = True
    command: str = ""
    occurrences: int = 1
    trials: int = 0
    signature: tuple[str, ...] = field(default=(), compare=False)


class Trials:
    """Runs problems in processes of their own, for one search; at most that many, until a point in time."""

    def __init__(self, settings: Settings, most: int, until: float) -> None:
        self._settings, self._left, self._until = settings, most, until
        self.count = 0
        self._worker = Worker(settings)

    def exhausted(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._until

    def run(self, problems: Sequence[str], fresh: bool = True) -> Answer:
        self._left -= 1
        self.count += 1
        if fresh:
            self._worker.stop()
        return self._worker.run(problems)

    def stop(self) -> None:
        self._worker.stop()


def shows(answer: Answer, kind: str, problem: str) -> str | None:
    """What the answer says of `problem` if it has a finding of that kind, else None."""
    if kind in FAULTS:
        return answer.fault.text if answer.fault and answer.fault.kind == kind else None
    for verdict in answer.verdicts:
        if verdict["problem"] == problem:
            return next((text for found, text in verdict["findings"] if found == kind), None)
    return None


def isolate(before: Sequence[str], last: str, kind: str, trials: Trials) -> list[str] | None:
    """The fewest of the problems before it with which `last` shows a finding of that kind; None where it does not.

    Halves, quarters and so on of `before` are left out as long as the finding stays (delta debugging).
    """

    def repeats(some: Sequence[str]) -> bool:
        return shows(trials.run([*some, last]), kind, last) is not None

    if any(repeats([]) for _ in range(1 if kind in FAULTS else CHANCES)):
        return [last]
    kept = list(before)
    if not kept or not repeats(kept):
        return None
    parts = 2
    while len(kept) > 1 and not trials.exhausted():
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if not trials.exhausted() and repeats(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return [*kept, last]


def minimise(problem: Problem, kind: str, trials: Trials) -> Problem:
    """A simpler problem with a finding of the same kind: greedy; what failed once is not tried again.

    Few kinds need a new process for every problem, which takes a second on a GPU; `explain` asks one in the end.
    """
    failed: set[str] = set()
    found = True
    while found:
        found = False
        for name, candidate in simpler(problem):
            if name in failed or candidate == problem:
                continue
            if trials.exhausted():
                return problem
            if shows(trials.run([str(candidate)], fresh=kind == "cached"), kind, str(candidate)) is not None:
                problem, found = candidate, True
                break
            failed.add(name)
    return problem


def simpler(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems that are a little simpler, the boldest first, and what was done to get each."""
    defaults: dict[str, Any] = {
        "values": "normal", "mask": "ones", "index": "int64", "offset": 0, "constant": False, "tf32": False,
        "writes": "", "weights": "",
    }  # fmt: skip
    for name, value in defaults.items():
        if getattr(problem, name) != value and not (name == "mask" and "mask" in problem.without):
            changes = {name: value} | {"offset": {"offset_of": ""}, "weights": {"given": ()}}.get(name, {})
            yield name, replace(problem, **changes)
    for name in problem.given:
        kept = tuple(other for other in problem.given if name not in (other, GIVEN[other]))
        yield name, replace(problem, given=kept)
    if len(problem.leading) > 1:
        yield "leading", replace(problem, leading=(math.prod(problem.leading),))
    if problem.packed is not None:
        yield from _simpler_packing(problem)
    optional = problem.spec.optional_inputs + (writing_without(problem.spec) if problem.writes else ())
    if set(problem.without) != set(optional):
        yield "without", replace(problem, without=optional)
    plain = {attr.name: problem.attributes[attr.name] for attr in problem.spec.attributes if attr.default is None}
    if plain != problem.attributes:
        yield "attributes", replace(problem, attributes=plain)
    heads = problem.attributes.get("num_heads")
    if problem.op == "FusedGemmRotary" and heads > 1:
        head = problem.sizes["N"] // (heads + 2 * problem.attributes["kv_num_heads"])
        one = {**problem.attributes, "num_heads": 1, "kv_num_heads": 1}
        yield "heads 1", replace(problem, sizes={**problem.sizes, "N": 3 * head}, attributes=one)
    elif heads and "H" in problem.sizes:
        head = problem.sizes["H"] // heads
        for fewer in _smaller(heads):
            sizes, attributes = {**problem.sizes, "H": fewer * head}, {**problem.attributes, "num_heads": fewer}
            yield f"heads {fewer}", replace(problem, sizes=sizes, attributes=attributes)
    if len(problem.leading) == 1:
        for rows in _smaller(problem.leading[0]):
            yield f"rows {rows}", shrunk(replace(problem, leading=(rows,)))
    for name, size in problem.sizes.items():
        if name == "H" and heads:
            continue
        lowest = problem.sizes["S"] if name == "P" and problem.op == "EmbedLayerNorm" else 1
        for less in _smaller(size):
            if less >= lowest:
                sizes = {**problem.sizes, name: less}
                if name == "S" and sizes.get("C") == size:  # a row of the tables for each place
                    sizes["C"] = less
                yield f"{name} {less}", shrunk(replace(problem, sizes=sizes))


def _simpler_packing(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Without packing; fewer sequences; shorter ones; all rows real."""
    lengths = problem.packed or ()
    if problem.op not in PACKED_ALONE:
        yield "unpacked", replace(problem, packed=None, hints=False, broken=False)
    for name in ("hints", "broken"):
        if getattr(problem, name):
            yield name, replace(problem, **{name: False})
    for count in (0, *_smaller(len(lengths))) if lengths else ():
        yield f"sequences {count}", shrunk(replace(problem, packed=lengths[:count]))
        yield f"last sequences {count}", shrunk(replace(problem, packed=lengths[len(lengths) - count :]))
    for length in (0, *_smaller(max(lengths, default=0))):
        yield f"lengths {length}", shrunk(replace(problem, packed=tuple(min(length, one) for one in lengths)))


def _smaller(size: int) -> list[int]:
    """Some sizes below it, the smallest first."""
    steps = [1, 2, 8, 16, 64, 128, size // 4, size // 2, size * 3 // 4, size // 8 * 8, size - 8, size - 1]
    return sorted({step for step in steps if 0 < step < size})


def explain(fault: Fault | tuple[str, str], problem: str, before: Sequence[str], trials: Trials) -> Finding:
    """The finding for a fault, or for (kind, text) of a verdict: isolated, minimised, and repeated once more."""
    kind, text = (fault.kind, fault.text) if isinstance(fault, Fault) else fault
    original = parse(problem)
    problem = str(original)
    finding = Finding(kind, text, original.op, original.dtype, "", "", [problem], problem)
    try:
        kept = isolate(before, problem, kind, trials)
        if kept is None:
            finding.repeats = False
            return finding
        finding.problems = kept
        if len(kept) == 1:
            smallest = str(minimise(original, kind, trials))
            said = shows(trials.run([smallest]), kind, smallest)
            if said is not None:
                finding.problems, finding.text = [smallest], said
        return finding
    finally:
        finding.trials = trials.count
        trials.stop()
