"""Bounds on what element-wise operators make of bounded elements, computed by ONNX Runtime in the graph's own types.

An operator that grows or falls with each operand takes its extremes at extremes of the operands: roundings keep the
order. Where that is not so, or a whole number could overflow, anything of the type may come out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..constants import Runner
from ..elements.expr import Apply

Array = np.ndarray


@dataclass
class Interval:
    """For several elements at once, the least and the largest that each may be. `nan`: whether it may be NaN."""

    low: Array
    high: Array
    nan: Array

    @property
    def single(self) -> Array:
        return (self.low == self.high) & ~self.nan


def exactly(values: Array) -> Interval:
    return Interval(values, values, _is_nan(values))


def anything(dtype: np.dtype, count: int) -> Interval:
    """Nothing is known."""
    if dtype.kind == "b":
        low, high = False, True
    elif dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        low, high = -np.inf, np.inf
    is_float = dtype.kind not in "biu"
    return Interval(np.full(count, low, dtype), np.full(count, high, dtype), np.full(count, is_float))


def bounds(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval:
    """Bounds of the operator's results."""
    count = _count(given)
    found = anything(made.dtype, count)
    rule = _RULES.get(made.op)
    with np.errstate(all="ignore"):
        if rule is not None:
            known = rule(made, given, runner)
            if known is not None:
                found = known
        exact = np.logical_and.reduce([_is_one(made, i, arg, count) for i, arg in enumerate(given) if arg is not None])
        return _computed_where(made, given, runner, exact, found)


def _is_one(made: Apply, index: int, arg: Interval, count: int) -> Array:
    """Where an operand is one number. What lies between -0 and 0 is equal to both, but divides to other infinities."""
    one = (arg.low == arg.high) | (arg.nan & _is_nan(arg.low))
    if (made.op, index) in _SIGN_OF_ZERO and arg.low.dtype.kind not in "biu":
        one &= arg.low != 0
    return np.broadcast_to(one, count)


def _computed_where(made: Apply, given: Sequence[Interval | None], runner: Runner, exact: Array, found: Interval):
    """Where every operand is one number, so is the result, whatever the operator."""
    if not exact.any():
        return found
    picked = [None if arg is None else _pick(arg.low, exact) for arg in given]
    values = _run(made, picked, runner)
    if values is None:
        return found
    low, high, nan = found.low.copy(), found.high.copy(), found.nan.copy()
    low[exact] = high[exact] = values
    nan[exact] = _is_nan(low[exact])
    return Interval(low, high, nan)


def _pick(values: Array, where: Array) -> Array:
    """A constant stays a scalar: some operators take nothing else."""
    return values if values.ndim == 0 else values[where]


def _run(made: Apply, arrays: Sequence[Array | None], runner: Runner) -> Array | None:
    x = arrays[0]
    count = x.size if made.op == "Log" and x is not None and x.ndim == 1 else 0
    if count:  # whole vectors: of what is left over ONNX Runtime takes another logarithm, which rounds otherwise
        arrays = [np.pad(x, (0, -count % _VECTORS), mode="edge")]
    try:
        result = runner.apply(made.op, made.node.attrs, arrays)[0]
    except ValueError:
        return None
    return result[:count] if count else result


def _at(made: Apply, arrays: Sequence[Array | None], runner: Runner, count: int) -> Array | None:
    result = _run(made, arrays, runner)
    return None if result is None else np.array(np.broadcast_to(result, count))


def _count(given: Sequence[Interval | None]) -> int:
    return max(arg.low.size for arg in given if arg is not None)


def _any_nan(given: Sequence[Interval | None]) -> Array:
    return np.logical_or.reduce([np.broadcast_to(arg.nan, _count(given)) for arg in given if arg is not None])


