"""How far a run is: on one line of stderr that is written anew, where it is wanted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """What is called with each step of something long, and shows it while it lasts: on a terminal alone."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(file=sys.stderr).status("") as status:
        yield lambda step: status.update(escape(step))


class Progress:
    """Texts done of `total`; silent unless `shown`."""

    def __init__(self, total: int | None, shown: bool) -> None:
        self._bar: Any = None
        self._total, self._shown = total, shown

    def __enter__(self) -> Progress:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("texts"), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(file=sys.stderr))
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def add(self, count: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
