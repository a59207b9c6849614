"""A function of one element, for every value that its type has.

The values are put in ranges, and a range is halved until all of its values come to the same: hidden, visible, or
neither. So nothing rests on which values were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..constants import Runner
from ..elements.expr import Apply, Expr, Read, value_of, walk
from ..nodes import NoMatch
from . import intervals
from .intervals import Interval

_MAX_RANGES = 4096
_SMALL = 1 << 16  # types of so few values are gone through one by one
_DECIDING = (-1, 0, 1, 2)
OPEN = 0  # the class of ranges that have to be halved


@dataclass(frozen=True)
class Range:
    """The values from `low` to `high`, both included, which all come to `kind`; NaN is a range of its own."""

    low: np.generic
    high: np.generic
    kind: int

    @property
    def is_nan(self) -> bool:
        return bool(self.low != self.low)


def ranges(expr: Expr, read: Read, classify: Callable[[Interval], np.ndarray], runner: Runner) -> list[Range]:
    """What `expr` comes to for every value of `read`, in order, neighbours of one kind together, NaN last.

    `classify` gives each interval of results a kind, OPEN where it holds results of several. Raises NoMatch where a
    single value stays open, or too many ranges.
    """
    codes = _Codes(read.dtype)
    done: list[tuple[int, int, int]] = []
    todo = _first_ranges(expr, codes)
    while todo:
        if len(done) + len(todo) > _MAX_RANGES + _SMALL:
            raise NoMatch(_node(expr), f"the values of '{read.name}' hide keys in part, or in too many ranges")
        low, high = (np.array(side, np.int64 if not codes.wide else object) for side in zip(*todo, strict=True))
        kinds = classify(
            _evaluate(expr, read, Interval(codes.values(low), codes.values(high), np.zeros(len(todo), bool)), runner)
        )
        halves = []
        for (first, last), kind in zip(todo, kinds.tolist(), strict=True):
            if kind != OPEN:
                done.append((first, last, kind))
            elif first == last:
                value = codes.values(np.array([first], object if codes.wide else np.int64))[0]
                raise NoMatch(_node(expr), f"where '{read.name}' is {value} it neither hides the key nor shows it")
            else:
                middle = (first + last) // 2
                halves += [(first, middle), (middle + 1, last)]
        todo = halves
        if len(todo) > _MAX_RANGES:
            raise NoMatch(_node(expr), f"the values of '{read.name}' hide keys in part, or in too many ranges")
    found = [Range(codes.value(a), codes.value(b), kind) for a, b, kind in _together(done)]
    if read.dtype.kind not in "biu":
        nan = np.array([np.nan], read.dtype)
        (kind,) = classify(_evaluate(expr, read, Interval(nan, nan, np.array([True])), runner)).tolist()
        found.append(Range(nan[0], nan[0], kind))
    return found


def _together(done: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    joined: list[tuple[int, int, int]] = []
    for first, last, kind in sorted(done):
        if joined and joined[-1][2] == kind:
            joined[-1] = (joined[-1][0], last, kind)
        else:
            joined.append((first, last, kind))
    return joined


def _first_ranges(expr: Expr, codes: _Codes) -> list[tuple[int, int]]:
    """Ranges that end at the values which may decide: small numbers and the constants of the expression."""
    first, last = codes.first, codes.last
    if last - first < _SMALL:
        return [(code, code) for code in range(first, last + 1)]
    deciding = set(map(float, _DECIDING))
    for part in walk(expr):
        value = value_of(part)
        if value is not None and value.dtype.kind in "biuf" and np.isfinite(value):
            deciding |= {float(value), -float(value)}
    singles = sorted({code for value in deciding if (code := codes.code(value)) is not None})
    made, start = [], first
    for code in singles:
        if start < code:
            made.append((start, code - 1))
        made.append((code, code))
        start = code + 1
    return [*made, (start, last)] if start <= last else made


def _evaluate(expr: Expr, read: Read, values: Interval, runner: Runner) -> Interval:
    """Bounds of the expression, operand by operand."""
    found: dict[Expr, Interval] = {read: values}
    stack: list[Expr] = [expr]
    while stack:
        current = stack[-1]
        given = [arg for arg in current.args if arg is not None] if isinstance(current, Apply) else []
        waits = [arg for arg in given if arg not in found]
        if current in found or not waits:
            stack.pop()
        if current not in found and waits:
            stack.extend(waits)
        elif current not in found:
            found[current] = _step(current, found, runner)
    result = found[expr]
    if result.low.ndim == 0:
        result = Interval(*(np.broadcast_to(x, len(values.low)) for x in (result.low, result.high, result.nan)))
    return result


def _step(expr: Expr, found: dict[Expr, Interval], runner: Runner) -> Interval:
    value = value_of(expr)
    if value is not None:
        return intervals.exactly(value)
    return intervals.bounds(expr, [None if arg is None else found[arg] for arg in expr.args], runner)


def _node(expr: Expr):
    return expr.node if isinstance(expr, Apply) else getattr(expr, "name", "")


class _Codes:
    """Whole numbers for the values of a type, in the same order."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.wide = dtype == np.uint64  # its codes do not fit in int64
        if dtype.kind == "b":
            self.first, self.last = 0, 1
        elif dtype.kind in "iu":
            self.first, self.last = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        else:
            self._bits = np.dtype(f"i{dtype.itemsize}")
            self.last = int(np.array(np.inf, dtype).view(self._bits))
            self.first = -self.last - 1  # of -inf; -0 is -1

    def values(self, codes: np.ndarray) -> np.ndarray:
        if self.dtype.kind in "biu":
            return codes.astype(self.dtype)
        negative = codes < 0
        magnitude = np.where(negative, -1 - codes, codes).astype(self._bits)
        positive = magnitude.view(self.dtype)
        return np.where(negative, -positive, positive).astype(self.dtype)

    def value(self, code: int) -> np.generic:
        return self.values(np.array([code], object if self.wide else np.int64))[0]

    def code(self, value: float) -> int | None:
        """The code of a value, None where the type does not have it."""
        if self.dtype.kind in "biu":
            return int(value) if value == int(value) and self.first <= value <= self.last else None
        with np.errstate(all="ignore"):
            typed = np.array(value, self.dtype)
        magnitude = int(np.abs(typed).view(self._bits))
        return -1 - magnitude if value < 0 else magnitude
