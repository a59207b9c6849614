"""A hunt: workers on every device take random problems until the time is over; findings are written at once."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from . import driver
from .draw import Draw
from .isolate import Finding, Trials, explain
from .journal import Journal
from .problem import parse
from .worker import Answer, Fault, Settings, Worker

BATCH = 12  # drawn problems, each with all its tactics
EXPLAINED = 2  # findings of one kind, op, dtype and tactic that are isolated; further ones are counted,
SIGHTINGS = 20  # and so many of them written down
SKIPPED_AFTER = 6  # faults of one op, dtype and tactic after which it is not run any more
TRIALS_OF_HANGS = 8  # each takes as long as a problem may
TRIALS = 60  # processes and problems that the search for the smallest problem may take
_CPU_SCALE = 0.25  # the CPU's kernels are slower, so its problems are smaller
_TORCH_SCALE = 8.0  # of the largest problems, up to 9000 x 1280 x 4096, where PyTorch makes the oracle's products


class Runner(Protocol):
    """A worker here or elsewhere."""

    settings: Settings

    def run(self, problems: Sequence[str], skipped: Sequence[tuple[str, str, str]], seconds: float) -> Answer: ...
    def explain(self, fault: Fault | tuple[str, str], problem: str, before: Sequence[str], until: float) -> Finding: ...
    @property
    def ran(self) -> list[str]: ...
    def stop(self) -> None: ...


class Local(Worker):
    """A worker process on this machine."""

    def explain(self, fault: Fault | tuple[str, str], problem: str, before: Sequence[str], until: float) -> Finding:
        hangs = isinstance(fault, Fault) and fault.kind == "hang"
        return explain(fault, problem, before, Trials(self.settings, TRIALS_OF_HANGS if hangs else TRIALS, until))


@dataclass
class Report:
    """What a hunt did: counts by (device, op, dtype, tactic), findings, the largest errors as shares of the allowed."""

    library: str
    devices: dict[str, str]
    seed: int
    minutes: float
    seconds: float = 0.0
    problems: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    ratios: dict[tuple[str, str, str], float] = field(default_factory=dict)
    declined: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    unsupported: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)  # device, op, dtype, reason
    skipped: list[tuple[str, str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    interrupted: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.problems.values())

    def by(self, *places: int) -> Counter[tuple[str, ...]]:
        """Problems by some of device (0), op (1), dtype (2) and tactic (3)."""
        found: Counter[tuple[str, ...]] = Counter()
        for key, count in self.problems.items():
            found[tuple(key[place] for place in places)] += count
        return found

    def to_dict(self) -> dict[str, Any]:
        names = ("device", "op", "dtype", "tactic")
        return {
            "library": self.library,
            "devices": self.devices,
            "seed": self.seed,
            "minutes": self.minutes,
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "total": self.total,
            "problems": [dict(zip(names, key, strict=True)) | {"count": n} for key, n in sorted(self.problems.items())],
            "largest_error": [
                dict(zip(names[:3], key, strict=True)) | {"share_of_allowed": round(ratio, 4)}
                for key, ratio in sorted(self.ratios.items())
            ],
            "declined": [
                dict(zip(names[1:], key, strict=True)) | {"count": n} for key, n in sorted(self.declined.items())
            ],
            "unsupported": [
                dict(zip(("device", "op", "dtype", "reason"), key, strict=True)) | {"count": n}
                for key, n in sorted(self.unsupported.items())
            ],
            "skipped": [dict(zip(names[1:], key, strict=True)) for key in self.skipped],
            "findings": [asdict(finding) for finding in self.findings],
            **self.extra,
        }


class Campaign:
    """Runs `runners` over problems that `draws` (by device) make, until `deadline` (time.monotonic)."""

    def __init__(
        self, report: Report, journal: Journal | None, runners: Sequence[Runner], draws: dict[str, Draw]
    ) -> None:
        self.report, self._journal, self._runners, self._draws = report, journal, runners, draws
        self._lock = threading.Lock()
        self._left_over: dict[str, list[str]] = {name: [] for name in draws}
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._faults: Counter[tuple[str, str, str]] = Counter()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._count = 0
        self._most: int | None = None

    def run(self, deadline: float, say: Callable[[str], None], most: int | None = None) -> None:
        """Until the deadline, or until `most` problems are checked. Ctrl-C ends it with what was found until then."""
        start = time.monotonic()
        self._most = most
        threads = [
            threading.Thread(target=self._work, args=(runner, deadline), daemon=True) for runner in self._runners
        ]
        for thread in threads:
            thread.start()
        try:
            said = 0.0
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(0.5 / len(threads))
                if time.monotonic() - said > 5:
                    said = time.monotonic()
                    say(f"{self.report.total} problems, {len(self.report.findings)} findings")
                    self._write("progress", {"total": self.report.total, "seconds": round(said - start, 1)})
        except KeyboardInterrupt:
            self.report.interrupted = True
        finally:
            self._stop.set()
            for runner in self._runners:
                runner.stop()
            self.report.seconds = time.monotonic() - start
        if self._error is not None:
            raise self._error

    def _work(self, runner: Runner, deadline: float) -> None:
        try:
            while not self._stop.is_set() and time.monotonic() < deadline:
                with self._lock:
                    problems = self._take(runner.settings.device)
                    if not problems:
                        return
                    skipped = list(self.report.skipped)
                answer = runner.run(problems, skipped, max(0.0, deadline - time.monotonic()))
                if self._stop.is_set():
                    return
                self._record(runner, answer, deadline)
        except Exception as error:
            if not self._stop.is_set():
                self._error = error
                self._stop.set()

    def _take(self, device: str) -> list[str]:
        """A batch: what a fault left over comes first."""
        left = self._left_over[device]
        taken, self._left_over[device] = left[:BATCH], left[BATCH:]
        new = BATCH - len(taken)
        if self._most is not None:
            new = min(new, self._most - self._count)
        self._count += new
        return taken + [str(next(self._draws[device])) for _ in range(new)]

    def _record(self, runner: Runner, answer: Answer, deadline: float) -> None:
        device, found = runner.settings.device, []
        with self._lock:
            for verdict in answer.verdicts:
                key = verdict["op"], verdict["row"], verdict["tactic"]
                if verdict["unsupported"]:
                    self.report.unsupported[(device, *key[:2], verdict["unsupported"])] += 1
                    continue
                self.report.problems[(device, *key)] += 1
                if verdict["declined"]:
                    self.report.declined[key] += 1
                place = device, *key[:2]
                self.report.ratios[place] = max(self.report.ratios.get(place, 0.0), verdict["ratio"])
                for kind, text in verdict["findings"]:
                    found.append(((kind, text), verdict["problem"], verdict["row"], verdict["tactic"]))
            self._left_over[device] += answer.rest
        ran = runner.ran
        for reason, problem, row, tactic in found:
            before = ran[: ran.index(problem)] if problem in ran else []
            self._look_into(runner, reason, problem, row, tactic, before, deadline)
        if answer.fault is not None:
            one = parse(answer.fault.problem)
            row = one.row
            with self._lock:
                self.report.problems[device, one.op, row, answer.fault.tactic] += 1
            self._look_into(runner, answer.fault, str(one), row, answer.fault.tactic, answer.fault.before, deadline)

    def _look_into(
        self,
        runner: Runner,
        reason: Fault | tuple[str, str],
        problem: str,
        row: str,
        tactic: str,
        before: Sequence[str],
        deadline: float,
    ) -> None:
        """Counts a finding; the first ones of their sort are isolated and written down."""
        one, device = parse(problem), runner.settings.device
        kind, text = (reason.kind, reason.text) if isinstance(reason, Fault) else reason
        signature = (device.partition(":")[0], kind, one.op, row, tactic)
        with self._lock:
            self._seen[signature] += 1
            if isinstance(reason, Fault):
                key = one.op, one.dtype, tactic
                self._faults[key] += 1
                if self._faults[key] == SKIPPED_AFTER:
                    self.report.skipped.append(key)
            for finding in self.report.findings:
                if finding.signature == signature:
                    finding.occurrences = self._seen[signature]
            seen = self._seen[signature]
        # On disk before the search begins: what was found must not be lost if that is cut short.
        if seen <= SIGHTINGS:
            sighting = {
                "device": device,
                "op": one.op,
                "dtype": row,
                "tactic": tactic,
                "problem": problem,
                "text": text,
            }
            self._write("sighting", {"finding": kind, **sighting})
        if seen > EXPLAINED:
            return

        def named(finding: Finding) -> Finding:
            finding.device, finding.dtype, finding.tactic, finding.signature = device, row, tactic, signature
            finding.occurrences = self._seen[signature]
            finding.command = command(runner.settings, finding.problems, self.report.extra.get("custom_library", False))
            return finding

        # As it was seen: what stands in the report where the search is interrupted.
        unexplained = named(Finding(kind, text, one.op, row, tactic, device, [str(one)], str(one)))
        with self._lock:
            self.report.findings.append(unexplained)
        finding = named(runner.explain(reason, problem, before, min(deadline + 20, time.monotonic() + 60)))
        with self._lock:
            if self._stop.is_set():
                return
            places = [i for i, listed in enumerate(self.report.findings) if listed is unexplained]
            self.report.findings[places[0]] = finding
            self._write("finding", {"finding": kind} | {k: v for k, v in asdict(finding).items() if k != "kind"})

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.write(kind, content)


def command(settings: Settings, problems: Sequence[str], with_library: bool = True) -> str:
    """The command line that repeats a finding."""
    words = ["bertfuse", "qualify", "--devices", settings.device]
    if with_library:
        words += ["--library", settings.library]
    if settings.patience != Settings.patience:
        words += ["--patience", f"{settings.patience:g}"]
    for problem in problems:
        words += ["--problem", problem]
    return shlex.join(words)


def draws_for(
    devices: Mapping[str, Sequence[str]], seed: int, dtypes: Sequence[str], oracle: str = "numpy"
) -> dict[str, Draw]:
    """A supply of problems for each device, of the ops that are given for it, as large as the oracle can do."""
    found = {}
    for number, (name, ops) in enumerate(devices.items()):
        kind, _, index = name.partition(":")
        gpu = kind == "cuda"
        count = (driver.multiprocessors(int(index)) if gpu else 0) or 132
        scale, largest = (1.0, _TORCH_SCALE if oracle == "torch" else 1.0) if gpu else (_CPU_SCALE, 1.0)
        found[name] = Draw(seed + number * 1_000_003, ops, dtypes, count, scale, largest)
    return found


def share_out(devices: Sequence[str], workers: int) -> dict[str, int]:
    """How many workers each device gets: GPUs alike, the CPU an eighth beside them."""
    gpus = [name for name in devices if name != "cpu"]
    if not gpus:
        return {name: workers for name in devices}
    found = {"cpu": max(1, workers // 8)} if "cpu" in devices else {}
    left = max(len(gpus), workers - sum(found.values()))
    return found | {name: max(1, left // len(gpus)) for name in gpus}
