"""Logs on stderr: lines for people, or JSON for collectors."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import orjson

FORMATS = ("text", "json")
LEVELS = ("error", "warning", "info", "debug")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = getattr(record, "told", {})
        shown = " ".join(f"{name}={value}" for name, value in told.items() if value not in ("", None))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03}Z {record.levelname.lower()} {record.getMessage()} {shown}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = getattr(record, "told", {})
        made = {"time": record.created, "level": record.levelname.lower(), "message": record.getMessage(), **told}
        if record.exc_info:
            made["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(made, default=str).decode()


def set_up(level: str, kind: str) -> None:
    """`level` is one of LEVELS, `kind` one of FORMATS; "info" logs a line for each request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if kind == "json" else _Lines())
    root = logging.getLogger("bertfuse")
    root.handlers, root.propagate = [handler], False
    root.setLevel(level.upper())
