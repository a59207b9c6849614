"""A server's front and engine in this process: requests without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertfuse.serving.app import Access, application
from bertfuse.serving.checks import Limits
from bertfuse.serving.engine import Engine
from bertfuse.serving.front import Front
from bertfuse.serving.metrics import Metrics
from bertfuse.serving.options import apart
from bertfuse.serving.served import ModelOptions
from bertfuse.serving.wire import of_result, of_work, to_result, to_work
from bertfuse.serving.work import Answer, EngineFull, Work


class Engines:
    """Asks `engine`, with what goes between processes put into bytes and read again."""

    ready = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ask(self, work: Work, timeout: float) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer | Exception] = loop.create_future()
        _, sent = to_work(of_work(7, work)[5:])

        def done(_: Any, answer: Answer | Exception) -> None:
            made = of_result(7, answer)
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(to_result(made[4], made[5:])[1]))

        if self._engine.submit(sent, done) is None:
            raise EngineFull
        found = await asyncio.wait_for(future, timeout)
        if isinstance(found, Exception):
            raise found
        return found


class Here:
    """Answers requests; one loop for all of them, as a front's."""

    def __init__(self, given: list[Path | ModelOptions], limits: Limits, **options: Any) -> None:
        asked = [ModelOptions(str(one), one.name) if isinstance(one, Path) else one for one in given]
        models = [part for one in asked for part in apart(one, False)]
        self.engine = Engine(models, threads=2, **options)
        self.loop = asyncio.new_event_loop()
        self.front = Front(self.engine.served, limits, Engines(self.engine), Metrics())
        self._app = application(self.front, Access())

    def __call__(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        return self.loop.run_until_complete(self.ask(path, body))

    async def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        waiting = [{"type": "http.request", "body": sent}]
        got: list[Any] = []

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            got.append(message)

        scope = {"type": "http", "method": "GET" if body is None else "POST", "path": path, "headers": []}
        await self._app(scope | {"query_string": b"", "root_path": ""}, receive, send)
        return got[0]["status"], json.loads(b"".join(message.get("body", b"") for message in got[1:]))

    async def close(self) -> None:
        if self.front.pictures is not None:
            await self.front.pictures.close()


@contextmanager
def here(*models: Path | ModelOptions, limits: Limits | None = None, **options: Any) -> Iterator[Here]:
    """A server of folders."""
    made = Here(list(models), limits or Limits(), **options)
    try:
        yield made
    finally:
        made.loop.run_until_complete(made.close())
        made.loop.close()
        made.engine.close()
