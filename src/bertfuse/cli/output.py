"""How commands speak: steps and errors on stderr, results on stdout, as tables or as JSON."""

from __future__ import annotations

import functools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderHook
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from bertfuse.errors import BertfuseError, without_onnxruntime
from bertfuse.printable import printable

BAD_INPUT, INTERRUPTED = 2, 128 + signal.SIGINT


@dataclass(frozen=True)
class _Printable:
    """What `shown` renders to, without anything that steers the terminal but rich's own codes."""

    shown: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.shown, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _PrintableHook(RenderHook):
    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Printable(shown) for shown in renderables]


def _console(**options: Any) -> Console:
    """Through which every message and table goes: names in them come from the user's files."""
    made = Console(highlight=False, **options)
    made.push_render_hook(_PrintableHook())
    return made


def stderr() -> Console:
    return _console(stderr=True, soft_wrap=True)


def stdout() -> Console:
    # Into a file or a pipe there is no width to keep to, and rich would assume 80 columns.
    return _console(width=None if sys.stdout.isatty() else 140)


class Steps:
    """A spinner for the step at hand; each finished step stays as a line with its time. Call it to start a step."""

    def __init__(self, silent: bool = False) -> None:
        self._console = None if silent else stderr()
        self._status: Any = None
        self._text, self._start = "", 0.0

    def __call__(self, text: str) -> None:
        self._finish("[green]done[/]")
        if self._console is None:
            return
        self._text, self._start = text, time.perf_counter()
        self._status = self._console.status(escape(text))
        self._status.start()

    def _finish(self, mark: str) -> None:
        if self._status is None:
            return
        self._status.stop()
        self._status = None
        self._console.print(f"{mark} {escape(self._text)} ({time.perf_counter() - self._start:.1f} s)")

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._finish("[green]done[/]" if kind in (None, typer.Exit) else "[red]failed[/]")


def print_json(data: Any) -> None:
    """One JSON document on stdout; what is not finite becomes a string, since JSON has no word for it."""
    sys.stdout.write(json.dumps(_plain(data), indent=2, allow_nan=False) + "\n")


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and data - data != 0:
        return str(data)
    return data


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A rich table whose first column is text and whose others are numbers."""
    made = Table(title=title or None, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*(escape(printable(cell)) for cell in row))
    return made


def one_line(error: BaseException) -> str:
    return printable(" ".join(str(error).split())) or type(error).__name__


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes bad input one line on stderr and exit code 2 (and, with --json, {"error": ...} on stdout); Ctrl-C, a line
    and exit code 130.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (BertfuseError, OSError, MemoryError, ModuleNotFoundError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            if isinstance(error, ModuleNotFoundError):
                error = without_onnxruntime(error)
            message = one_line(error)
            print(f"bertfuse: {message}", file=sys.stderr)
            if options.get("as_json"):
                print_json({"error": message})
            raise typer.Exit(BAD_INPUT) from None
        except (KeyboardInterrupt, ImportError) as error:
            if not _is_interrupt(error):
                raise
            print("bertfuse: interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    return run


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it is a Ctrl-C, or what came of one: packages in C make it an ImportError of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
