"""Where the nodes of a small directed graph go: in layers, with few crossings (Sugiyama's method).

Own code because the Python packages for this call a Graphviz that has to be installed beside them, or have no wheels
for every Python that is supported here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

_SWEEPS = 8
_GAP = 1.0
_GAP_OF_LINES = 0.28
_PULL = 0.9  # how far towards its neighbours a node goes, and not to the middle


@dataclass
class Layout:
    """`places` holds (rank, offset) of each node; `routes` the same of the points of each edge, ends included.

    Ranks are whole numbers from 0 in the direction of the edges, offsets run across it from 0 to `breadth`; `depth` is
    the last rank.
    """

    places: list[tuple[int, float]]
    routes: list[list[tuple[int, float]]]
    breadth: float
    depth: int


def layered(count: int, edges: list[tuple[int, int]]) -> Layout:
    """Lay out nodes 0 to `count` - 1, given in topological order."""
    ranks = _ranks(count, edges)
    chains: list[list[int]] = []
    for first, last in edges:  # an edge over several ranks passes a point of its own on each
        points = list(range(len(ranks), len(ranks) + ranks[last] - ranks[first] - 1))
        ranks += range(ranks[first] + 1, ranks[last])
        chains.append([first, *points, last])
    above: list[list[int]] = [[] for _ in ranks]
    below: list[list[int]] = [[] for _ in ranks]
    for chain in chains:
        for a, b in itertools.pairwise(chain):
            below[a].append(b)
            above[b].append(a)
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=0) + 1)]
    for node, rank in enumerate(ranks):
        rows[rank].append(node)
    _order(rows, above, below)
    offsets = _offsets(rows, above, below, count)
    least = min(offsets, default=0.0)
    places = [(rank, offset - least) for rank, offset in zip(ranks, offsets, strict=True)]
    routes = [[places[node] for node in chain] for chain in chains]
    return Layout(places[:count], routes, max(offsets, default=0.0) - least, len(rows) - 1)


def _ranks(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """The longest way from a source; sources themselves right before what first needs them."""
    ranks = [0] * count
    outgoing: list[list[int]] = [[] for _ in range(count)]
    entered = set()
    for first, last in edges:
        outgoing[first].append(last)
        entered.add(last)
    for node in range(count):
        for user in outgoing[node]:
            ranks[user] = max(ranks[user], ranks[node] + 1)
    for node in range(count):
        if node not in entered and outgoing[node]:
            ranks[node] = min(ranks[user] for user in outgoing[node]) - 1
    return ranks


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Sort each row by where its neighbours in the row before are, down and up again: that uncrosses edges."""
    place = {node: index for row in rows for index, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        neighbours, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in order:
            row.sort(key=lambda node: _mean([place[n] for n in neighbours[node]], place[node]))
            place.update({node: index for index, node in enumerate(row)})


def _offsets(rows: list[list[int]], above: list[list[int]], below: list[list[int]], count: int) -> list[float]:
    """Offsets that keep each row's order and a gap, and draw nodes towards the middle of their neighbours."""
    offsets = [0.0] * len(above)
    for row in rows:
        for index, node in enumerate(row):
            offsets[node] = index - len(row) / 2
    for sweep in range(2 * _SWEEPS):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            wanted = [_PULL * _mean([offsets[n] for n in (*above[node], *below[node])], 0.0) for node in row]
            gaps = [_GAP if min(pair) < count else _GAP_OF_LINES for pair in itertools.pairwise(row)]
            low, high = list(wanted), list(wanted)
            for i, gap in enumerate(gaps):
                low[i + 1] = max(low[i + 1], low[i] + gap)
            for i in reversed(range(len(gaps))):
                high[i] = min(high[i], high[i + 1] - gaps[i])
            for node, a, b in zip(row, low, high, strict=True):
                offsets[node] = (a + b) / 2
    return offsets


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
