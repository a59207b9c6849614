"""What an engine's threads wait for: files that have something to be read or room to be written to, and a bell."""

from __future__ import annotations

import os
import select
from collections.abc import Callable


class Inbox:
    """Threads wait together, and each event wakes one of them, which handles it itself."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._poll.register(self._bell, select.EPOLLIN | select.EPOLLET)  # every ring is an event; nothing is read
        self.flush: Callable[[], None] = lambda: None  # called by a thread that has run a batch

    def watch(self, file: int, events: int, handler: Callable[[], None]) -> None:
        """Calls `handler` once, in a thread that waits; then not before `again`."""
        self._handlers[file] = handler
        self._poll.register(file, events | select.EPOLLONESHOT)

    def again(self, file: int, events: int) -> None:
        self._poll.modify(file, events | select.EPOLLONESHOT)

    def forget(self, file: int) -> None:
        self._handlers.pop(file, None)
        self._poll.unregister(file)

    def ring(self) -> None:
        """Wakes a thread that waits, or the next that would."""
        os.eventfd_write(self._bell, 1)

    def wait(self) -> None:
        """Until something has been handled, or the bell rings."""
        for file, _ in self._poll.poll():
            handler = self._handlers.get(file)
            if handler is not None:
                handler()
