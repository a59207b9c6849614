"""A comparison as one self-contained HTML page: figures per output and tensor, the error along the graph as a plot."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import bertfuse
from bertfuse.files import replacing
from bertfuse.printable import printable

if TYPE_CHECKING:
    from bertfuse.measuring.bisection import Bisection
    from bertfuse.measuring.compare import Comparison
    from bertfuse.measuring.differences import OutputDifference


def escape(text: str) -> str:
    """For HTML, without what steers a terminal that shows the page's source."""
    return html.escape(printable(text))


_PLOT, _MARGIN, _DOT = (900, 220), 56, 3

_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #cf222e; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 64rem; padding: 1rem; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child, td:last-child { text-align: left }
td:last-child { white-space: normal; min-width: 10rem }
.good { color: var(--good) } .bad { color: var(--bad); font-weight: 600 }
svg { width: 100%; height: auto; min-width: 32rem } text { font-size: 12px; fill: currentColor }
circle.good { fill: var(--good) } circle.bad { fill: var(--bad) } .axis { stroke: var(--line) }
footer { margin-top: 3rem; opacity: .7; font-size: .85rem }
"""


def write_page(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Writes `render(comparisons)` to `path`; the page appears whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(render(comparisons), encoding="utf-8")


def render(comparisons: Sequence[Comparison]) -> str:
    """The page: no script, nothing loaded from elsewhere."""
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    parts = [_section(comparison) for comparison in comparisons]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Comparison</title><style>{_STYLE}</style></head><body>"
        f"<h1>Compared with {escape(comparisons[0].reference)}</h1>{''.join(parts)}"
        "<footer>absolute: largest |a - b|; relative: that over the largest |a|; cosine: the least between vectors"
        f" along the last axis. bertfuse {escape(bertfuse.__version__)}, {made}</footer></body></html>\n"
    )


def _section(comparison: Comparison) -> str:
    verdict = '<span class="good">agrees</span>' if comparison.passed else '<span class="bad">differs</span>'
    parts = [f"<h2>{escape(comparison.other)}: {verdict}</h2>", _table("output", comparison.outputs)]
    if comparison.judgement is not None:
        lines = "; ".join(comparison.judgement.lines())
        parts.append(f"<p>{comparison.judgement.counted} by both models: {escape(lines)}.</p>")
    if comparison.bisection is not None:
        parts.append(f"<p>{escape(bisection_text(comparison.bisection))}.</p>")
    if comparison.tensors:
        first = comparison.first_difference
        words = "all agree" if first is None else f"the first to differ is <b>{escape(first.name)}</b>"
        parts.append(f"<p>{len(comparison.tensors)} tensors that both compute, in order of execution: {words}.</p>")
        parts.append(_plot(comparison.tensors))
        parts.append(f"<details><summary>Every tensor</summary>{_table('tensor', comparison.tensors)}</details>")
    return "".join(parts)


def _table(title: str, entries: Sequence[OutputDifference]) -> str:
    heads = (title, "shape", "type", "absolute", "relative", "cosine", "")
    rows = "".join(
        f"<tr><td>{escape(entry.name)}</td><td>{' x '.join(map(str, entry.shape))}</td><td>{escape(entry.dtype)}</td>"
        f"<td>{entry.absolute:.2e}</td><td>{entry.relative:.2e}</td><td>{entry.cosine:.8f}</td>"
        f'<td class="{_class(entry)}">{escape(entry.verdict)}</td></tr>'
        for entry in entries
    )
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def bisection_text(found: Bisection) -> str:
    """What a bisection found, in a sentence."""
    if found.difference is None or found.own is None:
        return f"Bisection ({found.runs} runs): no output differs"
    verdict = "within tolerance, so rounding adds up" if found.own.passed else "beyond tolerance by themselves"
    return (
        f"Bisection ({found.runs} runs): {found.tensor} differs first, by {found.difference.absolute:.2e}; its own"
        f" nodes ({', '.join(found.nodes)}), given the reference's values, differ by {found.own.absolute:.2e}:"
        f" {verdict}"
    )


def _class(entry: OutputDifference) -> str:
    return "good" if entry.passed else "bad"


def _plot(entries: Sequence[OutputDifference]) -> str:
    """Relative differences on a logarithmic axis; one that is 0 lies on the lowest line."""
    width, height = _PLOT
    powers = [math.log10(entry.relative) for entry in entries if 0 < entry.relative < math.inf]
    low, high = (math.floor(min(powers)), math.ceil(max(powers))) if powers else (-8, 0)
    low, high = low - 1, max(high, low + 1)

    def y(relative: float) -> float:
        power = low if relative <= 0 else high if math.isinf(relative) else math.log10(relative)
        return 10 + (high - power) / (high - low) * (height - 30)

    step = (width - _MARGIN - 10) / max(1, len(entries) - 1)
    shapes = []
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        at = y(10.0**power)
        shapes.append(f'<line class="axis" x1="{_MARGIN}" x2="{width}" y1="{at:.1f}" y2="{at:.1f}"/>')
        label = "0" if power == low else f"1e{power}"
        shapes.append(f'<text x="{_MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for index, entry in enumerate(entries):
        x = _MARGIN + _DOT + index * step
        shapes.append(
            f'<circle class="{_class(entry)}" cx="{x:.1f}" cy="{y(entry.relative):.1f}" r="{_DOT}">'
            f"<title>{escape(entry.name)}: {entry.relative:.2e}</title></circle>"
        )
    shapes.append(f'<text x="{_MARGIN}" y="{height - 2}">relative difference, in order of execution</text>')
    return f'<div class="scroll"><svg viewBox="0 0 {width} {height}" role="img">{"".join(shapes)}</svg></div>'
