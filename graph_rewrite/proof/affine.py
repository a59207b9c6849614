"""Whether an expression is a * x + b of one element x."""

from __future__ import annotations

import numpy as np

from ..elements.expr import Apply, Expr, Read, value_of


def slope(expr: Expr, read: Read) -> float | None:
    """The a of a * x + b, roundings aside; None where the expression has no such form."""
    found = _affine(expr, read)
    return None if found is None else found[0]


def _affine(expr: Expr | None, read: Read) -> tuple[float, float] | None:
    if expr == read:
        return 1.0, 0.0
    value = value_of(expr)
    if value is not None:
        return (0.0, float(value)) if value.dtype.kind in "biuf" else None
    if not isinstance(expr, Apply):
        return None
    given = [_affine(arg, read) for arg in expr.args]
    if None in given:
        return None
    if expr.op == "Cast":
        return given[0] if _keeps_numbers(expr.args[0].dtype, expr.dtype) else None
    if expr.op == "Identity":
        return given[0]
    if expr.op == "Neg":
        return -given[0][0], -given[0][1]
    if expr.op in ("Add", "Sub") and len(given) == 2:
        sign = 1 if expr.op == "Add" else -1
        return given[0][0] + sign * given[1][0], given[0][1] + sign * given[1][1]
    if expr.op == "Mul" and len(given) == 2:
        for (a, b), (times, factor) in (given, given[::-1]):
            if times == 0:
                return a * factor, b * factor
    if expr.op == "Div" and given[1][0] == 0 and given[1][1] and expr.dtype.kind not in "iu":
        return given[0][0] / given[1][1], given[0][1] / given[1][1]
    return None


def _keeps_numbers(given: np.dtype, made: np.dtype) -> bool:
    """Whether a Cast rounds at most: whole numbers stay so, and floats do not come to less range."""
    if made.kind == "b" or (made.kind in "iu" and given.kind not in "biu"):
        return False
    return given.kind in "biu" or made.itemsize >= given.itemsize
