"""The report as one HTML file that needs nothing else: no script, font, image or style sheet from anywhere."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from bertfuse.files import replacing
from bertfuse.graph_rewrite import OPS, FusionResult, Part
from bertfuse.model_folder.files import folder_of
from bertfuse.printable import printable

from . import plots
from .collect import PAGE_FILE, SIZES, Report, collect
from .drawing import one_layer, whole_graph
from .groups import Side, sides

# Okabe and Ito's colours, which colour-blind readers tell apart, some darkened for white ink, and the ink on each.
_COLOURS = (
    ("#0072b2", "#fff"), ("#b84f00", "#fff"), ("#007a5a", "#fff"), ("#e69f00", "#111"), ("#cc79a7", "#111"),
    ("#56b4e9", "#111"), ("#7a5195", "#fff"), ("#8c6d31", "#fff"),
)  # fmt: skip


def write_report(
    original: str | Path,
    fused: str | Path,
    page: str | Path | None = None,
    *,
    seconds: float = 1.0,
    sizes: Sequence[tuple[int, int]] = SIZES,
    texts: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write the page about two ONNX files, before and after fusion; returns where it is.

    `page` is report.html beside the fused file by default; the rest as for `collect`. Raises BertfuseError where a file
    cannot be read or the page cannot be written.
    """
    page = folder_of(fused) / PAGE_FILE if page is None else Path(page)
    report = collect(Path(original), Path(fused), seconds=seconds, sizes=sizes, texts=texts, progress=progress)
    (progress or (lambda line: None))("Writing the report")
    with replacing(page) as temporary:
        temporary.write_text(render(report), encoding="utf-8")
    return page


def render(report: Report) -> str:
    """The page's HTML."""
    result = report.result
    before, after = sides(*report.graphs, result.parts, result.layers)
    layer = _interesting(result)
    names = [op for op in OPS if op in result.expected]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template("page.html.j2").render(
        report=report,
        result=result,
        ops=names,
        drawn=[op for op in OPS if any(item.op == op for item in after.items)],
        table=_table(result, names),
        layer=result.layer_name(layer),
        layer_drawings=[("before", one_layer(before, layer)), ("after", one_layer(after, layer))],
        whole_drawings=[
            ("before", whole_graph(before, _row_name(result))),
            ("after", whole_graph(after, _row_name(result))),
        ],
        colours={op: _COLOURS[index % len(_COLOURS)] for index, op in enumerate(OPS)},
        accuracy=_accuracy_plot(report, before),
        least=plots.LEAST,
        latency=plots.latency(report.latency) if report.latency else None,
        speed=_speed(report),
        when=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _interesting(result: FusionResult) -> int:
    """The layer that is drawn: the first encoder layer with a miss in it, else the first one."""
    missed = [part.layer for part in result.parts if part.miss and 1 <= part.layer <= result.layers]
    return missed[0] if missed else min(1, result.layers)


def _table(result: FusionResult, names: list[str]) -> list[dict[str, Any]]:
    """A row for each part of the model: of each op the Parts there, in `names`' order."""
    rows = []
    for layer in sorted({part.layer for part in result.parts}):
        cells: list[list[Part]] = [[p for p in result.parts if p.layer == layer and p.op == op] for op in names]
        rows.append({"name": result.layer_name(layer), "cells": cells})
    return rows


def _row_name(result: FusionResult) -> Callable[[int], str]:
    return result.layer_name if result.layers else lambda layer: "graph"


def _accuracy_plot(report: Report, before: Side) -> dict[str, str] | None:
    if report.comparison is None or not report.comparison.tensors:
        return None
    layers = {name: item.layer or 0 for item in before.items for name in item.outputs}
    tensors = report.comparison.tensors
    return plots.accuracy(tensors, [layers.get(entry.name, 0) for entry in tensors])


def _speed(report: Report) -> str:
    """How many times as fast as the original the fused model is at the last size measured, at its best."""
    if report.latency is None or not report.latency.timings:
        return ""
    latency, size = report.latency, report.latency.sizes[-1]
    fused = [name for name in latency.contenders if name.startswith("fused")]
    if not fused or not latency.contenders[0].startswith("original"):
        return ""
    original = latency.at(latency.contenders[0], size)
    best = min((latency.at(name, size) for name in fused), key=lambda timing: timing.median)
    at = f"at {size[0]} x {size[1]}"
    if best.overlaps(original):
        return f"no difference measured {at}: the middle halves of the runs overlap"
    return f"{original.median / best.median:.2f}x {at}"
