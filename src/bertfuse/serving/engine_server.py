"""An engine behind a Unix socket: what fronts send is queued, answers go back to whom they belong."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from .engine import Engine
from .scheduler import Job
from .wire import CANCEL, Frames, of_result, to_work
from .work import Answer, EngineFull

# A thread that wants the interpreter's lock waits so long for one that computes in Python: by default 5 ms, which is
# more than a small batch takes.
SWITCH_INTERVAL = 0.0005


class EngineServer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[Frames, dict[int, Job]] = {}
        self._done: list[tuple[Job, Answer | Exception]] = []
        self._lock = threading.Lock()
        sys.setswitchinterval(SWITCH_INTERVAL)

    async def listen(self, path: str) -> Any:
        """The listening server, on the Unix socket `path`."""
        return await self._loop.create_unix_server(lambda: Frames(self._got, self._lost), path, backlog=256)

    def _got(self, front: Frames, kind: int, body: bytes) -> None:
        jobs = self._jobs.setdefault(front, {})
        if kind == CANCEL:
            number = int.from_bytes(body, sys.byteorder)
            if number in jobs:
                self._engine.cancel(jobs.pop(number))
            return
        number, work = to_work(body)
        job = self._engine.submit(work, self._finished)
        if job is None:
            front.send(of_result(number, EngineFull()))
            return
        job.owner = (front, number)
        jobs[number] = job

    def _lost(self, front: Frames) -> None:
        for job in self._jobs.pop(front, {}).values():
            self._engine.cancel(job)

    def _finished(self, job: Job, result: Answer | Exception) -> None:
        """In a thread of the engine. All answers of a batch cost the loop one waking."""
        with self._lock:
            self._done.append((job, result))
            alone = len(self._done) == 1
        if alone:
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        parts: dict[Frames, list[bytes]] = {}
        for job, result in done:
            front, number = job.owner
            self._jobs.get(front, {}).pop(number, None)
            parts.setdefault(front, []).append(of_result(number, result))
        for front, messages in parts.items():
            front.send(b"".join(messages) if len(messages) > 1 else messages[0])
