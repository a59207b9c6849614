"""The plots of the page as SVG text that takes its colours from the page, once for wide and once for narrow windows."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertfuse.measuring.differences import OutputDifference

from ..bench import BenchReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Matplotlib writes fixed colours: these stand for ones that follow the page's light or dark scheme.
_INK, _LINE, _GOOD, _BAD, _SOFT = "#010101", "#020202", "#030303", "#040404", "#050505"
_PAGE = {_INK: "var(--ink)", _LINE: "var(--line)", _GOOD: "var(--good)", _BAD: "var(--bad)", _SOFT: "var(--soft)"}
_WIDTHS = {"wide": 10.4, "narrow": 3.9}  # inches, at 72 pixels
LEAST = 1e-9  # where a difference of zero is drawn, on a logarithmic axis


def accuracy(tensors: Sequence[OutputDifference], layers: Sequence[int]) -> dict[str, str]:
    """Each shared tensor's largest difference relative to its largest value, in execution order, by layer."""
    return {size: _svg(_accuracy(tensors, layers, width), f"accuracy-{size}") for size, width in _WIDTHS.items()}


def _accuracy(tensors: Sequence[OutputDifference], layers: Sequence[int], width: float) -> Figure:
    figure, axes = _figure(width, 3.2)
    values = [min(max(entry.relative, LEAST), 1e3) for entry in tensors]
    for passed, colour, label in ((True, _GOOD, "agrees"), (False, _BAD, "differs")):
        chosen = [(i, v) for i, (v, entry) in enumerate(zip(values, tensors, strict=True)) if entry.passed == passed]
        if chosen:
            axes.scatter(*zip(*chosen, strict=True), s=14, color=colour, label=label, zorder=3, linewidths=0)
    for index in range(1, len(layers)):
        if layers[index] != layers[index - 1]:
            axes.axvline(index - 0.5, color=_LINE, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(LEAST / 2, max(1e-3, *values) * 3)
    ticks = [10.0**e for e in range(-9, 4, 2) if 10.0**e <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, ["0" if tick <= LEAST else f"{tick:.0e}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tensors in order; a line between layers")
    axes.set_ylabel("relative difference")
    axes.legend(frameon=False, labelcolor=_INK, loc="upper left", ncols=2)
    return figure


def latency(report: BenchReport) -> dict[str, str]:
    """A bar for each contender's median at each size, from zero, with the middle half's range."""
    return {size: _svg(_latency(report, width), f"latency-{size}") for size, width in _WIDTHS.items()}


def _latency(report: BenchReport, width: float) -> Figure:
    sizes, names = report.sizes, report.contenders
    figure, axes = _figure(width, 0.9 + 0.27 * len(sizes) * (len(names) + 1.4))
    position, ticks = 0.0, []
    for batch, sequence in sizes:
        ticks.append((position, f"{batch} x {sequence}:"))
        position += 0.9
        for name in names:
            timing = report.at(name, (batch, sequence))
            colour = _GOOD if name.startswith("fused") else _SOFT
            spread = [[timing.median - timing.low], [timing.high - timing.median]]
            axes.barh(
                position, timing.median, 0.78, color=colour, xerr=spread, error_kw={"ecolor": _INK, "elinewidth": 1}
            )
            axes.annotate(f"{timing.median:.2f}", (timing.high, position), (6, 0), textcoords="offset points",
                          va="center", color=_INK)  # fmt: skip
            ticks.append((position, _plain(report.label(name))))
            position += 1
        position += 0.5
    axes.set_yticks([place for place, _ in ticks], [label for _, label in ticks])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(timing.high for timing in report.timings))  # room for the numbers
    axes.set_xlabel("milliseconds: median, middle half")
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(True, color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=0)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Figure, name: str) -> str:
    """The figure for use inside a page, where every id must be there once: all of them begin with `name`."""
    import matplotlib

    buffer = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _PAGE.items():
        text = text.replace(colour, variable)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Text in the page's own font; no address in it, not even those of namespaces that HTML does not need.
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", text)


def _plain(text: str) -> str:
    """Matplotlib takes what is between dollars for mathematics."""
    return text.replace("$", r"\$")
