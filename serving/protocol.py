"""uvicorn's HTTP protocol, with two limits that it lacks: the time in which a request must arrive, its head's size."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ARRIVAL = 60.0  # seconds from a request's first byte, or from the connection, to its last byte
HEAD = 64 << 10  # bytes of a request's line and headers, beyond which its connection is closed


class Protocol(HttpToolsProtocol):
    """A connection that is opened and left, or whose request drips in, is closed after ARRIVAL seconds."""

    _late: asyncio.TimerHandle | None = None
    _head = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(ARRIVAL, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
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
        super().on_message_complete()

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
