"""Work in threads, ahead of whoever takes its results, which come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(
    executor: Executor | None, work: Callable[[Item], Result], items: Iterable[Item], depth: int
) -> Iterator[Result]:
    """`work` of each item, in order; at most `depth` items are under way or done and not yet taken.

    Items are drawn in the caller's thread, while fewer than that are. Without an executor work is done when its
    result is taken. What raises, raises here; items behind it are dropped.
    """
    if executor is None:
        yield from map(work, items)
        return
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(executor.submit(work, item))
            if len(waiting) >= depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
