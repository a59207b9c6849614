"""A front's side of the process that reads images (picture_process.py), which may die of one and is started again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from .checks import RETRY_AFTER, Limits, RequestError
from .served import Served

SECONDS = 20.0  # that one image may take: libraries have formats in which a small file takes minutes
TRIES = 2  # of an image during which the process ended, which something else may have done


class Pictures:
    """Of models by their position."""

    def __init__(self, models: Mapping[int, Served], limits: Limits) -> None:
        folders = {str(index): [served.path, served.image_size] for index, served in models.items()}
        self._settings = {"models": folders, "max_pixels": limits.max_pixels}
        self._most, self._waiting = limits.max_queued, 0
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[tuple[np.ndarray, int]] | None = None

    async def start(self) -> None:
        """So that the first image need not wait for it."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bertfuse.serving.picture_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # libraries complain there of what is broken in a file
        )
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(self._settings) + b"\n")

    async def read(self, model: int, image: bytes, where: str, left: int) -> tuple[np.ndarray, int]:
        """uint8 [height, width, 3] as the model takes it, and how many pixels the image had, `left` at most.

        Raises RequestError, which calls the image `where`.
        """
        if self._waiting >= self._most:
            why = "Too many requests are waiting: try again later."
            raise RequestError(why, 429, "Overloaded", retry_after=RETRY_AFTER)
        self._waiting += 1
        try:
            async with self._lock:
                if self._task is not None:  # of a request that is not waited for any more
                    await asyncio.wait([self._task])
                self._task = asyncio.create_task(self._read(model, image, where, left))
                self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
                return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1

    async def _read(self, model: int, image: bytes, where: str, left: int) -> tuple[np.ndarray, int]:
        asked = orjson.dumps({"model": str(model), "size": len(image), "where": where, "left": left}) + b"\n"
        for _ in range(TRIES):
            if self._process is None or self._process.returncode is not None:
                await self.start()
            try:
                told, pixels = await asyncio.wait_for(self._asked(asked, image), SECONDS)
            except (TimeoutError, asyncio.TimeoutError):
                await self.close()
                raise RequestError(f"{where} takes longer than {SECONDS:g} seconds to read.", param="input") from None
            except (ConnectionError, asyncio.IncompleteReadError):
                await self.close()
                continue
            if "error" in told:
                raise RequestError(told["error"], told["status"], param="input")
            return np.frombuffer(pixels, np.uint8).reshape(told["shape"]), told["pixels"]
        raise RequestError(f"{where} cannot be read as an image: whatever reads it crashes.", param="input")

    async def _asked(self, asked: bytes, image: bytes) -> tuple[dict[str, Any], bytes]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(asked + image)
        await self._process.stdin.drain()
        told = orjson.loads(await self._process.stdout.readuntil(b"\n"))
        return told, await self._process.stdout.readexactly(told["size"])

    async def close(self) -> None:
        """Ends the process; another image starts one."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
