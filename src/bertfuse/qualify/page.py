"""The report of a hunt as one HTML page, without scripts and without anything to load."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import bertfuse

from .campaign import Report


@dataclass
class Row:
    """Problems of one op and dtype on one device."""

    device: str
    op: str
    dtype: str
    count: int
    error: float
    tactics: set[str] = field(default_factory=set)


def rows(report: Report) -> list[Row]:
    """The report by device, op and dtype, in that order."""
    found = {
        key: Row(*key, count, report.ratios.get(key, 0.0))  # type: ignore[call-overload]
        for key, count in sorted(report.by(0, 1, 2).items())
    }
    for device, op, dtype, tactic in report.problems:
        found[device, op, dtype].tactics.add(tactic)
    return list(found.values())


def page(report: Report) -> str:
    """The page's text."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8"))
    tactics = sorted(report.problems.items())
    return template.render(report=report, rows=rows(report), tactics=tactics, version=bertfuse.__version__)
