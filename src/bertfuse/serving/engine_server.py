"""An engine behind a Unix socket: its own threads read what fronts send, run it, and write the answers."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable

from .engine import Engine
from .scheduler import Job
from .wire import CANCEL, Messages, of_result, to_work
from .work import Answer, EngineFull

# A thread that wants the interpreter's lock waits so long for one that computes in Python: by default 5 ms, which is
# more than a small batch takes.
SWITCH_INTERVAL = 0.0005
READ = 1 << 18  # bytes at a time


class EngineServer:
    """Listens on the Unix socket `path`."""

    def __init__(self, engine: Engine, path: str) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        threading.excepthook = _end
        self._engine = engine
        self._done = threading.local()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(256)
        self._listener.setblocking(False)
        engine.inbox.flush = self._flush
        engine.inbox.watch(self._listener.fileno(), select.EPOLLIN, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone again, or there are too many files
            _Front(self._engine, self._listener.accept()[0], self._finished)
        self._engine.inbox.again(self._listener.fileno(), select.EPOLLIN)

    def _finished(self, job: Job, result: Answer | Exception) -> None:
        """In a thread of the engine, which sends all answers of a batch together."""
        if not hasattr(self._done, "jobs"):
            self._done.jobs = []
        self._done.jobs.append((job, result))

    def _flush(self) -> None:
        done, self._done.jobs = getattr(self._done, "jobs", []), []
        messages: dict[_Front, list[bytes]] = {}
        for job, result in done:
            front, number = job.owner
            front.jobs.pop(number, None)
            messages.setdefault(front, []).append(of_result(number, result))
        for front, parts in messages.items():
            front.send(b"".join(parts) if len(parts) > 1 else parts[0])


def _end(failed: threading.ExceptHookArgs) -> None:
    """Without one of its threads an engine might answer nobody: it is started again."""
    sys.excepthook(failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    os._exit(1)


class _Front:
    """A connection of a front: one thread at a time reads it, any writes to it."""

    def __init__(self, engine: Engine, connection: socket.socket, done: Callable[[Job, Answer | Exception], None]):
        self.jobs: dict[int, Job] = {}
        self._engine, self._done = engine, done
        self._messages = Messages()
        self._socket, self._out = connection, connection.dup()  # of each the inbox tells by itself
        connection.setblocking(False)
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._unsent: deque[memoryview] = deque()
        engine.inbox.watch(self._out.fileno(), 0, self._send_rest)
        engine.inbox.watch(self._socket.fileno(), select.EPOLLIN, self._read)

    def send(self, message: bytes) -> None:
        """Never waits: what a front is too slow for leaves later. Does nothing where it is gone."""
        with self._lock:
            self._unsent.append(memoryview(message))
            if len(self._unsent) == 1:
                self._send()

    def _send_rest(self) -> None:
        with self._lock:
            self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                first = self._unsent[0]
                sent = self._out.send(first)
                if sent < len(first):
                    self._unsent[0] = first[sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            self._engine.inbox.again(self._out.fileno(), select.EPOLLOUT)
        except OSError:
            self._unsent.clear()

    def _read(self) -> None:
        with self._reading:  # an event of a file that was closed may come to the next file of its number
            try:
                data = self._socket.recv(READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lost()
                return
            for kind, body in self._messages.of(data):
                self._got(kind, body)
            self._engine.inbox.again(self._socket.fileno(), select.EPOLLIN)

    def _got(self, kind: int, body: bytes) -> None:
        if kind == CANCEL:
            job = self.jobs.pop(int.from_bytes(body, sys.byteorder), None)
            if job is not None:
                self._engine.cancel(job)
            return
        number, work = to_work(body)
        job = self.jobs[number] = Job(work, self._done, (self, number))
        if not self._engine.put(job):
            del self.jobs[number]
            self.send(of_result(number, EngineFull()))

    def _lost(self) -> None:
        for job in list(self.jobs.values()):
            self._engine.cancel(job)
        with self._lock:
            self._unsent.clear()
            for end in (self._socket, self._out):
                self._engine.inbox.forget(end.fileno())
                end.close()
