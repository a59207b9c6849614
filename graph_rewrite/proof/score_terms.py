"""What is added to scores: which keys it hides by their distance, which by a mask, and a bias by head and distance.

Conditions on places are shown to be conditions on the distance k - q, and looked at for every distance at once; with
them decided, what is left must be one rule by which a mask of keys hides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from ..elements.engine import Elements
from ..elements.expr import Apply, Expr, Number, Read, constant, value_of
from ..elements.poly import ZERO, Poly
from ..nodes import NoMatch, producer
from . import key_mask, queries_too
from .distance import GREATEST, LEAST, by_distance, is_open, of_distance, reads
from .intervals import Interval, exactly
from .key_range import EVERY_KEY, KeyRange
from .rule import HIDDEN, VISIBLE, Rule, classify, rule
from .scalar import ranges

if TYPE_CHECKING:
    from ..constants import Runner

_TRUE, _FALSE = 1, 2
_MAX_CONDITIONS, _MAX_TERMS = 12, 16
# Scores reach hundreds, what hides is -9984: a bias between them does not show hidden keys again.
_LARGEST_BIAS = 1e3


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """`values` [heads, left + 1 + right] are added to logits by head and distance, from -left to right.

    Farther keys get what the last one on their side gets; there are heads, or 1 where all have the same.
    """

    values: np.ndarray
    left: int

    @property
    def right(self) -> int:
        return self.values.shape[1] - 1 - self.left


@dataclass(frozen=True)
class Hiding:
    """Which keys are hidden: those outside of `keys`, and those that the mask hides, where there is one.

    With `queries` all keys are hidden from a token that the mask hides.
    """

    keys: KeyRange
    rule: Rule | None
    queries: bool = False


@dataclass(frozen=True, eq=False)
class ScoreTerms:
    """All of what is done to a score: its key is seen within `keys`, by the `rule` of `mask`, and `bias` is added.

    With `hides_queries` the mask hides every key from a token that it hides itself.
    """

    keys: KeyRange = EVERY_KEY
    mask: gs.Tensor | None = None
    rule: Rule | None = None
    bias: DistanceBias | None = None
    hides_queries: bool = False

    def and_also(self, other: ScoreTerms, where: gs.Node) -> ScoreTerms:
        """What both do. Raises NoMatch at `where`, which adds the other one, where no op does that."""
        if (
            self.mask is not None
            and other.mask is not None
            and (self.mask is not other.mask or self.rule != other.rule)
        ):
            raise NoMatch(where, "hides keys by two masks", wanted="one")
        if self.bias is not None and other.bias is not None:
            raise NoMatch(where, "adds two biases by distance to the scores", wanted="one")
        first = self if self.mask is not None else other
        hides_queries = self.hides_queries or other.hides_queries
        return ScoreTerms(self.keys & other.keys, first.mask, first.rule, self.bias or other.bias, hides_queries)


def terms(expr: Expr, where: gs.Node | str) -> list[Expr]:
    """The summands of the expression. Raises NoMatch where they are many."""
    found, stack = [], [expr]
    while stack:
        current = stack.pop()
        if len(found) + len(stack) > _MAX_TERMS:  # sums of sums have twice as many with every step
            raise NoMatch(current.node if isinstance(current, Apply) else where, "a sum of many", wanted="a few")
        if isinstance(current, Apply) and current.op == "Add" and current.dtype.kind not in "biu":
            stack.extend(current.args)
        else:
            found.append(current)
    return found


def is_bias(term: Expr) -> bool:
    """Whether a summand reads a table of constants."""
    return any(isinstance(read.tensor, gs.Constant) for read in reads(term))


def hiding(
    elements: Elements, runner: Runner, target: gs.Tensor, mask: gs.Tensor | None, expr: Expr, places, kind, factor
) -> Hiding:
    """What the element `expr` of `target` at `places` hides by `kind` ("added", "kept", "hidden", see rule.classify).

    Raises NoMatch where that is more than a range of keys and a rule of `mask`.
    """
    where = producer(target) or target.name
    queries = False
    if mask is not None:
        wanted = key_mask.place_of_key(elements, target, mask, places)
        # Scores that a number is added to stay what they are beside each other; those that it replaces are all alike.
        if kind != "added":
            single = queries_too.of_keys_alone(runner, expr, mask, wanted, places, classify(kind, factor), where)
            expr, queries = (expr, False) if single is None else (single, True)
    found = reads(expr)
    if mask is not None:
        key_mask.check_reads(found, mask, wanted, target)
    elif found:
        raise NoMatch(where, f"'{target.name}' reads '{found[0].name}'")
    query, key = places[-2] if len(places) > 1 else ZERO, places[-1]
    conditions = _conditions(expr)
    if len(conditions) > _MAX_CONDITIONS:
        raise NoMatch(where, f"'{target.name}' is made of {len(conditions)} conditions on places")
    parts = {c: by_distance(of_distance(c, query, key, where), _truth, runner, where) for c in conditions}
    seen: dict[tuple[bool, ...], Rule | int] = {}
    kept: list[tuple[int, int, Rule | int]] = []
    for low, high, truths in _segments(list(parts.values())):
        if truths not in seen:
            decided = _decided(elements, expr, dict(zip(conditions, truths, strict=True)))
            seen[truths] = _outcome(runner, decided, target, mask, kind, factor, where)
        if seen[truths] != HIDDEN:
            kept.append((low, high, seen[truths]))
    outcomes = {outcome for *_, outcome in kept}
    if len(outcomes) != 1 or any(a[1] + 1 != b[0] for a, b in itertools.pairwise(kept)):
        raise NoMatch(where, f"'{target.name}' hides keys by more than one range of distances and one mask")
    low, high, outcome = kept[0][0], kept[-1][1], outcomes.pop()
    if not low <= 0 <= high:
        raise NoMatch(where, f"'{target.name}' hides a token from itself", wanted="a range that holds it")
    keys = KeyRange(None if low == LEAST else -low, None if high == GREATEST else high)
    return Hiding(keys, outcome if isinstance(outcome, Rule) else None, queries)


def _truth(found: Interval) -> np.ndarray:
    return np.where(found.low.astype(bool), _TRUE, np.where(found.high.astype(bool), 0, _FALSE))


def _conditions(expr: Expr) -> list[Expr]:
    """The outermost conditions in which places are, and nothing that is read."""
    found, stack, seen = [], [expr], set()
    while stack:
        current = stack.pop()
        if current in seen or not isinstance(current, Apply) or not is_open(current):
            continue
        seen.add(current)
        if current.dtype == np.bool_ and not reads(current):
            found.append(current)
        else:
            stack.extend(arg for arg in current.args if arg is not None)
    return found


def _segments(parts: list[list]) -> Iterable[tuple[int, int, tuple[bool, ...]]]:
    """Ranges of distances in which no condition changes."""
    starts = sorted({LEAST, *(int(part.low) for found in parts for part in found)})
    for low, following in zip(starts, [*starts[1:], GREATEST + 1], strict=True):
        truths = tuple(next(p.kind for p in found if p.low <= low <= p.high) == _TRUE for found in parts)
        yield low, following - 1, truths


def _decided(elements: Elements, expr: Expr, truths: dict[Expr, bool]) -> Expr:
    """The expression with its conditions decided."""
    done: dict[Expr, Expr] = {c: constant(np.bool_(truth)) for c, truth in truths.items()}

    def rebuilt(current: Expr) -> Expr:
        if current not in done:
            done[current] = current
            if isinstance(current, Apply):
                args = [None if arg is None else rebuilt(arg) for arg in current.args]
                if args != list(current.args):
                    done[current] = elements.apply(current.node, args, current.dtype)
        return done[current]

    return rebuilt(expr)


def _outcome(runner: Runner, expr: Expr, target: gs.Tensor, mask, kind: str, factor: float, where) -> Rule | int:
    """HIDDEN or VISIBLE where that is the same whatever the mask, else the mask's rule."""
    key_mask.check_no_places(expr, target)
    value = value_of(expr)
    if value is not None:
        (found,) = classify(kind, factor)(exactly(value.reshape(1))).tolist()
        if found in (HIDDEN, VISIBLE):
            return found
        raise NoMatch(where, f"'{target.name}' adds {value} to scores, which neither hides a key nor shows it")
    read = reads(expr)[0]
    found = ranges(expr, read, classify(kind, factor), runner)
    if {part.kind for part in found} == {HIDDEN}:
        return HIDDEN
    made = rule(found, mask.name, where)
    if made.lifting:
        key_mask.check_lifting(expr, read, factor, where)
    return made


