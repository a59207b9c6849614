"""A process that checks problems: what a kernel does to it costs this process and no other."""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .problem import Problem, parse

if TYPE_CHECKING:
    from typing_extensions import Self

PRELOADED = ["bertfuse.qualify.tasks"]
_STARTING = 120.0  # seconds for a process to load libraries and a GPU's context
_PREPARING = (
    300.0  # for inputs and reference of one problem; long ones are of few problems, on a machine with other work
)
_SEVERAL_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Settings:
    """What a worker process is told.

    Attributes:
        library: the shared library with the kernels.
        device: "cpu" or "cuda:0".
        reference: "numpy", or "torch" for large problems on the same GPU.
        patience: seconds that one problem may take; then it hangs.
        milliseconds: for which a tactic is measured (tuning.py).
        task: "module:name" of what a worker does with each problem: called with the settings, it gives an object with
            `tactics`, `name` and `check`, as Checker has them.
    """

    library: str
    device: str
    reference: str = "numpy"
    patience: float = 20.0
    milliseconds: float = 20.0
    task: str = "bertfuse.qualify.tasks:checks"


@dataclass
class Fault:
    """How a worker ended: "signal", "exit", "hang" or "device", what is known of it, and what it had been given."""

    kind: str
    text: str
    problem: str
    tactic: str = ""
    before: list[str] = field(default_factory=list)  # problems that the process had run, in their order


@dataclass
class Answer:
    """What a batch gave: a verdict (check.Verdict as a dict) for each problem that ended, and the fault, if any."""

    verdicts: list[dict[str, Any]] = field(default_factory=list)
    fault: Fault | None = None
    rest: list[str] = field(default_factory=list)  # problems that were not reached


class Worker:
    """One worker process, replaced after a fault."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._process: Any = None
        self._pipe: Connection | None = None
        self._said: Path | None = None
        self._ran: list[str] = []
        self._has_checked = False  # any problem, in this process or one before
        self._lock = threading.RLock()  # a worker may be stopped while another thread starts it

    def _start(self) -> None:
        with self._lock:
            pipe = self._launch()
        # Without the lock: stop() does not wait for a process that takes long to start, or never does.
        try:
            ready = pipe.recv() if pipe.poll(_STARTING) else "it did not answer"
        except (EOFError, OSError):
            ready = "it ended"
        if ready != "ready":
            raise self._failed_to_start(ready)

    def _launch(self) -> Connection:
        context = get_context("forkserver")
        context.set_forkserver_preload(["__main__", *PRELOADED])
        ours, theirs = context.Pipe()
        handle, name = tempfile.mkstemp(prefix="bertfuse-worker-")
        os.close(handle)
        self._said, self._ran = Path(name), []
        with _one_thread():  # as many processes as cores, so each has one
            self._process = context.Process(target=_serve, args=(theirs, self.settings, name), daemon=True)
            self._process.start()
        theirs.close()
        self._pipe = ours
        return ours

    def _failed_to_start(self, reason: str) -> RuntimeError:
        said = self._last_words()
        self.stop()
        return RuntimeError(f"a worker for {self.settings.device} does not start: {reason} {said}".strip())

    def run(
        self, problems: Sequence[str], skipped: Sequence[tuple[str, str, str]] = (), seconds: float = math.inf
    ) -> Answer:
        """Checks a batch; a fault ends it. Raises RuntimeError where no worker process starts.

        `skipped` are (op, dtype, tactic) that are not run. After so many seconds a kernel that is under way is still
        waited for and checked, and this worker's first problem; a reference is not: that of many rows takes long.
        """
        until = time.monotonic() + seconds
        if self._process is None:
            self._start()
        pipe = self._pipe
        assert pipe is not None
        answer, waiting, current, tactic, preparing = Answer(), list(problems), "", "", False
        try:
            pipe.send((list(problems), list(skipped)))
            while True:
                patience = max(self.settings.patience, _PREPARING) if preparing else self.settings.patience
                left = max(0.0, until - time.monotonic()) if preparing and self._has_checked else math.inf
                if not pipe.poll(min(patience, left)):
                    if left < patience:
                        self.stop()
                        answer.rest = list(problems[len(problems) - len(waiting) - 1 :])
                        return answer
                    answer.fault = self._end(current, tactic, "hang", f"did not end within {patience:g} seconds")
                    break
                kind, *content = pipe.recv()
                preparing = kind == "prepare"
                if kind == "end":
                    return answer
                if kind == "taken":
                    waiting.pop(0)
                elif kind == "prepare":
                    current, tactic = content[0], ""
                elif kind == "start":
                    current, tactic = content
                elif kind == "verdict":
                    answer.verdicts.append(content[0])
                    self._ran.append(current)
                    self._has_checked = True
                    if time.monotonic() > until:
                        self.stop()
                        break
                elif kind == "device":
                    answer.fault = self._end(current, tactic, "device", content[0])
                    break
        except (EOFError, OSError):  # the process ended
            answer.fault = self._end(current, tactic, *self._how_it_ended())
        taken = parse(problems[len(problems) - len(waiting) - 1]) if len(waiting) < len(problems) else None
        if taken is not None and taken.onwards:
            answer.rest.append(str(taken.with_tactic(parse(current).tactic + 1, onwards=True)))
        answer.rest += waiting
        return answer

    @property
    def ran(self) -> list[str]:
        """The problems that the process has run, in their order."""
        return list(self._ran)

    def _how_it_ended(self) -> tuple[str, str]:
        if self._process is None:
            return "exit", "was stopped"
        self._process.join(10)
        code, said = self._process.exitcode, self._last_words()
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return "signal", f"ended the process with {name}{': ' + said if said else ''}"
        return "exit", f"ended the process with exit code {code}{': ' + said if said else ''}"

    def _last_words(self) -> str:
        """The end of what the process wrote to stderr, on one line."""
        try:
            return " ".join(self._said.read_text(errors="replace").split())[-300:] if self._said else ""
        except OSError:
            return ""

    def _end(self, problem: str, tactic: str, kind: str, text: str) -> Fault:
        fault = Fault(kind, text, problem, tactic, list(self._ran))
        self.stop()
        return fault

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the process, at once; `run` starts another."""
        with self._lock:
            process, self._process = self._process, None
            pipe, self._pipe = self._pipe, None
            said, self._said = self._said, None
            if process is not None and process.pid is not None:
                process.kill()
                process.join()  # not close(): at the program's end multiprocessing joins it once more
            if pipe is not None:
                pipe.close()
            if said is not None:
                said.unlink(missing_ok=True)


