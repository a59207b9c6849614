"""Passes: rewrites of a fused graph that know our ops and standard operators, and nothing of exporters or families.

Each is a file with one function that takes the graph and returns a PassReport: what it did, and what it left alone and
why. Order matters: what our ops compute can be packed, and which rows an output needs is asked of the packed ones.

    linear_layers linear layers in no other op become FusedGemm; always, at level "full"
    pack          real tokens only between the embedding and the first node that mixes rows; [B, S] interface
    ragged        the same with tokens laid out one after the other as the interface; after pack
    output_rows   of the last layer only the rows that an output needs
    rotary_products  rotations of Q and K move from attention into the product before it; at level "full", the last,
                  because then it is known how rows are packed
"""

from __future__ import annotations

from ..graph import FusionGraph
from ..result import PassReport
from . import linear_layers, output_rows, pack, ragged, rotary_products

PADDINGS = ("keep", "remove", "ragged")


def run(graph: FusionGraph, level: str, padding: str, needed_rows: bool) -> list[PassReport]:
    """Run what these options ask for on a finished graph, which stays finished.

    Raises FusionError where `ragged` is not possible: a model of another interface is no substitute for it.
    """
    reports = []
    if level == "full":
        report = linear_layers.compute(graph)
        reports += [report] if report is not None else []
        graph.finish()
    if padding == "remove":
        reports.append(pack.remove_padding(graph)[0])
    elif padding == "ragged":
        reports.append(ragged.take_ragged_batches(graph))
    graph.finish()
    if needed_rows or padding != "keep":
        reports.append(output_rows.select(graph))
        graph.finish()
    report = rotary_products.move(graph)
    if report is not None:
        reports.append(report)
        graph.finish()
    return reports


def nothing_done(padding: str, reason: str) -> list[PassReport]:
    """The reports of passes on a model that is left as it is. Raises FusionError for `ragged`, as `run` does."""
    if padding == "ragged":
        raise ragged.refusal(reason)
    return [PassReport(pack.NAME, [], [reason], True)] if padding == "remove" else []


__all__ = ["PADDINGS", "nothing_done", "run"]