def bias(elements: Elements, runner: Runner, term: Expr, places, heads: int, where) -> DistanceBias:
    """The summand as a table by head and distance. Raises NoMatch where it hangs on anything else."""
    factor, read = scaled_read(term, where)
    table = elements.constant(read.tensor)
    if table is None:
        raise NoMatch(where, f"'{read.name}' is too large a table of biases")
    query, key = places[-2] if len(places) > 1 else ZERO, places[-1]
    head = places[-3] if len(places) > 2 else ZERO
    per_axis: list[list[int] | None] = []  # by segment of distances; None: the head
    segments: list[tuple[int, int]] | None = None
    for place in read.index:
        if place.constant is not None:
            per_axis.append([place.constant])
        elif place == head:
            per_axis.append(None)
        elif segments is None:
            number = of_distance(number_of(elements, place, where), query, key, where)
            found = by_distance(number, _whole(table), runner, where)
            segments = [(int(part.low), int(part.high)) for part in found]
            per_axis.append([part.kind - 1 for part in found])
        else:
            raise NoMatch(where, f"'{read.name}' is looked up by more than one number that depends on the distance")
    segments = segments or [(LEAST, GREATEST)]
    if len(segments) > 1 and any(p is not None and len(p) > 1 and (min(p) < 0) for p in per_axis):
        raise NoMatch(where, f"'{read.name}' is looked up from its end")
    left = -segments[0][1] if len(segments) > 1 else 0
    right = segments[-1][0] if len(segments) > 1 else 0
    if left < 0 or right < 0 or left + right >= _MAX_TABLE:
        raise NoMatch(where, f"a bias that changes from distance {-left} to {right}", wanted=f"below {_MAX_TABLE}")
    count = heads if head != ZERO and head.constant is None else 1
    values = np.zeros((count, left + 1 + right), np.float32)
    for number, (low, high) in enumerate(segments):
        for h in range(count):
            at = tuple(h if p is None else p[0] if len(p) == 1 else p[number] for p in per_axis)
            values[h, max(low, -left) + left : min(high, right) + left + 1] = factor * float(table[at])
    return DistanceBias(values, left)