class _one_thread:
    """The variables that keep BLAS to one thread, for a process that is started in the block."""

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in _SEVERAL_THREADS}
        os.environ.update(dict.fromkeys(_SEVERAL_THREADS, "1"))

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(pipe: Connection, settings: Settings, said: str) -> None:
    """The process's main function: batches in, verdicts out."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handle = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)  # what a kernel prints is not for the command's output
    os.dup2(handle, 2)
    try:
        module, _, name = settings.task.partition(":")
        task = getattr(importlib.import_module(module), name)(settings)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send("ready")
    while True:
        try:
            problems, skipped = pipe.recv()
        except (EOFError, OSError):
            return
        for text in problems:
            pipe.send(("taken",))
            if not _run(pipe, task, parse(text), set(skipped)):
                time.sleep(5)  # until the parent ends this process: its device is gone
                os._exit(1)
        pipe.send(("end",))


def _run(pipe: Connection, task: Any, problem: Problem, skipped: set[tuple[str, str, str]]) -> bool:
    """False where the device no longer works."""
    from .driver import DriverError

    if hasattr(task, "prepare"):  # the reference's time is not the kernel's
        pipe.send(("prepare", str(problem.with_tactic(problem.tactic))))
        task.prepare(problem)
    pipe.send(("start", str(problem.with_tactic(problem.tactic)), ""))
    try:
        for tactic in task.tactics(problem):
            one = problem.with_tactic(tactic)
            name = task.name(one)
            if (one.op, one.dtype, name) in skipped:
                continue
            pipe.send(("start", str(one), name))
            pipe.send(("verdict", asdict(task.check(one))))
    except DriverError as error:
        pipe.send(("device", str(error)))
        return False
    return True


def _end_with_parent() -> None:
    """Ends this process with its parent, the fork server, and so with the command: killed, it leaves none behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
