"""What element-wise operators come to on index arithmetic and constants."""

from __future__ import annotations

import numpy as np

from . import poly
from .expr import INDEX_TYPES, Apply, Expr, Number, constant, truth
from .poly import ONE, ZERO, Poly, nonnegative

_BOOL = np.dtype(bool)
# Larger numbers of 64 bits ONNX Runtime 1.31 compares wrongly in these operators, where there are several at a time and
# they lie beyond 2^31 and close together: it takes their lower halves for signed. (Sizes are far below.)
_COMPARING = ("Min", "Max", "Clip", "Sign")
FAR = 1 << 30
_END = 1 << 62


def may_be_compared_wrongly(made: Apply) -> bool:
    """Whether ONNX Runtime's result need not be what the operator says."""
    if made.op not in _COMPARING or made.dtype != np.int64:
        return False
    far = [arg.poly for arg in made.args if isinstance(arg, Number) and not _is_near(arg.poly)]
    # A single one about an end of 64 bits is close to no other.
    return len(far) > 1 or any(number.constant is None or abs(number.constant) < _END for number in far)


def _is_near(number: Poly) -> bool:
    if number.constant is not None:
        return abs(number.constant) < 1 << 31
    bounds = [bound for atom in number.atoms for bound in (*atom.lows, *atom.highs)]
    return all(abs(factor) < FAR for factor in number.terms.values()) and all(map(_is_near, bounds))


def simplified(made: Apply) -> Expr:
    """The same element in fewer words; `made` itself where nothing is known of its operands."""
    rule = _LOGIC.get(made.op)
    if rule is not None:
        return rule(made)
    args = made.args
    if made.op == "Identity" or (made.op == "Cast" and args[0].dtype == made.dtype):
        return args[0]
    if args and all(isinstance(arg, Number) for arg in args):
        found = _of_numbers(made, [arg.poly for arg in args])
        if isinstance(found, Poly):
            return Number(found, made.dtype)
        if found is not None:
            return constant(np.bool_(found))
    return made


def _of_numbers(made: Apply, given: list[Poly]) -> Poly | bool | None:
    op = made.op
    if op in _COMPARISONS:
        return _COMPARISONS[op](*given)
    if made.dtype == _BOOL:
        return _known(given[0]) if op == "Cast" else None
    if made.dtype not in INDEX_TYPES:
        return None
    if op == "Cast":
        return given[0]
    if op in ("Add", "Sum"):
        return sum(given[1:], given[0])
    if op == "Sub":
        return given[0] - given[1]
    if op == "Mul":
        return given[0] * given[1]
    if op == "Neg":
        return -given[0]
    if op in ("Div", "Mod"):
        found = poly.divided(*given) if nonnegative(given[0]) else None
        return None if found is None else found[op == "Mod"]
    if op == "Abs":
        return given[0] if nonnegative(given[0]) else -given[0] if nonnegative(-given[0]) else None
    if op in ("Min", "Max"):
        sign = -ONE if op == "Max" else ONE
        smallest = given[0] * sign
        for other in given[1:]:
            smallest = poly.minimum(smallest, other * sign)
        return smallest * sign
    if op == "Relu":
        return -poly.minimum(-given[0], ZERO)
    if op == "Clip" and len(given) == 3:
        return poly.minimum(-poly.minimum(-given[0], -given[1]), given[2])
    return None


def _known(given: Poly) -> bool | None:
    """Whether a number is not 0, None where it may be either."""
    if given == ZERO:
        return False
    return True if nonnegative(given - ONE) or nonnegative(-given - ONE) else None


def _less(a: Poly, b: Poly) -> bool | None:
    return True if nonnegative(b - a - ONE) else False if nonnegative(a - b) else None


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


_COMPARISONS = {
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: _opposite(_less(b, a)),
    "GreaterOrEqual": lambda a, b: _opposite(_less(a, b)),
    "Equal": lambda a, b: _opposite(_known(a - b)),
}


def _and(made: Apply) -> Expr:
    a, b = made.args
    for x, other in ((a, b), (b, a)):
        if truth(x) is not None:
            return other if truth(x) else x
    return a if a == b else made


def _or(made: Apply) -> Expr:
    a, b = made.args
    for x, other in ((a, b), (b, a)):
        if truth(x) is not None:
            return x if truth(x) else other
    return a if a == b else made


def _where(made: Apply) -> Expr:
    condition, a, b = made.args
    if truth(condition) is not None:
        return a if truth(condition) else b
    return a if a == b else made


_LOGIC = {"And": _and, "Or": _or, "Where": _where}
