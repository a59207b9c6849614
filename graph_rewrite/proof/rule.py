"""Which values of a mask show a key, and whether that is the op's rule or can be made into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..nodes import NoMatch
from .intervals import Interval
from .scalar import Range

# What must be added to a score, or put in its place, for its key to count as hidden. Beside a visible key whose score
# is s a hidden one keeps a weight of exp(h + t - s), t being its own score: nothing in float32 where t - s < -h - 104.
# Scores come from products of layer-normed vectors and reach hundreds; BERT's own code adds -10000, everything later
# the least number of its type. A thousand, which scores do reach, is no hiding. bfloat16 has -9984 for -10000.
HIDING = -9984.0
VISIBLE, HIDDEN, OVERRIDES = 1, 2, 3


def classify(kind: str, factor: float) -> Callable[[Interval], np.ndarray]:
    """How to tell what each result is: HIDDEN, VISIBLE, or OVERRIDES, which lifts a key above all others, or 0.

    By `kind` the results are "added" to scores and then multiplied by `factor`, or conditions, "kept" or "hidden"
    where true.
    """

    def condition(result: Interval) -> np.ndarray:
        true, false = result.low.astype(bool), ~result.high.astype(bool)
        kept, hidden = (true, false) if kind == "kept" else (false, true)
        return np.where(kept, VISIBLE, np.where(hidden, HIDDEN, 0))

    def added(result: Interval) -> np.ndarray:
        ends = [x.astype(np.float64) * factor for x in (result.low, result.high)]
        low, high = ends if factor >= 0 else ends[::-1]
        found = np.where((low == 0) & (high == 0), VISIBLE, 0)
        found = np.where(high <= HIDING, HIDDEN, found)
        found = np.where(low >= -HIDING, OVERRIDES, found)
        return np.where(result.nan, 0, found)

    return added if kind == "added" else condition


@dataclass(frozen=True)
class Rule:
    """Keys are visible where the mask is from `low` to `high`, both included; with `outside`, where it is not.

    `lifting` says that beyond the mask's two values, 0 and 1, the model itself lifts keys above all others, the more
    the farther.
    """

    low: np.generic
    high: np.generic
    outside: bool = False
    lifting: bool = False

    @property
    def is_ops(self) -> bool:
        """Whether it is the op's own: 0 hides a key."""
        return self.outside and self.low == self.high == 0

    @property
    def is_one(self) -> bool:
        """Whether 1 alone shows a key, and nothing lifts one."""
        return not self.outside and not self.lifting and self.low == self.high == 1

    @property
    def is_opposite(self) -> bool:
        """Whether 0 alone shows a key."""
        return not self.outside and self.low == self.high == 0


def rule(found: list[Range], name: str, where) -> Rule:
    """The rule by which ranges of a mask's values show keys. Raises NoMatch where it is not as simple as that."""
    numbers = [part for part in found if not part.is_nan]
    nan = next((part.kind for part in found if part.is_nan), None)
    if any(part.kind == OVERRIDES for part in numbers):
        return _lifting(numbers, nan, name, where)
    shown = [part for part in numbers if part.kind == VISIBLE]
    hidden = [part for part in numbers if part.kind == HIDDEN]
    if not shown or not hidden:
        raise NoMatch(where, f"no value of '{name}' {'shows' if not shown else 'hides'} a key")
    for parts, outside in ((hidden, True), (shown, False)):
        # A comparison with NaN is false, and so NaN lies outside of every range.
        if len(parts) == 1 and nan in (None, VISIBLE if outside else HIDDEN) and _holds_both_zeros(parts[0]):
            return Rule(parts[0].low, parts[0].high, outside)
    also = "" if nan is None else ", and NaN " + ("shows one" if nan == VISIBLE else "hides one")
    raise NoMatch(where, f"the values of '{name}' that show a key are in {len(shown)} ranges{also}", wanted="one range")


def _lifting(numbers: list[Range], nan: int | None, name: str, where) -> Rule:
    """A rule for whole numbers of which 0 hides and 1 shows: (1 - mask) * -10000 lifts a key of which the mask is 2."""
    dtype = np.asarray(numbers[0].low).dtype
    kinds = {value: next((p.kind for p in numbers if p.low <= value <= p.high), 0) for value in (0, 1)}
    shown = [value for value, kind in kinds.items() if kind == VISIBLE]
    alone = [p for p in numbers if p.kind == VISIBLE]
    whole = dtype.kind in "iu" and dtype != np.uint64 and nan is None
    if whole and len(shown) == len(alone) == 1 and alone[0].low == alone[0].high and HIDDEN in kinds.values():
        beyond = [p for p in numbers if p.kind == OVERRIDES]
        upwards = shown == [1] and beyond == [numbers[-1]]
        downwards = shown == [0] and beyond == [numbers[0]]
        if upwards or downwards:
            return Rule(alone[0].low, alone[0].high, lifting=True)
    raise NoMatch(where, f"some values of '{name}' raise the scores of a key", wanted="a mask that only hides")


def _holds_both_zeros(part: Range) -> bool:
    """Whether 0 and -0, which compare as equal, come to the same."""
    if np.asarray(part.low).dtype.kind in "biu":
        return True
    return not (part.low == 0 and not np.signbit(part.low)) and not (part.high == 0 and np.signbit(part.high))
