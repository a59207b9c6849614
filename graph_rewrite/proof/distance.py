"""Functions of the distance k - q between a key and its query, for every distance that there can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ..constants import Runner
from ..elements.expr import Apply, Expr, Number, Read, made, walk
from ..elements.poly import Poly, number
from ..nodes import NoMatch
from .intervals import Interval
from .scalar import Range, ranges

# Sizes are below 2^31, and so are distances.
DISTANCE = Read("the distance", (), np.dtype(np.int32), None)
LEAST, GREATEST = int(np.iinfo(np.int32).min), int(np.iinfo(np.int32).max)
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
_INDEX = np.dtype(np.int64)


def of_distance(expr: Expr, query: Poly, key: Poly, where: gs.Node | str) -> Expr:
    """The expression with DISTANCE in place of k - q. Raises NoMatch at `where` where it hangs on more than that."""
    return _Rewriting(query, key, where).expr(expr)


def by_distance(
    expr: Expr, classify: Callable[[Interval], np.ndarray], runner: Runner, where: gs.Node | str
) -> list[Range]:
    """What an expression in DISTANCE comes to, for every distance in order, neighbours of one kind together.

    Raises NoMatch, at `where` if at no node of the expression, where that is not found out.
    """
    node = expr.node if isinstance(expr, Apply) else where
    if not any(part == DISTANCE for part in walk(expr)):
        expr = made("Add", (expr, _times(DISTANCE, 0, _named(node))), _INDEX, _named(node))
    try:
        first, *others = ranges(expr, DISTANCE, classify, runner)
    except NoMatch as miss:
        raise NoMatch(node, "is not followed for every distance between a query and a key") from miss
    if others and first.high == LEAST:  # sizes are below 2^31, and so no distance is -2^31: its |d| is no int32
        first, *others = others
        first = replace(first, low=LEAST)
    return [first, *others]


def is_open(expr: Expr) -> bool:
    """Whether the expression holds a place or a size as such."""
    return any(isinstance(part, Number) and part.poly.constant is None for part in walk(expr))


def reads(expr: Expr) -> list[Read]:
    """What the expression reads."""
    return [part for part in walk(expr) if isinstance(part, Read)]


def with_parts(expr: Expr, changes: dict[Expr, Expr]) -> Expr:
    """The expression with other parts in place of some."""
    done = dict(changes)

    def rebuilt(current: Expr) -> Expr:
        if current not in done:
            done[current] = current
            if isinstance(current, Apply):
                args = tuple(None if arg is None else rebuilt(arg) for arg in current.args)
                done[current] = Apply(current.op, current.attributes, args, current.dtype, current.node)
        return done[current]

    return rebuilt(expr)


class _Rewriting:
    def __init__(self, query: Poly, key: Poly, where: gs.Node | str) -> None:
        self._query, self._key, self._where = query.atoms, key.atoms, where
        self._done: dict[Expr, Expr] = {}

    def expr(self, expr: Expr) -> Expr:
        if expr not in self._done:
            self._done[expr] = self._rewritten(expr)
        return self._done[expr]

    def _rewritten(self, expr: Expr) -> Expr:
        if isinstance(expr, Number):
            return self._number(expr.poly)
        if not isinstance(expr, Apply):
            return expr
        args, self._where = expr.args, expr.node
        if expr.op in _COMPARISONS and all(isinstance(arg, Number) for arg in args):
            args = (Number(args[0].poly - args[1].poly, _INDEX), Number(number(0), _INDEX))
        # What is computed with the distance has its type; a Cast keeps the type that it gives.
        rewritten = tuple(None if arg is None else self.expr(arg) for arg in args)
        if rewritten == expr.args:
            return expr
        dtype = (
            _INDEX if isinstance(expr.dtype, np.dtype) and expr.dtype == np.int32 and expr.op != "Cast" else expr.dtype
        )
        return Apply(expr.op, expr.attributes, rewritten, dtype, expr.node)

    def _number(self, poly: Poly) -> Expr:
        if poly.constant is not None:
            return Number(poly, _INDEX)
        total: Expr | None = None
        node = _named(self._where)
        along = {"query": 0, "key": 0}
        constant = 0
        for atoms, factor in poly.terms.items():
            if not atoms:
                constant = factor
            elif len(atoms) == 1 and atoms[0] in self._query:
                along["query"] = factor
            elif len(atoms) == 1 and atoms[0] in self._key:
                along["key"] = factor
            elif len(atoms) == 1 and atoms[0].key[0] == "minimum":
                parts = tuple(self._number(part) for part in atoms[0].key[1:])
                total = _sum(total, _times(made("Min", parts, _INDEX, node), factor, node), node)
            else:
                raise NoMatch(self._where, f"{poly!r} hangs on more than the distance between a query and a key")
        if along["key"] != -along["query"]:
            raise NoMatch(self._where, f"{poly!r} hangs on more than the distance between a query and a key")
        if along["key"]:
            total = _sum(total, _times(DISTANCE, along["key"], node), node)
        return total if not constant and total is not None else _sum(total, Number(number(constant), _INDEX), node)


def _named(where: gs.Node | str) -> gs.Node:
    """What made-up expressions are called by in messages."""
    return where if isinstance(where, gs.Node) else gs.Node("Identity", where)


def _times(expr: Expr, factor: int, node: gs.Node) -> Expr:
    wide = made("Cast", (expr,), _INDEX, node, to=7) if expr.dtype != _INDEX else expr
    return wide if factor == 1 else made("Mul", (wide, Number(number(factor), _INDEX)), _INDEX, node)


def _sum(a: Expr | None, b: Expr, node: gs.Node) -> Expr:
    return b if a is None else made("Add", (a, b), _INDEX, node)
