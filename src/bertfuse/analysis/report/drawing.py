"""Graphs as coordinates: one layer with names on its nodes, and a whole graph with a row of dots for each layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from .groups import Item, Side
from .layout import layered

MAX_NODES = 4000  # dots of a whole graph; beyond that a browser takes seconds
MAX_IN_LAYER = 600
_LINE, _APART, _MARGIN, _LETTER = 42, 8, 6, 7.6
_DOT, _STEP, _LANE, _ROW_GAP, _LABELS = 10, 17, 13, 14, 80
_SHORT = {"LayerNormalization": "LayerNorm"}


@dataclass
class Box:
    """A node at its upper left corner; `op` is what it was fused into, "" for nothing.

    `state` is "plain", "gone" for a node that the other graph does without, "end" for a tensor.
    """

    x: float
    y: float
    label: str
    title: str
    op: str = ""
    missed: bool = False
    state: str = "plain"


@dataclass
class Drawing:
    """Pixels: boxes of `box` width and height, lines as SVG paths, texts at (x, y)."""

    width: float
    height: float
    box: tuple[int, int]
    boxes: list[Box] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    texts: list[tuple[float, float, str]] = field(default_factory=list)
    left_out: str = ""


def one_layer(side: Side, layer: int) -> Drawing:
    """The layer's nodes from top to bottom, and the tensors that come in and go out."""
    items = side.by_layer.get(layer, [])
    left_out = f"{len(items) - MAX_IN_LAYER} more nodes" if len(items) > MAX_IN_LAYER else ""
    items = _with_ends(side, items[:MAX_IN_LAYER])
    edges = _edges(items)
    placed = layered(len(items), edges)
    labels = [_short(item.kind, 20 if item.op == item.kind else 10) for item in items]
    width, height = round(12 + _LETTER * max(map(len, labels), default=0)), 24
    across = width + _APART
    drawing = Drawing(
        placed.breadth * across + width + 2 * _MARGIN, placed.depth * _LINE + height + 2 * _MARGIN, (width, height),
        left_out=left_out,
    )  # fmt: skip
    for item, label, (rank, offset) in zip(items, labels, placed.places, strict=True):
        x, y = _MARGIN + offset * across, _MARGIN + rank * _LINE
        drawing.boxes.append(_box(x, y, label, item))
    for route in placed.routes:
        points = [(_MARGIN + offset * across, _MARGIN + rank * _LINE) for rank, offset in route]
        drawing.lines.append(_curve(points, drawing.box, downwards=True))
    return drawing


def whole_graph(side: Side, name_of: Callable[[int], str]) -> Drawing:
    """Every node a dot, from left to right, in one row for each layer."""
    drawing = Drawing(0, _MARGIN, (_DOT, _DOT))
    drawn = 0
    for layer in sorted(side.by_layer):
        items = side.by_layer[layer]
        if drawn and drawn + len(items) > MAX_NODES:
            rest = sum(len(side.by_layer[other]) for other in side.by_layer if other >= layer)
            drawing.left_out = f"from {name_of(layer)} on: {rest} more nodes"
            break
        items = items[:MAX_NODES]
        drawn += len(items)
        placed = layered(len(items), _edges(items))
        top = drawing.height
        drawing.texts.append((0, top + placed.breadth * _LANE / 2 + _DOT, name_of(layer)))
        for item, (rank, offset) in zip(items, placed.places, strict=True):
            x, y = _LABELS + rank * _STEP, top + offset * _LANE
            drawing.boxes.append(_box(x, y, "", item))
        for route in placed.routes:
            points = [(_LABELS + rank * _STEP, top + offset * _LANE) for rank, offset in route]
            drawing.lines.append(_curve(points, drawing.box, downwards=False))
        drawing.width = max(drawing.width, _LABELS + placed.depth * _STEP + _DOT + _MARGIN)
        drawing.height = top + placed.breadth * _LANE + _DOT + _ROW_GAP
    return drawing


def _box(x: float, y: float, label: str, item: Item) -> Box:
    state = "end" if item.layer is None else "gone" if item.gone else "plain"
    return Box(x, y, label, f"{item.kind} {item.name}", item.op, item.missed, state)


def _with_ends(side: Side, items: list[Item]) -> list[Item]:
    """Items with pseudo-items (of no layer) for the tensors between them and the rest of the graph."""
    inside = {name for item in items for name in item.outputs}
    entering = dict.fromkeys(name for item in items for name in item.inputs if name not in inside)
    members = {id(item) for item in items}
    wanted = {name for item in side.items if id(item) not in members for name in item.inputs} | set(side.outputs)
    leaving = [name for item in items for name in item.outputs if name in wanted]
    first = [Item(name, "", name, [], [name]) for name in entering]
    return [*first, *items, *(Item(name, "", f"{name} out", [name], []) for name in leaving)]


def _edges(items: list[Item]) -> list[tuple[int, int]]:
    makers = {name: index for index, item in enumerate(items) for name in item.outputs}
    edges = [(makers[name], index) for index, item in enumerate(items) for name in item.inputs if name in makers]
    return [edge for edge in dict.fromkeys(edges) if edge[0] < edge[1]]


def _curve(corners: list[tuple[float, float]], size: tuple[float, float], downwards: bool) -> str:
    """A path from the side where the first box is left to where the last one begins, through the middles of the others.

    `corners` are the upper left corners of boxes of `size`; all but the first and the last are only passed.
    """
    width, height = size
    share = [1.0, *(0.5 for _ in corners[2:]), 0.0]  # how far along each box the line touches it
    if downwards:
        points = [(x + width / 2, y + height * part) for (x, y), part in zip(corners, share, strict=True)]
    else:
        points = [(x + width * part, y + height / 2) for (x, y), part in zip(corners, share, strict=True)]
    path = "M{:.1f} {:.1f}".format(*points[0])
    for (x, y), (a, b) in itertools.pairwise(points):
        bends = (x, (y + b) / 2, a, (y + b) / 2) if downwards else ((x + a) / 2, y, (x + a) / 2, b)
        path += "C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}".format(*bends, a, b)
    return path


def _short(text: str, longest: int) -> str:
    text = _SHORT.get(text, text)
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[longest // 2 + 1 - longest :]}"
