"""A front's side of the engines: asks the one with the least to do, and asks again when an engine dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .wire import Frames, of_cancel, of_work, to_result
from .work import Answer, EngineError, Work

RECONNECT = 0.05  # seconds between attempts
# A request during whose computing so many engines died is taken to be the reason.
MOST_DEATHS = 3


class Asks(Protocol):
    """What the routes need of engines, whatever is between: sockets here, Ray's handles in a cluster."""

    @property
    def ready(self) -> bool:
        """Whether an engine answers."""
        ...

    async def ask(self, work: Work, timeout: float) -> Answer:
        """Raises EngineFull, EngineError, or TimeoutError after `timeout` seconds."""
        ...


class Gone(Exception):
    """The engine ended before it answered."""


class _Engine:
    """A connection to one engine, made anew whenever it is lost."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        self._path, self._changed = path, changed
        self._frames: Frames | None = None
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._number = 0
        self.tokens = 0  # of requests without an answer
        self._task = asyncio.create_task(self._connect())

    @property
    def connected(self) -> bool:
        return self._frames is not None

    async def ask(self, work: Work, timeout: float) -> Answer:
        assert self._frames is not None
        loop = asyncio.get_running_loop()
        self._number = number = self._number + 1
        self._asked[number] = future = loop.create_future()
        late = loop.call_later(timeout, _expire, future)
        self.tokens += work.tokens
        self._frames.send(of_work(number, work))
        try:
            return await future
        except (asyncio.CancelledError, TimeoutError):
            if self._frames is not None:
                self._frames.send(of_cancel(number))
            raise
        finally:
            late.cancel()
            self._asked.pop(number, None)
            self.tokens -= work.tokens

    def close(self) -> None:
        self._task.cancel()
        if self._frames is not None and self._frames.transport is not None:
            self._frames.transport.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                _, self._frames = await loop.create_unix_connection(lambda: Frames(self._got, self._lost), self._path)
                self._changed()
                return
            await asyncio.sleep(RECONNECT)

    def _got(self, kind: int, body: bytes) -> None:
        number, result = to_result(kind, body)
        future = self._asked.get(number)
        if future is None or future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _lost(self) -> None:
        self._frames = None
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Gone())
        self._task = asyncio.get_running_loop().create_task(self._connect())


def _expire(future: asyncio.Future[Answer]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class Engines:
    """All engines, by the Unix sockets that they listen on. `retried` is called when a request is asked again."""

    def __init__(self, paths: Sequence[str], retried: Callable[[], None] = lambda: None) -> None:
        self._up = asyncio.Event()
        self._retried = retried
        self._engines = [_Engine(path, self._up.set) for path in paths]

    @property
    def ready(self) -> bool:
        return any(engine.connected for engine in self._engines)

    async def ask(self, work: Work, timeout: float) -> Answer:
        """A request changes nothing, so that asking twice does no harm: an engine's death is not seen from outside."""
        end, deaths = time.monotonic() + timeout, 0
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            found = [engine for engine in self._engines if engine.connected]
            if not found:
                self._up.clear()
                with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._up.wait(), left)
                continue
            try:
                return await min(found, key=lambda engine: engine.tokens).ask(work, left)
            except Gone:
                deaths += 1
                self._retried()
                if deaths >= MOST_DEATHS:
                    raise EngineError(f"{deaths} engine processes ended while they computed this request") from None

    async def wait_ready(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while not self.ready and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return self.ready

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