def check_bias(found: DistanceBias, where) -> None:
    """Raise NoMatch where a bias may do more than prefer some keys: hide them, or show what a mask hides."""
    largest = float(np.abs(found.values).max())
    if not largest <= _LARGEST_BIAS:
        raise NoMatch(where, f"a bias of {largest:g} by distance", wanted=f"{-_LARGEST_BIAS:g} to {_LARGEST_BIAS:g}")


_MAX_TABLE = 1 << 14


def _whole(table: np.ndarray):
    """Kinds that are the whole numbers themselves, from 1 on."""

    def kinds(found: Interval) -> np.ndarray:
        low, high = found.low.astype(np.float64), found.high.astype(np.float64)
        known = (low == high) & ~found.nan & (low >= 0) & (low < max(table.shape))
        return np.where(known, np.where(known, low, 0) + 1, 0).astype(np.int64)

    return kinds


def number_of(elements: Elements, place: Poly, where) -> Expr:
    """The place as an expression: what was looked up for it, or index arithmetic."""
    if len(place.atoms) == 1 and (atom := next(iter(place.atoms))) in elements.looked_up:
        if place.terms != {(atom,): 1}:
            raise NoMatch(where, f"a bias is looked up at {place!r}", wanted="a number that depends on the distance")
        return elements.looked_up[atom]
    return Number(place, np.dtype(np.int64))


def scaled_read(term: Expr, where) -> tuple[float, Read]:
    if isinstance(term, Read):
        return 1.0, term
    if isinstance(term, Apply) and term.op in ("Mul", "Div", "Neg", "Cast") and term.dtype.kind not in "biu":
        if term.op == "Neg":
            factor, read = scaled_read(term.args[0], where)
            return -factor, read
        if term.op == "Cast":
            factor, read = scaled_read(term.args[0], where)
            if term.dtype.itemsize < read.dtype.itemsize:
                raise NoMatch(term.node, f"rounds a bias of scores to {term.dtype.name}", wanted=f"{read.dtype.name}")
            return factor, read
        for x, other in (term.args, term.args[::-1])[: 1 if term.op == "Div" else 2]:
            value = value_of(other)
            if value is not None:
                factor, read = scaled_read(x, where)
                return (factor / float(value) if term.op == "Div" else factor * float(value)), read
    node = term.node if isinstance(term, Apply) else where
    raise NoMatch(node, "a bias of scores is more than a table by head and distance")


__all__ = ["DistanceBias", "Hiding", "KeyRange", "ScoreTerms", "bias", "check_bias", "hiding", "is_bias", "terms"]
