"""Products of heads with vectors by distance, as disentangled attention adds them to scores: which vector for which.

A score is q·k, and the query times a vector of their distance, and the key times another. The vectors are projections
of a table, looked up behind their product: element [query, row of the distance] of q times all vectors. Rows are
followed as a bias by distance is, for every distance at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..constants import Runner
from ..elements import poly
from ..elements.engine import Elements
from ..elements.expr import Expr, Number, Read, made, value_of
from ..elements.poly import ONE, ZERO, Poly
from ..elements.simplify import FAR
from ..nodes import NoMatch, producer
from .distance import DISTANCE, by_distance, of_distance, with_parts
from .intervals import Interval
from .rotary import Heads, heads
from .scalar import Range
from .score_terms import number_of, scaled_read, terms

_INDEX = np.dtype(np.int64)
_MAX_ROWS = 1 << 14
_FARTHEST = FAR  # there are no texts of more tokens


@dataclass(frozen=True, eq=False)
class Table:
    """Vectors that are projections of rows of a constant, `values` of the tensor `rows`."""

    rows: gs.Tensor
    values: np.ndarray
    linear: gs.Node


@dataclass(frozen=True, eq=False)
class ByDistance:
    """A summand of scores: heads of Q or K times vectors by distance, times `factor`.

    `rows` are those of the table for distances from -left on, the last ones going on; `of_keys` tells whose heads.
    """

    of_keys: bool
    table: Table
    heads: Heads  # of the vectors, in columns of their projection
    factor: float
    rows: np.ndarray
    left: int

    def same_as(self, other: ByDistance, most: int) -> bool:
        """Whether both are one as long as no distance exceeds `most`."""
        distances = np.arange(-most, most + 1)
        mine, others = (x.rows[np.clip(distances + x.left, 0, len(x.rows) - 1)] for x in (self, other))
        return (self.of_keys, self.factor) == (other.of_keys, other.factor) and np.array_equal(mine, others)


class Summands:
    """Reads the summands of one tensor of scores, [B, heads, S, S] or with `merged` [B*heads, S, S].

    `tables` are by product: what multiplies a head with all vectors at once. `of_heads` are those of Q and of K;
    `known` are rows by distance that were found before.
    """

    def __init__(
        self,
        runner: Runner,
        target: gs.Tensor,
        merged: bool,
        tables: dict[int, Table],
        of_heads: dict[str, Heads],
        known: dict[tuple[Expr, int], list[Range]],
    ) -> None:
        self._runner, self._target, self._merged, self._tables = runner, target, merged, tables
        self._of_heads, self._known = of_heads, known

    def read(self, elements: Elements, products: list[gs.Node], most: int = _FARTHEST) -> list[ByDistance]:
        """The summands, where no distance exceeds `most`. Raises NoMatch where one is anything else."""
        where = producer(self._target)
        shape = elements.shape(self._target)
        q = self._of_heads["q"]
        count = poly.number(len(q.columns))
        batch, length = elements.shape(q.base)[:2]
        wanted = [batch * count, length, length] if self._merged else [batch, count, length, length]
        if shape != wanted:
            raise NoMatch(where, f"'{self._target.name}' is {shape}", wanted=f"{wanted}, as the scores are")
        b, h, query, key = map(poly.place, "bhqk", (batch, count, length, length))
        before = (b * count + h,) if self._merged else (b, h)
        stops = [node.outputs[0] for node in products]
        expr = elements.at(self._target, (*before, query, key), stops, symbolic=True)
        found = []
        for term in terms(expr, where):
            if (value := value_of(term)) is not None and value == 0:
                continue
            factor, read = scaled_read(term, where)
            node = producer(read.tensor)
            if not any(node is product for product in products) or read.index[:-2] != before:
                raise NoMatch(where, f"adds '{read.name}'", wanted="a product of its own text and head")
            row, column = read.index[-2:]
            if row not in (query, key) or query == key:
                raise NoMatch(node, f"of row {row!r} of Q or K", wanted="that of the query or of the key")
            found.append(self._summand(elements, node, factor, row == key, column, (query, key), most))
        return found

    def _summand(
        self, elements: Elements, node: gs.Node, factor: float, of_keys: bool, column: Poly, places, most: int
    ) -> ByDistance:
        what = "K" if of_keys else "Q"
        own = self._of_heads[what.lower()]
        table = self._tables[id(node)]
        given = heads(elements, node.inputs[0], own.base, "bhsd", what)
        same = given.rotary is None and own.rotary is None and given.shared == 1
        if not same or not np.array_equal(given.columns, own.columns) or not _equal(given.added, own.added):
            raise NoMatch(node, f"multiplies other heads of {what} with positions", wanted="those of the scores")
        base = table.linear.outputs[0]
        vectors = heads(elements, node.inputs[1], base, "bhds", "positions", by_text=False)
        if vectors.rotary is not None or vectors.shared != 1 or vectors.columns.shape != own.columns.shape:
            raise NoMatch(node, "the vectors of positions are not by head", wanted="one for each head")
        row = self._row(elements, table, column, elements.shape(base)[1], node)
        rows, left = self._by_distance(row, places, len(table.values), most, node)
        return ByDistance(of_keys, table, vectors, factor * given.scale * vectors.scale, rows, left)

    def _row(self, elements: Elements, table: Table, column: Poly, extent: Poly, where: gs.Node) -> Expr:
        """Which row of the table the vector in that column is a projection of."""
        x = table.linear.inputs[0]
        shape = elements.shape(x)
        place, along = poly.place("p", extent), poly.place("c", shape[-1])
        if extent == ONE:
            raise NoMatch(where, "multiplies with one position", wanted="several")
        at = (*(ZERO for _ in shape[:-2]), place, along)
        read = elements.at(x, at, table.rows, symbolic=True)
        if not isinstance(read, Read) or read.tensor is not table.rows or read.index[-1] != along:
            raise NoMatch(table.linear, f"positions are projected from '{x.name}'", wanted="rows of a table")
        parts = read.index[-2].split(next(iter(place.atoms)))
        if parts is None or parts[0] != ONE or any(index != ZERO for index in read.index[:-2]):
            raise NoMatch(table.linear, f"positions are rows {read.index[-2]!r} of a table", wanted="its rows in order")
        number, first = number_of(elements, column, where), parts[1]
        if isinstance(number, Number):
            return Number(number.poly + first, _INDEX)
        if first == ZERO:
            return number
        wide = number if number.dtype == _INDEX else made("Cast", (number,), _INDEX, where, to=7)
        return made("Add", (wide, Number(first, _INDEX)), _INDEX, where)

    def _by_distance(self, row: Expr, places, count: int, most: int, where) -> tuple[np.ndarray, int]:
        highest, lowest = (Number(poly.number(n), _INDEX) for n in (most, -most))
        wide = made("Cast", (DISTANCE,), _INDEX, where, to=7)
        near = made("Max", (made("Min", (wide, highest), _INDEX, where), lowest), _INDEX, where)
        expr = with_parts(of_distance(row, *places, where), {DISTANCE: near})
        if (expr, count) not in self._known:
            self._known[expr, count] = by_distance(expr, _rows(count), self._runner, where)
        parts = self._known[expr, count]
        left, right = (-int(parts[0].high), int(parts[-1].low)) if len(parts) > 1 else (0, 0)
        if left < 0 or right < 0 or left + right >= _MAX_ROWS:
            raise NoMatch(where, f"rows that change from distance {-left} to {right}", wanted=f"below {_MAX_ROWS}")
        rows = np.zeros(left + 1 + right, np.int64)
        for part in parts:
            rows[max(int(part.low), -left) + left : min(int(part.high), right) + left + 1] = part.kind - 1
        return rows, left


def _rows(count: int):
    """Kinds that are the rows of a table themselves, from 1 on."""

    def kinds(found: Interval) -> np.ndarray:
        low, high = found.low.astype(np.float64), found.high.astype(np.float64)
        known = (low == high) & ~found.nan & (low >= 0) & (low < count)
        return np.where(known, np.where(known, low, 0) + 1, 0).astype(np.int64)

    return kinds


def _equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    zero = np.zeros(())
    return np.array_equal(*np.broadcast_arrays(zero if a is None else a, zero if b is None else b))
