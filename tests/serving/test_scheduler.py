"""Scheduler: who waits when a run can start is computed together, each gets its own answer, nobody waits for ever."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bertfuse.inference.batches import ragged_batches, token_batches
from bertfuse.serving.scheduler import Job, Limits, Scheduler
from bertfuse.serving.work import Work


def work(*lengths: int, model: int = 0, what: str = "vectors") -> Work:
    return Work(model, what, np.array(lengths, np.int32), np.zeros(sum(lengths), np.int32))


def scheduler(
    most: int = 16, ragged: bool = True, waiting: int = 1000, share: int = 1, runs: int = 1 << 30
) -> Scheduler:
    def cut(lengths, most):  # type: ignore[no-untyped-def]
        return ragged_batches(lengths, most) if ragged else token_batches(lengths, most, None, most)

    return Scheduler([Limits(cut, most, share)] * 2, waiting, most_runs=runs)


def put(queue: Scheduler, *works: Work) -> list[Job]:
    jobs = [Job(given, lambda *_: None) for given in works]
    assert all(queue.put(job) for job in jobs)
    return jobs


@pytest.mark.parametrize("ragged", [True, False])
def test_a_lone_request_gets_the_batches_that_the_encoder_makes(ragged: bool) -> None:
    seed = random.randrange(1 << 30)
    lengths = [random.Random(seed).randint(1, 20) for _ in range(60)]
    queue = scheduler(64, ragged)
    put(queue, work(*lengths))
    want = list(ragged_batches(lengths, 64) if ragged else token_batches(lengths, 64, None, 64))
    for rows in want:
        batch = queue.take()
        assert batch is not None and [part.tolist() for part in batch.rows] == [rows.tolist()], f"seed {seed}"
    assert len(queue) == 0


def test_requests_that_wait_are_computed_together_but_not_other_models_or_outputs() -> None:
    queue = scheduler()
    jobs = put(queue, work(3), work(4, model=1), work(5), work(2, what="tokens"), work(2))
    assert [queue.take().jobs for _ in range(3)] == [[jobs[0], jobs[2], jobs[4]], [jobs[1]], [jobs[3]]]  # type: ignore[union-attr]


def test_threads_share_what_waits() -> None:
    """Of several requests a thread takes its part; a request that is alone is cut as Encoder cuts it."""
    queue = scheduler(64, share=2)
    jobs = put(queue, *[work(4)] * 8)
    taken = [queue.take() for _ in range(3)]
    assert [len(batch.jobs) for batch in taken if batch] == [4, 2, 1]
    assert [job for batch in taken if batch for job in batch.jobs] == jobs[:7]
    alone = scheduler(64, share=2)
    put(alone, work(*[4] * 8))
    batch = alone.take()
    assert batch is not None and len(batch.rows[0]) == 8


def test_a_large_request_lets_small_ones_pass_after_each_part() -> None:
    queue = scheduler(10)
    large, small = put(queue, work(*[10] * 5), work(1))
    taken = [queue.take() for _ in range(3)]
    assert [batch.jobs for batch in taken if batch] == [[large], [small], [large]]


def test_limits_cancelled_jobs_and_the_end() -> None:
    queue = scheduler(waiting=2)
    first, second = put(queue, work(1), work(2))
    assert not queue.put(Job(work(1), lambda *_: None))
    queue.cancel(first)
    batch = queue.take()
    assert batch is not None and batch.jobs == [second]
    assert queue.take() is None


def test_no_more_runs_than_may_be() -> None:
    runs = random.randint(1, 4)
    queue = scheduler(1, runs=runs)
    put(queue, *[work(1)] * (runs + 2))
    assert all([queue.take() for _ in range(runs)])
    assert not queue.ready and queue.take() is None and len(queue) == 2
    queue.ran()
    assert queue.ready and queue.take() and queue.take() is None


def test_any_order_of_sizes_is_computed_once_and_within_the_limit() -> None:
    seed = random.randrange(1 << 30)
    source = random.Random(seed)
    queue = scheduler(32, ragged=source.random() < 0.5, share=source.randint(1, 3))
    jobs: list[Job] = []
    seen: dict[tuple[int, int], int] = {}
    while len(jobs) < 100 or len(queue):
        if len(jobs) < 100 and (not len(queue) or source.random() < 0.6):
            jobs += put(queue, work(*[source.randint(1, 12) for _ in range(source.randint(1, 9))]))
            continue
        batch = queue.take()
        assert batch is not None
        lengths = [job.work.lengths[row] for job, rows in zip(batch.jobs, batch.rows, strict=True) for row in rows]
        assert sum(lengths) <= 32 or len(lengths) == 1, f"seed {seed}"
        for job, rows in zip(batch.jobs, batch.rows, strict=True):
            for row in rows:
                seen[jobs.index(job), row] = seen.get((jobs.index(job), row), 0) + 1
    assert len(seen) == sum(len(job.work.lengths) for job in jobs) and set(seen.values()) == {1}, f"seed {seed}"
