"""Which texts are computed together: whatever waits when a run can start, up to a number of tokens.

Nothing sleeps for a batch that could start. The texts of several requests are cut into batches as Encoder cuts those of
one call, so that a request that is alone gets the very batches that Encoder makes. A request larger than a batch goes
to the end of the queue after each part, so that small ones do not wait for all of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .work import Answer, Timing, Work

# Parts of a request, in batches, among which texts of like lengths are looked for while others wait.
WINDOW = 4
Part = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # texts of a job, their rows, and the counts as in Answer
Cut = Callable[[Sequence[int], int], Iterator[np.ndarray]]


@dataclass(frozen=True)
class Limits:
    """Of a model's batches.

    Args:
        cut: the rows of each batch of texts of such lengths, longest first, of so many tokens at most.
        max_tokens: of a batch.
        share: among so many threads the requests that wait are divided. Where a core computes two small batches as fast
            as one of their size, a thread that took all that waits would leave the next one without work.
    """

    cut: Cut
    max_tokens: int
    share: int = 1


class Job:
    """A request in an engine. `done` is called once, in any thread, with an Answer or an Exception."""

    def __init__(self, work: Work, done: Callable[[Job, Answer | Exception], None], owner: Any = None) -> None:
        self.work, self.done = work, done
        self.owner = owner  # what whoever put it there likes to note
        self.rows = np.argsort(-work.lengths, kind="stable")  # those that wait, longest first
        self.parts: list[Part] = []
        self.begun = time.monotonic_ns()
        self.ended = False
        self.timing = Timing()
        self._left = len(self.rows)  # without an answer
        self._lock = threading.Lock()

    def add(self, part: Part) -> bool:
        """Whether all texts have an answer with this part; parts come from several threads."""
        with self._lock:
            self.parts.append(part)
            self._left -= len(part[0])
            return not self._left

    def finish(self, result: Answer | Exception) -> None:
        if not self.ended:
            self.ended = True
            self.done(self, result)


@dataclass(frozen=True)
class Batch:
    """Rows of jobs to be computed in one run."""

    jobs: list[Job]
    rows: list[np.ndarray]  # of each job
    waiting: int  # jobs left behind


class Scheduler:
    """A queue of jobs from any thread, taken from as batches by the threads that run them.

    Args:
        limits: of each model.
        max_waiting: jobs that wait at most; `put` refuses more.
        run_of: of Work.kind; those for which it is the same may be computed in one run.
        most_runs: batches that are run at once.
    """

    def __init__(
        self,
        limits: Sequence[Limits],
        max_waiting: int,
        run_of: Callable[[tuple[int, str, int]], Hashable] = lambda kind: kind,
        most_runs: int = 1 << 30,
    ) -> None:
        self._limits, self._max_waiting, self._run_of = limits, max_waiting, run_of
        self._waiting: deque[Job] = deque()
        self._free = most_runs
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, job: Job) -> bool:
        """Whether there was room for it."""
        with self._lock:
            if len(self._waiting) >= self._max_waiting:
                return False
            self._waiting.append(job)
        return True

    def cancel(self, job: Job) -> None:
        """Nobody waits for its answer any more: what of it has not begun is left out."""
        job.ended = True

    def take(self) -> Batch | None:
        """A batch to be run, of which `ran` is to be told; None where none waits, or as many are run as may be."""
        with self._lock:
            while self._waiting and self._waiting[0].ended:
                self._waiting.popleft()
            if not self._waiting or not self._free:
                return None
            self._free -= 1
            return self._next()

    def ran(self) -> None:
        """A batch that was taken has been run."""
        with self._lock:
            self._free += 1

    @property
    def ready(self) -> bool:
        """Whether another thread could take a batch."""
        return bool(self._waiting and self._free)

    def _next(self) -> Batch:
        first = self._waiting[0]
        limits, kind = self._limits[first.work.model], self._run_of(first.work.kind)
        alike = [job for job in self._waiting if not job.ended and self._run_of(job.work.kind) == kind]
        if len(alike) == 1 and len(first.rows) == 1:  # what follows would take longer than a small model runs
            rows, first.rows = first.rows, first.rows[:0]
            self._waiting.remove(first)
            return Batch([first], [rows], len(self._waiting))
        candidates, total = [], 0
        for job in alike:
            rows = job.rows
            if len(alike) > 1 and len(rows) > 1:
                sizes = np.cumsum(job.work.lengths[rows])
                rows = rows[: max(1, int(np.searchsorted(sizes, limits.max_tokens, side="right")))]
                total += int(sizes[len(rows) - 1])
            else:
                total += int(job.work.lengths[rows[0]])
            candidates.append(rows)
            if total >= WINDOW * limits.max_tokens:
                break
        jobs = alike[: len(candidates)]
        owners = np.repeat(np.arange(len(jobs)), [len(rows) for rows in candidates])
        rows = np.concatenate(candidates)
        lengths = np.concatenate([job.work.lengths[part] for job, part in zip(jobs, candidates, strict=True)])
        # A request that is alone is cut as Encoder cuts it.
        most = limits.max_tokens if len(jobs) == 1 else min(limits.max_tokens, -(-int(lengths.sum()) // limits.share))
        # The batch that the first row is in: the longest text of the request that has waited longest.
        cut = (batch for batch in limits.cut(lengths, most) if 0 in batch)
        chosen = next(cut) if len(rows) > 1 else np.zeros(1, np.int64)
        return self._removed(jobs, owners[chosen], rows[chosen])

    def _removed(self, jobs: list[Job], owners: np.ndarray, rows: np.ndarray) -> Batch:
        """The batch of these rows, which wait no more; a job with more of them goes to the end."""
        order = np.argsort(owners, kind="stable")
        owners, rows = owners[order], rows[order]
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        taken, parts, behind = [], [], []
        for owner, part in zip(owners[starts], np.split(rows, starts[1:]), strict=True):
            job = jobs[owner]
            taken.append(job)
            parts.append(part)
            if len(part) == len(job.rows):
                job.rows = job.rows[:0]
            else:
                job.rows = job.rows[~np.isin(job.rows, part)]
                behind.append(job)
        gone = set(map(id, taken))
        kept = deque(job for job in self._waiting if id(job) not in gone)
        kept.extend(behind)
        self._waiting = kept
        return Batch(taken, parts, len(kept))
