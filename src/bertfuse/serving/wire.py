"""Messages between fronts and engines of one machine, on a Unix socket: a header, then the arrays' bytes.

Numbers are in the machine's own order: both ends are processes of one `bertfuse serve`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator

import numpy as np

from .work import WHAT, Answer, EngineError, EngineFull, Timing, Work

_SIZE = struct.Struct("=IB")  # bytes that follow, kind of message
# id, model, what, which arrays there are, texts, tokens, tokens left out, an image's height and width
_WORK = struct.Struct("=QBBBIIIII")
_TYPED, _SEEN, _PICTURED = 1, 2, 4
_ID = struct.Struct("=Q")
_ANSWER = struct.Struct("=QIIIQQIII")  # id, rows, columns, counts, and Timing's
WORK, CANCEL, ANSWER, ERROR, FULL = range(5)


def _framed(kind: int, *parts: bytes) -> bytes:
    return b"".join((_SIZE.pack(sum(map(len, parts)), kind), *parts))


def of_work(number: int, work: Work) -> bytes:
    given = [(_TYPED, work.type_ids), (_SEEN, work.seen), (_PICTURED, work.pixels)]
    sizes = len(work.lengths), len(work.ids), work.left_out
    size = (0, 0) if work.pixels is None else work.pixels.shape[1:3]
    flags = sum(flag for flag, array in given if array is not None)
    head = _WORK.pack(number, work.model, WHAT.index(work.what), flags, *sizes, *size)
    arrays = [array.tobytes() for _, array in given if array is not None]
    return _framed(WORK, head, work.lengths.tobytes(), work.ids.tobytes(), *arrays)


def to_work(body: bytes) -> tuple[int, Work]:
    number, model, what, flags, texts, tokens, left_out, height, width = _WORK.unpack_from(body)
    at = _WORK.size

    def array(kind: type, count: int) -> np.ndarray:
        nonlocal at
        found = np.frombuffer(body, kind, count, at)
        at += found.nbytes
        return found

    lengths, ids = array(np.int32, texts), array(np.int32, tokens)
    types = array(np.uint8, tokens) if flags & _TYPED else None
    seen = array(np.int32, texts) if flags & _SEEN else None
    pixels = array(np.uint8, 3 * texts * height * width) if flags & _PICTURED else None
    if pixels is not None:
        pixels = pixels.reshape(texts, height, width, 3)
    return number, Work(model, WHAT[what], lengths, ids, types, left_out, seen, pixels)


def of_cancel(number: int) -> bytes:
    return _framed(CANCEL, _ID.pack(number))


def of_result(number: int, result: Answer | Exception) -> bytes:
    if isinstance(result, EngineFull):
        return _framed(FULL, _ID.pack(number))
    if isinstance(result, Exception):
        return _framed(ERROR, _ID.pack(number), str(result).encode(errors="replace"))
    rows, counts, timing = result.rows, result.counts, result.timing
    given = 0 if counts is None else len(counts)
    head = _ANSWER.pack(
        number,
        *rows.shape,
        given,
        timing.queue,
        timing.run,
        timing.batch_requests,
        timing.batch_tokens,
        timing.waiting,
    )
    return _framed(ANSWER, head, rows.tobytes(), b"" if counts is None else counts.tobytes())


def to_result(kind: int, body: bytes) -> tuple[int, Answer | Exception]:
    if kind == FULL:
        return _ID.unpack_from(body)[0], EngineFull()
    if kind == ERROR:
        return _ID.unpack_from(body)[0], EngineError(body[_ID.size :].decode())
    number, rows, columns, given, *timing = _ANSWER.unpack_from(body)
    at = _ANSWER.size
    found = np.frombuffer(body, np.float32, rows * columns, at).reshape(rows, columns)
    counts = np.frombuffer(body, np.int32, given, at + 4 * rows * columns) if given else None
    return number, Answer(found, counts, Timing(*timing))


class Messages:
    """What has come of a connection, as messages: `of` gives each one's kind and body."""

    def __init__(self) -> None:
        self._buffer = b""

    def of(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        data = self._buffer + data if self._buffer else data
        at, end = 0, len(data)
        while end - at >= _SIZE.size:
            size, kind = _SIZE.unpack_from(data, at)
            begin = at + _SIZE.size
            if end - begin < size:
                break
            at = begin + size
            yield kind, data[begin:at]
        self._buffer = data[at:]


class Frames(asyncio.Protocol):
    """A front's end of a connection: `got` gets each message's kind and body, `lost` that the other end is gone."""

    def __init__(self, got: Callable[[int, bytes], None], lost: Callable[[], None]) -> None:
        self._got, self._lost = got, lost
        self._messages = Messages()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        for kind, body in self._messages.of(data):
            self._got(kind, body)

    def send(self, message: bytes) -> None:
        """Does nothing where the other end is gone."""
        if self.transport is not None:
            self.transport.write(message)
