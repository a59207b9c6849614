"""What arrives at each column of each head: a column of a projection, or two of them that are rotated by their place.

That a rotation is one follows from the elements: x[i] cos(a) - x[j] sin(a) and x[j] cos(a) + x[i] sin(a), where the
angle a is a frequency times the place in the sequence. Which spelling led there does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ..elements import poly
from ..elements.engine import Elements
from ..elements.expr import Apply, Expr, Number, Read, value_of, walk
from ..elements.poly import ONE, ZERO, Poly
from ..nodes import NoMatch, node_name, producer

_COS, _SIN, _TABLE = "Cos", "Sin", "Table"
_LARGEST_HEAD = 1024
_MAX_TERMS = 4
_TABLE_ERROR = 4e-7  # a place: rounding float32 cosines moves the angle that is read off the second by as much


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embeddings of the first `size` columns of each head.

    `frequencies` [size / 2] are radians a place; `interleaved` says that columns 2i and 2i + 1 make a pair, otherwise
    i and i + size / 2 do. `amplitude` scales cosine and sine. Where the model looks them up, `tables` are theirs, two
    [places, size / 2], and the frequencies what they come to. With `divided` it divides the place by numbers, which
    `frequencies` then are: to multiply by their inverses would round large angles otherwise.
    """

    size: int
    interleaved: bool
    frequencies: np.ndarray
    amplitude: float = 1.0
    tables: tuple[np.ndarray, np.ndarray] | None = None
    divided: bool = False

    @property
    def base(self) -> float | None:
        """The number of which the frequencies are the powers -2i / size; None where they are others."""
        if self.size < 4 or not np.all((self.frequencies > 1e-30) & (self.frequencies < 1e30)):
            return None
        frequencies = (1 / self.frequencies if self.divided else self.frequencies).astype(np.float64)
        found = float(frequencies[1]) ** (-self.size / 2)
        if not 1e-30 < found < 1e30:
            return None
        wanted = found ** (-np.arange(self.size // 2) * 2 / self.size)
        return float(f"{found:.4g}") if np.allclose(frequencies, wanted, rtol=1e-4, atol=0) else None

    def __str__(self) -> str:
        how = "in pairs of neighbours" if self.interleaved else "in halves"
        base = f"base {self.base:g}" if self.base else "frequencies of its own"
        scaled = f", scaled by {self.amplitude:g}" if self.amplitude != 1 else ""
        stored = f", from tables of {len(self.tables[0])} places" if self.tables is not None else ""
        return f"RoPE over {self.size} columns {how}, {base}{scaled}{stored}"

    def same_as(self, other: Rotary | None) -> bool:
        """Whether queries and keys are rotated alike, so that only their distance counts."""
        return (
            other is not None
            and (self.size, self.interleaved, self.amplitude) == (other.size, other.interleaved, other.amplitude)
            and self.divided == other.divided
            and np.array_equal(self.frequencies, other.frequencies)
            and _same(self.tables, other.tables)
        )


def _same(tables: tuple[np.ndarray, ...] | None, others: tuple[np.ndarray, ...] | None) -> bool:
    if tables is None or others is None:
        return tables is others
    return all(np.array_equal(one, other) for one, other in zip(tables, others, strict=True))


@dataclass(frozen=True, eq=False)
class Heads:
    """`columns` [heads, size] of `base` arrive at each place of each head, times `scale`, rotated by `rotary`.

    `shared` heads in a row are one and the same: columns [heads / shared, size]. `added` [heads, size] is what is added
    to the columns before they are scaled, None where nothing is.
    """

    base: gs.Tensor
    columns: np.ndarray
    scale: float
    rotary: Rotary | None = None
    shared: int = 1
    added: np.ndarray | None = None


@dataclass
class _Term:
    """factor * trig(frequency * place) * the base's column; `frequency` a number, or a constant read at a column.

    Of a table in place of a cosine or sine `frequency` is what is read, and `table` what that holds by place. With
    `added` there is a constant in place of the base's column.
    """

    read: Expr
    factor: float
    trig: str = ""
    frequency: float | Read | None = None
    divided: bool = False
    table: np.ndarray | None = None
    added: bool = False


@dataclass
class _Column:
    own: np.ndarray  # by head
    factor: float
    partner: np.ndarray | None = None
    sign: float = 0.0
    frequency: float = 0.0
    divided: bool = False
    tables: tuple[np.ndarray, np.ndarray] | None = None  # by place
    added: np.ndarray | None = None  # by head, scaled


def heads(
    elements: Elements, tensor: gs.Tensor, base: gs.Tensor, layout: str, what: str, by_text: bool = True
) -> Heads:
    """The heads of `tensor` by columns of `base`.

    `layout` names the tensor's axes: "bhsd", "bhds" or "bshd" of batch, heads, sequence and size; the first two may be
    one axis. `base` is [B, S, width], or by head as a normalisation gives it; where it is not `by_text` it is
    [1, S, width], the same for every text. Raises NoMatch where an element is anything else.
    """
    where = producer(tensor) or tensor.name
    shape = elements.shape(tensor)
    of_base = elements.shape(base)
    merged = len(shape) == 3 and layout[:2] == "bh"
    if merged:
        shape = [*_taken_apart(shape[0], of_base, by_text, shape[layout.index("d") - 1], what, where), *shape[1:]]
    if len(shape) != 4:
        raise NoMatch(where, f"{what} has {len(shape)} axes", wanted="[batch, heads, sequence, size]")
    axes = dict(zip(layout, shape, strict=True))
    count, size = axes["h"].constant, axes["d"].constant
    if not count or not size or size > _LARGEST_HEAD:
        raise NoMatch(where, f"{what} is {shape}", wanted="heads of a known number and size")
    reading = _Reading(elements, tensor, base, layout, what, where)
    reading.batch, reading.place, reading.merged = poly.place("b", axes["b"]), poly.place("s", axes["s"]), merged
    reading.sizes = [axes["b"] if by_text else ONE, axes["s"]]
    reading.before = [reading.batch if by_text else ZERO, reading.place]
    reading.find_groups(count)
    found = _assembled(base, list(reading.columns(0, size)), what, where)
    others = np.flatnonzero((found.columns != found.columns[0]).any(axis=1))
    shared = 1 if found.added is not None else int(others[0]) if others.size else count
    own = found.columns[::shared]
    if count % shared or not np.array_equal(np.repeat(own, shared, axis=0), found.columns):
        raise NoMatch(where, f"{what} repeats its heads in another order", wanted="neighbours that share one")
    return replace(found, columns=own, shared=shared)


def _taken_apart(both: Poly, of_base: list[Poly], by_text: bool, size: Poly, what: str, where) -> tuple[Poly, Poly]:
    """Batch and heads of an axis that holds both, the batch outside."""
    if by_text:
        found = poly.divided(both, of_base[0])
        parts = None if found is None else (of_base[0], found[0], found[1])
    else:
        count = poly.divided(of_base[-1], size)
        found = None if count is None else poly.divided(both, count[0])
        parts = None if found is None else (found[0], count[0], found[1])
    if parts is None or parts[2] != ZERO:
        raise NoMatch(where, f"{what} has {both} heads of {of_base[0]} texts", wanted="as many of each")
    return parts[:2]


class _Reading:
    def __init__(self, elements: Elements, tensor, base, layout: str, what: str, where) -> None:
        self._elements, self._tensor, self._base = elements, tensor, base
        self._layout, self._what, self._where = layout, what, where
        self.batch = self.place = self._head = ZERO
        self.sizes: list[Poly] = []  # of the batch and the sequence
        self.before: list[Poly] = []  # the places in these that are read
        self.merged = False  # batch and heads are one axis
        self._within: list[tuple[Poly, int, int]] = []  # places that make up a head: how many, times what
        self._count = 1

    def find_groups(self, count: int) -> None:
        """Write the head as a place such that elements are found: of repeated keys and values by group."""
        last: NoMatch | None = None
        self._count = count
        for shared in (n for n in range(1, count + 1) if count % n == 0):
            outer, inner = (poly.place(f"h{n}", poly.number(n)) for n in (count // shared, shared))
            if shared == count // shared:
                inner = poly.place("h in group", poly.number(shared))
            self._head = outer * poly.number(shared) + inner
            self._within = [(outer, count // shared, shared), (inner, shared, 1)]
            try:
                self._element(ZERO)
                return
            except NoMatch as miss:
                last = last or miss
        raise last

    def _element(self, column: Poly) -> Expr:
        places = {"b": self.batch, "h": self._head, "s": self.place, "d": column}
        at = tuple(places[axis] for axis in self._layout)
        at = (self.batch * poly.number(self._count) + self._head, *at[2:]) if self.merged else at
        return self._elements.at(self._tensor, at, self._base, symbolic=True)

    def columns(self, first: int, length: int) -> Iterator[_Column]:
        """The columns from `first` on, several at once where they are read alike."""
        along = poly.place(f"d{length}", poly.number(length))
        try:
            found = _linear(self._element(along + poly.number(first)), self._base, self._where)
        except NoMatch:
            if length == 1:
                raise
            yield from self.columns(first, length // 2)
            yield from self.columns(first + length // 2, length - length // 2)
            return
        for number in range(length):
            yield self._column([self._at(term, along, number) for term in found])

    def _at(self, term: _Term, along: Poly, number: int) -> _Term:
        """The term at one of several columns."""
        if not isinstance(term.read, Read):
            return term
        index = tuple(_replaced(p, along, number, self._where) for p in term.read.index)
        found = replace(term, read=replace(term.read, index=index))
        if not isinstance(term.frequency, Read):
            return found
        table = self._elements.constant(term.frequency.tensor)
        if table is None:
            raise NoMatch(self._where, f"'{term.frequency.name}' scales angles of {self._what}", wanted="constants")
        if term.trig == _TABLE:
            at = [slice(None) if p == self.place else self._number(p, along, number) for p in term.frequency.index]
            by_place = table[tuple(at)]
            if by_place.ndim != 1:
                raise NoMatch(self._where, f"'{term.frequency.name}' is no table by place", wanted="one")
            return replace(found, frequency=None, table=by_place.astype(np.float32))
        frequency = float(table[tuple(self._number(p, along, number) for p in term.frequency.index)])
        return replace(found, frequency=frequency)

    def _number(self, place: Poly, along: Poly, number: int) -> int:
        found = _replaced(place, along, number, self._where).constant
        if found is None:
            raise NoMatch(self._where, f"frequencies of {self._what} differ by more than the column")
        return found

    def _column(self, found: list[_Term]) -> _Column:
        constants, found = [t for t in found if t.added], [t for t in found if not t.added]
        plain, turned = [t for t in found if not t.trig], [t for t in found if t.trig]
        if len(plain) == 1 and not turned and not any(t.trig for t in constants):
            parts = [t.factor * self._added(t.read) for t in constants]
            added = np.sum(parts, axis=0) if parts else None
            return _Column(self._own(plain[0].read), plain[0].factor, added=added)
        if constants:
            raise NoMatch(self._where, f"adds a constant to {self._what} that is rotated", wanted="before, in one sum")
        by_kind = {_COS if _is_cosine(t) else _SIN: t for t in turned}
        if plain or len(turned) != 2 or len(by_kind) != 2 or (turned[0].table is None) != (turned[1].table is None):
            raise NoMatch(
                self._where, f"a column of {self._what} is a sum of {len(found)}", wanted="x cos(a) ± y sin(a)"
            )
        cos, sin = by_kind[_COS], by_kind[_SIN]
        if (cos.frequency, cos.divided) != (sin.frequency, sin.divided) or abs(cos.factor) != abs(sin.factor):
            raise NoMatch(self._where, f"cosine and sine of {self._what} are of two angles", wanted="one angle")
        frequency, tables = cos.frequency, None
        if cos.table is not None:
            frequency, tables = self._frequency(cos.table, sin.table), (cos.table, sin.table)
        sign = sin.factor / cos.factor
        return _Column(self._own(cos.read), cos.factor, self._own(sin.read), sign, frequency, cos.divided, tables)

    def _frequency(self, cos: np.ndarray, sin: np.ndarray) -> float:
        """Of tables of cosines and sines, every place of which is looked at: the angle that they grow by."""
        if len(cos) == len(sin) > 1:
            step, places = float(np.arctan2(sin[1], cos[1])), np.arange(len(cos))
            allowed = np.minimum(_TABLE_ERROR * (1 + places), 0.05) * abs(float(cos[0]))
            off = np.hypot(cos - cos[0] * np.cos(places * step), sin - cos[0] * np.sin(places * step))
            if np.all(off <= allowed):
                return step
        raise NoMatch(
            self._where, f"tables that rotate {self._what} hold no cosines and sines", wanted="of place times a"
        )

    def _added(self, constant: Expr) -> np.ndarray:
        """A constant, by head."""
        value = value_of(constant)
        if value is not None:
            return np.full(self._count, float(value))
        table = self._elements.constant(constant.tensor)
        if table is None:
            raise NoMatch(self._where, f"adds '{constant.name}' to {self._what}", wanted="constants")
        return table[tuple(self._by_head(place) for place in constant.index)].astype(np.float64) * np.ones(self._count)

    def _own(self, read: Read) -> np.ndarray:
        """The column that is read, by head."""
        index, extents = list(read.index), self._elements.shape(self._base)
        if len(index) == 3:
            before, column, of_tokens = index[:2], index[2], extents[:2]
        else:  # by head: a normalisation's
            axis = 2 if index[1] == self.place else 1
            before, column = [index[0], index[3 - axis]], index[axis] * extents[-1] + index[3]
            of_tokens = [extents[0], extents[3 - axis]]
        if before != self.before:
            raise NoMatch(self._where, f"{self._what} takes an element at {index}", wanted="one of its own token")
        if of_tokens != self.sizes:
            raise NoMatch(self._where, f"{self._what} is of {self.sizes} tokens", wanted=f"{of_tokens}, all of them")
        return self._by_head(column)

    def _by_head(self, column: Poly) -> np.ndarray:
        """The number that a place is, by head."""
        numbers = np.zeros(self._count, np.int64)
        rest, heads_ = column, np.arange(self._count)
        for atom, count, times in self._within:
            if atom == ZERO:
                continue
            parts = rest.split(next(iter(atom.atoms)))
            if parts is None:
                raise NoMatch(self._where, f"{self._what} takes column {column!r}", wanted="columns by head")
            factor, rest = parts
            if factor.constant is None:
                raise NoMatch(self._where, f"{self._what} takes column {column!r}", wanted="columns by head")
            numbers += factor.constant * ((heads_ // times) % count)
        if rest.constant is None:
            raise NoMatch(self._where, f"{self._what} takes column {column!r}", wanted="columns by head")
        return numbers + rest.constant


def _is_cosine(term: _Term) -> bool:
    """Whether it is 1 at the first place, where a sine is 0."""
    if term.table is None:
        return term.trig == _COS
    return bool(term.table.size and abs(term.table[0]) > 0.5 * np.abs(term.table).max())


def _replaced(place: Poly, along: Poly, number: int, where) -> Poly:
    """The polynomial with a number in place of the one atom of `along`."""
    atom = next(iter(along.atoms), None)
    if atom not in place.atoms:
        return place
    parts = place.split(atom)
    if parts is None:
        raise NoMatch(where, f"{place!r} is no place of a column")
    return parts[0] * poly.number(number) + parts[1]


def _assembled(base: gs.Tensor, columns: list[_Column], what: str, where) -> Heads:
    own = np.stack([column.own for column in columns], axis=1)
    turned = [number for number, column in enumerate(columns) if column.partner is not None]
    plain = [column.factor for column in columns if column.partner is None]
    amplitudes = {columns[number].factor for number in turned}
    if len(set(plain)) > 1 or len(amplitudes) > 1 or (turned and turned != list(range(len(turned)))):
        raise NoMatch(
            where, f"columns of {what} are scaled or rotated in part", wanted="the first ones rotated, one scale"
        )
    given = [column.added for column in columns]
    if not turned:
        zeros = np.zeros(len(own))
        added = None
        if any(one is not None for one in given):
            added = np.stack([zeros if one is None else one for one in given], axis=1) / plain[0]
        return Heads(base, own, plain[0], added=added)
    if any(one is not None for one in given):
        raise NoMatch(where, f"adds a constant to columns of {what} that are not rotated", wanted="none, or to all")
    size = len(turned)
    for interleaved in (False, True):
        partners = [number ^ 1 if interleaved else (number + size // 2) % size for number in range(size)]
        first = [number % 2 == 0 if interleaved else number < size // 2 for number in range(size)]
        if size % 2 == 0 and all(
            np.array_equal(columns[number].partner, columns[partner].own)
            and columns[number].sign == (-1 if is_first else 1)
            and columns[number].frequency == columns[partner].frequency
            and columns[number].factor == columns[partner].factor
            and columns[number].divided == columns[0].divided
            and _same(columns[number].tables, columns[partner].tables)
            for number, partner, is_first in zip(range(size), partners, first, strict=True)
        ):
            frequencies = [columns[number].frequency for number in range(size) if first[number]]
            scale = plain[0] if plain else columns[0].factor
            tables = None
            if columns[0].tables is not None:
                of_pairs = [columns[number].tables for number in range(size) if first[number]]
                tables = tuple(np.stack(kind, axis=1) for kind in zip(*of_pairs, strict=True))
            amplitude = columns[0].factor / scale
            numbers, divided = np.array(frequencies, np.float32), columns[0].divided
            rotary = Rotary(size, interleaved, numbers, amplitude, tables, divided)
            return Heads(base, own, scale, rotary)
    raise NoMatch(where, f"pairs the columns of {what} in another way", wanted="halves, or neighbours, turned one way")


def _linear(expr: Expr, base: gs.Tensor, where) -> list[_Term]:
    """The expression as a sum of elements of the base times constants, cosines and sines, and of constants."""
    if value_of(expr) is not None:
        return [_Term(expr, 1.0, added=True)]
    if isinstance(expr, Read):
        if expr.tensor is base:
            return [_Term(expr, 1.0)]
        if _is_constant(expr):
            return [_Term(expr, 1.0, added=True)]
        raise NoMatch(where, f"adds '{expr.name}'", wanted="a projection alone")
    if isinstance(expr, Apply):
        node, args = expr.node, expr.args
        if expr.op in ("Add", "Sub"):
            second = _linear(args[1], base, node)
            if expr.op == "Sub":
                second = [_scaled(term, -1.0) for term in second]
            found = [*_linear(args[0], base, node), *second]
            if len(found) > _MAX_TERMS:  # sums of sums have twice as many with every step
                raise NoMatch(node, f"a column is a sum of {len(found)}", wanted="x cos(a) ± y sin(a)")
            return found
        if expr.op == "Neg":
            return [_scaled(term, -1.0) for term in _linear(args[0], base, node)]
        if expr.op == "Cast":
            _check_width(expr, base.dtype)
            return _linear(args[0], base, node)
        if expr.op in ("Mul", "Div"):
            for x, factor in (args, args[::-1])[: 1 if expr.op == "Div" else 2]:
                if not _holds(factor, base):
                    return [_times(term, factor, expr.op == "Div", node) for term in _linear(x, base, node)]
        raise NoMatch(node, f"{expr.op} between projection and product", wanted="a view, a scale or a rotation")
    raise NoMatch(where, "does not depend on the projection alone")


def _holds(expr: Expr, base: gs.Tensor) -> bool:
    return any(isinstance(part, Read) and part.tensor is base for part in walk(expr))


def _scaled(term: _Term, factor: float) -> _Term:
    return replace(term, factor=term.factor * factor)


def _times(term: _Term, factor: Expr, divided: bool, where: gs.Node) -> _Term:
    value = value_of(factor)
    if value is not None:
        number = float(value)
        return _scaled(term, 1 / number if divided else number)
    if isinstance(factor, Read) and not divided and not term.trig and _is_constant(factor):
        return replace(term, trig=_TABLE, frequency=factor)
    if isinstance(factor, Apply) and not divided:
        if factor.op == "Cast":
            _check_width(factor, term.read.dtype)
            return _times(term, factor.args[0], False, where)
        if factor.op == "Neg":
            return _scaled(_times(term, factor.args[0], False, where), -1.0)
        if factor.op == "Mul":
            return _times(_times(term, factor.args[0], False, where), factor.args[1], False, where)
        if factor.op in (_COS, _SIN) and not term.trig:
            frequency, by = _angle(factor.args[0], factor.node)
            return replace(term, trig=factor.op, frequency=frequency, divided=by)
    node = factor.node if isinstance(factor, Apply) else where
    raise NoMatch(node, "scales a column by what is no cosine or sine of an angle", wanted="cos(a) or sin(a)")


def _angle(expr: Expr, where: gs.Node) -> tuple[float | Read, bool]:
    """The frequency of the angle frequency * place, and whether it divides."""
    if isinstance(expr, Apply):
        if expr.op == "Cast":
            _check_width(expr)
            if not isinstance(expr.args[0], Number):
                return _angle(expr.args[0], where)
        if expr.op in ("Mul", "Div"):
            if expr.dtype.itemsize > np.dtype(np.float32).itemsize:
                raise NoMatch(expr.node, f"computes angles in {expr.dtype.name}", wanted="float32, as our ops do")
            for place, frequency in (expr.args, expr.args[::-1])[: 1 if expr.op == "Div" else 2]:
                if _is_place(place) and (found := _frequency(frequency)) is not None:
                    return found, expr.op == "Div"
        raise NoMatch(expr.node, f"{node_name(expr.node)} gives an angle", wanted="a constant times the place")
    raise NoMatch(where, "an angle that does not grow with the place", wanted="a constant times the place")


def _is_place(expr: Expr) -> bool:
    """Whether the expression is the place of the token in its sequence, as a float."""
    while isinstance(expr, Apply) and expr.op == "Cast" and expr.dtype.kind == "f" and expr.dtype.itemsize >= 4:
        expr = expr.args[0]
    if not isinstance(expr, Number) or set(expr.poly.terms.values()) != {1}:
        return False
    return [[atom.key[:2] for atom in product] for product in expr.poly.terms] == [[("place", "s")]]


def _frequency(expr: Expr) -> float | Read | None:
    while isinstance(expr, Apply) and expr.op == "Cast":
        _check_width(expr)
        expr = expr.args[0]
    value = value_of(expr)
    if value is not None:
        return float(value)
    return expr if isinstance(expr, Read) and _is_constant(expr) else None


def _is_constant(read: Read) -> bool:
    return producer(read.tensor) is not None or isinstance(read.tensor, gs.Constant)


def _check_width(cast: Apply, least: Any = np.float32) -> None:
    if cast.dtype.kind not in "fV" or cast.dtype.itemsize < np.dtype(least).itemsize:
        raise NoMatch(cast.node, f"rounds to {cast.dtype.name}", wanted=f"at least {np.dtype(least).name}")
