"""Batcher: who waits while the model runs is answered together, each with its own answer."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from bertfuse.serving.batcher import Batcher


@dataclass(frozen=True)
class Work:
    name: int
    tokens: int


class Model:
    """Doubles names; its runs wait until they are let go, and all of them are kept."""

    def __init__(self) -> None:
        self.runs: list[list[Work]] = []
        self.go = threading.Event()

    def __call__(self, works: Sequence[Work]) -> list[int]:
        self.runs.append(list(works))
        assert self.go.wait(10)
        if any(work.name < 0 for work in works):
            raise ValueError("a negative name")
        return [2 * work.name for work in works]


async def _settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0.002)


def test_what_waits_is_answered_together_in_order() -> None:
    async def main() -> None:
        model = Model()
        batcher: Batcher[Work, int] = Batcher(model, 10)
        jobs = [asyncio.create_task(batcher(Work(0, 3)))]
        await _settled()  # one that is alone does not wait
        assert [len(run) for run in model.runs] == [1]
        sizes = [4, 4, 4, 50, 1, 9]
        jobs += [asyncio.create_task(batcher(Work(index + 1, size))) for index, size in enumerate(sizes)]
        await _settled()
        model.go.set()
        assert await asyncio.gather(*jobs) == [0, 2, 4, 6, 8, 10, 12]
        assert [[work.tokens for work in run] for run in model.runs] == [[3], [4, 4], [4], [50], [1, 9]]

    asyncio.run(main())


def test_an_error_is_its_batchs_alone_and_who_has_gone_is_left_out() -> None:
    async def main() -> None:
        model = Model()
        batcher: Batcher[Work, int] = Batcher(model, 2)
        jobs = [asyncio.create_task(batcher(Work(name, 1))) for name in (7, 8, -1, 2, 3, 4, 5)]
        await _settled()
        jobs[4].cancel()
        await _settled()
        model.go.set()
        found = await asyncio.gather(*jobs, return_exceptions=True)
        assert found[:2] == [14, 16] and found[5:] == [8, 10]
        assert all(isinstance(error, ValueError) for error in found[2:4])
        assert isinstance(found[4], asyncio.CancelledError)
        assert [[work.name for work in run] for run in model.runs] == [[7, 8], [-1, 2], [4, 5]]
        with pytest.raises(ValueError, match="a negative name"):
            await batcher(Work(-2, 1))
        assert await batcher(Work(6, 1)) == 12  # it goes on

    asyncio.run(main())


def test_any_order_of_sizes() -> None:
    seed = random.randrange(1 << 30)
    source = random.Random(seed)
    works = [Work(name, source.randint(1, 12)) for name in range(200)]

    async def main() -> list[list[Work]]:
        model = Model()
        model.go.set()
        batcher: Batcher[Work, int] = Batcher(model, 16)

        async def later(work: Work) -> int:
            await asyncio.sleep(source.random() / 50)
            return await batcher(work)

        assert await asyncio.gather(*map(later, works)) == [2 * work.name for work in works], f"seed {seed}"
        return model.runs

    runs = asyncio.run(main())
    assert sorted(work.name for run in runs for work in run) == list(range(200)), f"seed {seed}"
    assert all(sum(work.tokens for work in run) <= 16 for run in runs), f"seed {seed}"
