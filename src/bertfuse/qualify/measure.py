"""Measuring tactics in worker processes, of those alone that were found right: what `bertfuse tune` is built on."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.spec import DTYPE_VARIABLES
from bertfuse.runtime import native

from .check import Verdict
from .problem import ATTENTIONS, GIVEN, QUANTIZED, WRITERS, Problem, parse, writing_without
from .tasks import checks
from .worker import Settings, Worker

Timing = tuple[str, float, bool]  # a tactic's name, microseconds, whether it is what is used without a measurement


def problem_of(op: str, call: native.Call) -> Problem:
    """The problem that a call is: its shapes, dtypes and attributes, with data of our own.

    Packed rows are as many as there is room for; of sequences each has its share.
    """
    spec = OPS[op]
    attributes: dict[str, Any] = {}
    for attr, value in zip(spec.attributes, call.attributes[: call.num_attributes], strict=True):
        text = {"int": value.i, "float": value.f}.get(attr.kind)
        attributes[attr.name] = value.s.decode() if text is None else text
    sizes: dict[str, int] = {}
    leading: tuple[int, ...] = ()
    dtypes = {number: name for numbers in DTYPE_VARIABLES.values() for name, number in numbers.items()}
    found = {"dtype": "float32", "index": "int64"}
    without = []
    packed = None
    for tensor, given in zip(spec.inputs, call.inputs[: call.num_inputs], strict=True):
        if tensor.packed:
            may_lack = (*ATTENTIONS, "FusedGemmRotary")
            if given.dtype == native.ABSENT and packed is not None and op in may_lack:
                without.append(tensor.name)
            elif given.dtype != native.ABSENT and tensor.name == "places":
                packed = (math.prod(given.shape[:2]),)
            elif given.dtype != native.ABSENT and given.rank < 2:
                first = call.inputs[0]
                rows = math.prod(first.shape[: first.rank - 1])
                packed = _shares(rows, given.shape[0] - 1 if given.rank else 1)
            continue
        if tensor.of_quantized_form:
            if tensor.name == "y_zero_point" and op in WRITERS and given.dtype != native.ABSENT:
                found["writes"] = dtypes[given.dtype]
            elif tensor.name in writing_without(spec) and "writes" in found and given.dtype == native.ABSENT:
                without.append(tensor.name)
            elif tensor.name in GIVEN and op in QUANTIZED and given.dtype != native.ABSENT:
                found["given"] = (*found.get("given", ()), tensor.name)
            continue
        if given.dtype == native.ABSENT:
            without.append(tensor.name)
            continue
        if tensor.dtype == "W" and op in QUANTIZED and dtypes[given.dtype] in DTYPE_VARIABLES["Q"]:
            found["weights"] = dtypes[given.dtype]
        elif tensor.dtype != "S":
            found["dtype" if tensor.is_float else "index"] = dtypes[given.dtype]
        shape = tuple(given.shape[: given.rank])
        named = tensor.trailing
        if tensor.leading:
            leading = shape[: len(shape) - len(named)]
        for axis, size in zip(named, shape[len(shape) - len(named) :], strict=True):
            if not axis.is_attribute and axis.divisor is None:
                sizes[axis.symbol] = axis.symbol_size(size, attributes)
    constant = [i for i, t in enumerate(spec.inputs) if t.constant and call.inputs[i].dtype != native.ABSENT]
    declared = all(call.constant_inputs >> i & 1 for i in constant)
    multiplies = op in ATTENTIONS or ("K" in sizes and "weights" not in found)
    tf32 = bool(call.flags & native.ALLOW_TF32) and found["dtype"] == "float32" and multiplies
    return Problem(
        op,
        sizes=sizes,
        leading=leading,
        attributes=attributes,
        onwards=True,
        mask="ones" if any(t.name == "mask" for t in spec.inputs) and "mask" not in without else "random",
        without=tuple(without),
        constant=declared,
        tf32=tf32,
        packed=packed,
        seed=1,
        **found,
    )


def _shares(rows: int, sequences: int) -> tuple[int, ...]:
    """Lengths of sequences that differ by one row at most: those that the library's own measurement has."""
    ends = [index * rows // sequences for index in range(sequences + 1)]
    return tuple(end - start for start, end in itertools.pairwise(ends))


class Timer:
    """A worker's task: the library's own measurement (bertfuse_tune), of all tactics or of the problem's alone."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._checker = settings, checks(settings)

    def tactics(self, problem: Problem) -> range:
        return range(problem.tactic, problem.tactic + 1)

    def name(self, problem: Problem) -> str:
        return self._checker.name(problem)

    def check(self, problem: Problem) -> Verdict:
        call = self._checker.bare_call(problem)
        verdict = Verdict(str(problem), problem.op, problem.dtype, self.name(problem))
        try:
            library = Path(self._settings.library)
            verdict.timings = native.time_tactics(problem.op, call, self._settings.milliseconds, library)
        except native.NativeError as error:
            verdict.declined = str(error)
        return verdict


@dataclass
class Measured:
    """Timings of the tactics that are right, and why others were not measured, by name."""

    timings: list[Timing] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)


class Measurer:
    """Checks and measures problems, each in worker processes. Raises RuntimeError where none starts."""

    def __init__(self, settings: Settings) -> None:
        self._checking = Worker(settings)
        self._timing = Worker(replace(settings, task="bertfuse.qualify.measure:Timer"))

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._checking.stop()
        self._timing.stop()

    def measure(self, problem: Problem) -> Measured:
        """Microseconds of every tactic that gives right answers and does not fault, checked before it is measured."""
        found = Measured()
        right = self._check(problem, found)
        if not found.rejected and not self._time(problem.with_tactic(-1), found):
            return found
        # Something is wrong with some: the others one by one, so that nothing else is launched.
        found.timings = []
        for tactic in right:
            one = problem.with_tactic(tactic)
            fault = self._time(one, found)
            if fault:
                found.rejected[f"tactic {tactic}"] = fault
        found.timings = [timing for timing in found.timings if timing[0] not in found.rejected]
        return found

    def _check(self, problem: Problem, found: Measured) -> list[int]:
        """The numbers of the tactics that are right."""
        right, waiting = [], [str(problem)]
        while waiting:
            answer = self._checking.run(waiting)
            for verdict in answer.verdicts:
                if verdict["findings"]:
                    kind, text = verdict["findings"][0]
                    found.rejected[verdict["tactic"]] = f"{kind}: {text}"
                elif not verdict["declined"]:
                    right.append(parse(verdict["problem"]).tactic)
            if answer.fault is not None:
                found.rejected[answer.fault.tactic] = f"{answer.fault.kind}: {answer.fault.text}"
            waiting = answer.rest if answer.fault else []
        return [tactic for tactic in right if tactic >= 0]

    def _time(self, problem: Problem, found: Measured) -> str:
        """Adds the timings; what went wrong, "" where nothing did."""
        answer = self._timing.run([str(problem)])
        for verdict in answer.verdicts:
            found.timings += [tuple(timing) for timing in verdict["timings"]]  # type: ignore[misc]
        return f"{answer.fault.kind}: {answer.fault.text}" if answer.fault else ""
