"""Work in a process of its own, which may die or hang: whoever asked is told so, and goes on."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Ended:
    """That the process ended before it was asked to, with `exitcode`, or said nothing for `seconds` (exitcode None)."""

    exitcode: int | None
    seconds: float

    def __str__(self) -> str:
        return f"no word for {self.seconds:.0f} s" if self.exitcode is None else f"the process died of {self.exitcode}"


def messages(work: Callable[..., None], arguments: tuple[Any, ...], starting: float, each: float) -> Iterator[Any]:
    """What `work(pipe, *arguments)` sends from a new process, and Ended at last. Close it to end the process.

    It has `starting` seconds for the first message and `each` for every other. Exceptions that it sends are raised.
    """
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    wait = starting
    try:
        while ours.poll(wait):
            message = ours.recv()
            if isinstance(message, Exception):
                raise message
            yield message
            wait = each
        yield Ended(None, wait)
    except EOFError:
        process.join(5)
        yield Ended(process.exitcode, wait)
    finally:
        ours.close()
        if process.is_alive():
            process.kill()
        process.join()