def _rising(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    """The larger an operand, the larger the result."""
    count = _count(given)
    low = _at(made, [None if arg is None else arg.low for arg in given], runner, count)
    high = _at(made, [None if arg is None else arg.high for arg in given], runner, count)
    return None if low is None or high is None else _checked(made, low, high, _any_nan(given))


def _reversed(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    return _rising(made, [Interval(arg.high, arg.low, arg.nan) for arg in given], runner)


def _corners(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    """Extremes lie where every operand is at one of its own."""
    count, (a, b) = _count(given), given
    corners = [_at(made, pair, runner, count) for pair in itertools.product((a.low, a.high), (b.low, b.high))]
    if any(corner is None for corner in corners):
        return None
    stacked = np.stack(corners)
    nan = _any_nan(given) | _is_nan(stacked).any(axis=0)
    found = _checked(made, stacked.min(axis=0), stacked.max(axis=0), nan)
    if made.op == "Mul" and made.dtype.kind not in "biu":
        # 0 times infinity, which may lie between the corners.
        zeros, infinite = zip(*(((x.low <= 0) & (x.high >= 0), _is_infinite(x)) for x in given), strict=True)
        return _else_anything(made, np.broadcast_to(~(zeros[0] & infinite[1] | zeros[1] & infinite[0]), count), found)
    return _without_overflow(made, given, found)


def _is_infinite(x: Interval) -> Array:
    return np.isinf(x.low.astype(np.float64)) | np.isinf(x.high.astype(np.float64))


def _without_overflow(made: Apply, given: Sequence[Interval | None], found: Interval) -> Interval | None:
    """Nothing is known of a whole number that may have left its type, unless all do, by the same number of rounds."""
    if made.dtype.kind not in "iu":
        return found
    exact = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}.get(made.op)
    if exact is None:
        return found
    limits, count = np.iinfo(made.dtype), len(found.low)
    ends = [[np.broadcast_to(end, count) for end in (x.low, x.high)] for x in given]
    inside = np.full(count, True)
    for pair in itertools.product(*ends):
        value = exact(*(x.astype(np.float64) for x in pair))
        inside &= (value >= limits.min * 0.999) & (value <= limits.max * 0.999)
    (near,) = np.nonzero(~inside)
    if near.size:
        rounds = [
            (exact(*(x[near].astype(object) for x in pair)) - int(limits.min)) // (1 << limits.bits)
            for pair in itertools.product(*ends)
        ]
        inside[near] = [len(set(each)) == 1 for each in zip(*rounds, strict=True)]
    return _else_anything(made, inside, found)


def _else_anything(made: Apply, known: Array, found: Interval) -> Interval:
    rest = anything(made.dtype, len(known))
    return Interval(
        np.where(known, found.low, rest.low).astype(made.dtype),
        np.where(known, found.high, rest.high).astype(made.dtype),
        np.where(known, found.nan, rest.nan),
    )


def _checked(made: Apply, low: Array, high: Array, nan: Array) -> Interval:
    """A NaN at an extreme: then the other numbers between may be anything."""
    broken = _is_nan(low) | _is_nan(high) | (low > high)
    return _else_anything(made, ~broken, Interval(low, high, nan)) if broken.any() else Interval(low, high, nan)


def _divided(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    b = given[1]
    apart = (b.low > 0) | (b.high < 0)
    if not np.all(apart):  # somewhere a division by 0
        return None
    return _corners(made, given, runner)


def _cast(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    (x,) = given
    count = len(x.low)
    if made.dtype.kind == "b":
        zero = (x.low <= 0) & (x.high >= 0)
        only = (x.low == 0) & (x.high == 0)
        return Interval(~zero, ~only | x.nan, np.full(count, False))  # NaN is true
    found = _rising(made, given, runner)
    if found is None or made.dtype.kind not in "iu" or x.low.dtype.kind == "b":
        return found
    limits = np.iinfo(made.dtype)
    inside = ~x.nan & (x.low >= limits.min) & (x.high <= limits.max)
    if x.low.dtype.kind not in "iu":
        inside &= (x.low.astype(np.float64) > limits.min) & (x.high.astype(np.float64) < limits.max)
    found.nan = np.full(count, False)
    return _else_anything(made, inside, found)


def _less(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval:
    """Less and its like: true for certain, or possible."""
    a, b = given if made.op.startswith("Less") else given[::-1]
    compare: Callable = np.less_equal if made.op.endswith("Equal") else np.less
    nan = _any_nan(given)
    return _truths(compare(a.high, b.low) & ~nan, compare(a.low, b.high), given)


def _equal(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval:
    a, b = given
    certain = (a.low == a.high) & (b.low == b.high) & (a.low == b.low) & ~_any_nan(given)
    return _truths(certain, (a.low <= b.high) & (b.low <= a.high), given)


def _truths(certain: Array, possible: Array, given: Sequence[Interval | None]) -> Interval:
    count = _count(given)
    low, high = (np.array(np.broadcast_to(x, count)) for x in (certain, possible))
    return Interval(low, high, np.full(count, False))


def _not_a_number(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval:
    (x,) = given
    return _truths(_is_nan(x.low), x.nan, given)


def _chosen(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval:
    condition, a, b = given
    count = _count(given)
    c_low, c_high = np.broadcast_to(condition.low, count), np.broadcast_to(condition.high, count)
    x = [np.broadcast_to(v, count) for v in (a.low, a.high, a.nan)]
    y = [np.broadcast_to(v, count) for v in (b.low, b.high, b.nan)]
    either = (np.fmin(x[0], y[0]), np.fmax(x[1], y[1]), x[2] | y[2])
    picked = [np.where(c_low, v, np.where(c_high, e, w)) for v, w, e in zip(x, y, either, strict=True)]
    return Interval(*picked)


def _absolute(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    (x,) = given
    ends = [_at(made, [v], runner, len(x.low)) for v in (x.low, x.high)]
    if ends[0] is None or ends[1] is None:
        return None
    across = (x.low < 0) & (x.high > 0)
    low = np.where(across, np.zeros_like(ends[0]), np.minimum(*ends))
    found = _checked(made, low, np.maximum(*ends), x.nan)
    return _else_anything(made, x.low != np.iinfo(made.dtype).min, found) if made.dtype.kind == "i" else found


def _logarithm(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    """Rising, but for the roundings of the approximation that computes it."""
    (x,) = given
    found = _rising(made, given, runner)
    if found is None or made.dtype not in (np.float32, np.float64):
        return None
    slack = np.where(x.low == x.high, 0, 1e-6 * (1 + np.maximum(np.abs(found.low), np.abs(found.high))))
    return Interval((found.low - slack).astype(made.dtype), (found.high + slack).astype(made.dtype), found.nan)


def _negative(made: Apply, given: Sequence[Interval | None], runner: Runner) -> Interval | None:
    found = _reversed(made, given, runner)
    if found is None or made.dtype.kind != "i":
        return found
    return _else_anything(made, given[0].low != np.iinfo(made.dtype).min, found)


def _is_nan(values: Array) -> Array:
    if values.dtype.kind in "biu":
        return np.full(values.shape, False)
    return np.isnan(values.astype(np.float32) if values.dtype == ml_dtypes.bfloat16 else values)


_VECTORS = 64  # a multiple of what any processor computes at once
_SIGN_OF_ZERO = (("Div", 1), ("Reciprocal", 0), ("Pow", 0))
_RULES: dict[str, Callable[[Apply, Sequence[Interval | None], Runner], Interval | None]] = {
    **dict.fromkeys(("And", "Or", "Floor", "Ceil", "Round", "Relu", "Sign", "Clip", "Min", "Max", "Identity"), _rising),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _less),
    **dict.fromkeys(("Add", "Sub", "Mul"), _corners),
    "Not": _reversed,
    "Div": _divided,
    "Cast": _cast,
    "Equal": _equal,
    "IsNaN": _not_a_number,
    "Where": _chosen,
    "Abs": _absolute,
    "Log": _logarithm,
    "Neg": _negative,
}
