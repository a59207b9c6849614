"""Findings on disk as they come: JSON lines, each written at once and whole, so that a killed run has lost nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import bertfuse
from bertfuse.errors import BertfuseError

MARK = "bertfuse qualify"


class Journal:
    """Appends to a file of an earlier run, or begins one. Raises BertfuseError where `path` is some other file."""

    def __init__(self, path: Path, **about: Any) -> None:
        self.path = path
        if path.exists():
            if not path.is_file() or (path.stat().st_size and not _is_journal(path)):
                raise BertfuseError(
                    f"{path}: is not a file of 'bertfuse qualify', so it is left as it is; choose another -o"
                )
            cut = _last_line_is_cut(path)
        else:
            cut = False
            if not path.parent.is_dir():
                raise BertfuseError(f"{path}: there is no folder {path.parent}")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if cut:
            os.write(self._file, b"\n")
        self.write(MARK, {"version": bertfuse.__version__, **about})

    def write(self, kind: str, content: dict[str, Any]) -> None:
        """One line: in the file for good when this returns."""
        os.write(self._file, (json.dumps({"kind": kind, **content}) + "\n").encode())
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.readline()


def _last_line_is_cut(path: Path) -> bool:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal, without one that was cut off."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
