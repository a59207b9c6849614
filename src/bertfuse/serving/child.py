"""What fronts and engines have in common: a configuration on stdin, then commands; events on stdout, all in JSON lines.

A child ends when stdin does, so that none outlives the process that started it, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import orjson


def configuration() -> dict[str, Any]:
    """The first line of stdin, read byte by byte: what follows is for `commands`."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            sys.exit(0)
        line += part
    return orjson.loads(line)


def say(event: str, **values: Any) -> None:
    os.write(1, orjson.dumps({"event": event, **values}) + b"\n")


async def commands(do: Callable[[dict[str, Any]], None], end: Callable[[], None]) -> None:
    """Calls `do` with each further line, and `end` at the end of stdin."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb"))
    while line := await reader.readline():
        do(orjson.loads(line))
    end()


def run(main: Any) -> None:
    """asyncio.run, by uvloop where that is installed: half the time of a small request is the loop's."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
