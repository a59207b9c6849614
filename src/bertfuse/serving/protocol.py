"""uvicorn's HTTP protocol, with limits that it lacks: of connections that ask nothing, of the time in which a request
must arrive, and of its head's size."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ARRIVAL = 60.0  # seconds from a request's first byte, or from the connection, to its last byte
HEAD = 64 << 10  # bytes of a request's line and headers, beyond which its connection is closed


class Protocol(HttpToolsProtocol):
    """A connection that is opened and left, or whose request drips in, is closed after ARRIVAL seconds.

    Where there are as many as the limit allows, whichever has been without a whole request for longest makes way.
    """

    # Of this process, longest idle first: keys without values.
    _idle: ClassVar[dict[Protocol, None]] = {}
    _late: asyncio.TimerHandle | None = None
    _head = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(ARRIVAL, transport.abort)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency and self._idle:
            next(iter(self._idle)).make_way()
        self._idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
        if self._in_head and self._head > HEAD and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        if self._late is None:
            self._late = self.loop.call_later(ARRIVAL, self.transport.abort)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arrived()
        if not self.cycle.response_complete:
            self._idle.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else one follows that has come already
            self._idle[self] = None

    def make_way(self) -> None:
        self._idle.pop(self, None)
        self.connections.discard(self)  # it leaves when the loop comes to it, and counts no more
        self.transport.abort()

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
