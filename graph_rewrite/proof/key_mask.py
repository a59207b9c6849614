"""Whether what is added to scores, or selects them, hides keys and does nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from ..elements import poly
from ..elements.engine import Elements, Places
from ..elements.expr import Apply, Expr, Number, Read, value_of, walk
from ..elements.poly import ONE, ZERO, Poly
from ..nodes import DEFAULT_DOMAINS, NoMatch, producer
from ..shapes import Dim, monomial
from .affine import slope
from .intervals import exactly
from .rule import HIDING, VISIBLE, Rule, classify, rule
from .scalar import ranges

if TYPE_CHECKING:
    from ..constants import Runner

_MAX_NODES = 400
_MAX_CANDIDATES = 24


class Above:
    """What is above a tensor: the inputs of the model, and computed tensors, the nearest first."""

    def __init__(self, elements: Elements, target: gs.Tensor) -> None:
        self.inputs: list[gs.Tensor] = []
        self.computed: list[gs.Tensor] = []
        seen, queue = set(), deque([target])
        while queue and len(seen) <= _MAX_NODES:
            tensor = queue.popleft()
            if id(tensor) in seen or tensor.is_empty() or isinstance(tensor, gs.Constant):
                continue
            seen.add(id(tensor))
            node = producer(tensor)
            if id(tensor) in elements.inputs:
                self.inputs.append(tensor)
            elif node is not None:
                self.computed.append(tensor)
                if node.op != "Shape" and node.domain in DEFAULT_DOMAINS:
                    queue.extend(node.inputs)

    def candidates(self) -> list[gs.Tensor]:
        """Tensors that may say of each key, [B, S] or [B, 1, 1, S], whether to hide it."""
        given = [t for t in self.inputs if _is_mask(t)]
        computed = [t for t in self.computed if _is_mask(t)]
        computed.sort(key=lambda t: (t.dtype != bool, len(t.shape)))
        return [*given, *computed[:_MAX_CANDIDATES]]


def shows_every_key(elements: Elements, target: gs.Tensor, kind: str, factor: float) -> bool:
    """Whether `target` is the same everywhere and hides nothing."""
    try:
        _, expr = elements.generic(target)
    except NoMatch:
        return False
    value = value_of(expr)
    return value is not None and classify(kind, factor)(exactly(value.reshape(1)))[0] == VISIBLE


def prove(elements: Elements, runner: Runner, target: gs.Tensor, mask: gs.Tensor, kind: str, factor: float) -> Rule:
    """The rule by which `mask` [B, S] or [B, 1, 1, S] hides keys in `target`. Raises NoMatch where it does not."""
    places, expr = elements.generic(target, mask)
    where = producer(target) or target.name
    reads = [part for part in walk(expr) if isinstance(part, Read)]
    check_reads(reads, mask, place_of_key(elements, target, mask, places), target)
    check_no_places(expr, target)
    if not reads:
        raise NoMatch(where, f"'{target.name}' does not depend on '{mask.name}'")
    found = rule(ranges(expr, reads[0], classify(kind, factor), runner), mask.name, where)
    if found.lifting:
        check_lifting(expr, reads[0], factor, where)
    return found


def check_reads(reads: Sequence[Read], mask: gs.Tensor, wanted: Places, target: gs.Tensor) -> None:
    """Raise NoMatch where anything but the element of `mask` at `wanted` is read."""
    for read in reads:
        if read.tensor is not mask or read.index != wanted:
            place = ", ".join(map(repr, read.index))
            key = ", ".join(map(repr, wanted))
            where = producer(target) or target.name
            raise NoMatch(where, f"'{target.name}' reads '{read.name}' at [{place}], the key's place is [{key}]")


def check_lifting(expr: Expr, read: Read, factor: float, where) -> None:
    """Raise NoMatch where what lifts keys above others is no straight line."""
    if abs((slope(expr, read) or 0.0) * factor) < -HIDING:
        what = f"numbers above 1 in '{read.name}' raise the scores of a key, not each by as much as the one before it"
        raise NoMatch(where, what, wanted="a mask that only hides, or (1 - mask) times a number")


def place_of_key(elements: Elements, target: gs.Tensor, mask: gs.Tensor, places: Places) -> Places:
    """Where `mask` has the key that `target` is about at `places`; both must be of the same sizes."""
    extents, own = elements.shape(target), elements.shape(mask)
    batch, key = (extents[-4], places[-4]) if len(extents) >= 4 else (ONE, ZERO), (extents[-1], places[-1])
    flat = len(own) == len(mask.shape) and all(n == ONE for n in own[1:-1])
    if len(extents) > 4 or not extents or not flat or (own[0], own[-1]) != (batch[0], key[0]):
        what = f"'{target.name}' {extents} has other sizes than '{mask.name}' {own}"
        raise NoMatch(producer(target) or target.name, what, wanted="[B, 1, 1, S] or what that is broadcast to")
    return (batch[1], *(ZERO for _ in own[1:-1]), key[1])


def check_no_places(expr: Expr, target: gs.Tensor) -> None:
    """Raise NoMatch where the expression hangs on a place or a size as such."""
    for part in walk(expr):
        if not isinstance(part, Apply):
            open_ = [part] if part is expr and isinstance(part, Number) else []
        else:
            open_ = [arg for arg in part.args if isinstance(arg, Number) and arg.poly.constant is None]
        if open_:
            op = part.node.op if isinstance(part, Apply) else "a number"
            raise NoMatch(
                part.node if isinstance(part, Apply) else producer(target) or target.name,
                f"{op} of {_in_words(open_)} is not the same for every place and size",
            )


def _in_words(numbers: Sequence[Number]) -> str:
    return " and ".join(repr(n.poly) for n in numbers)


def check_sizes(elements: Elements, target: gs.Tensor, batch: Dim, length: Dim, heads: int) -> None:
    """Raise NoMatch where `target`, broadcast to scores [B, heads, S, S], would make them larger."""
    extents = elements.shape(target)
    wanted = [batch, heads, length, length][-len(extents) :] if extents else []
    if len(extents) > 4 or not all(n == ONE or _is(n, dim) for n, dim in zip(extents, wanted, strict=True)):
        raise NoMatch(
            producer(target) or target.name,
            f"'{target.name}' is {extents}",
            wanted=f"[{batch}, 1 or {heads}, 1 or {length}, {length}], as the scores are",
        )


def check_mask(elements: Elements, mask: gs.Tensor, batch: Dim, length: Dim) -> None:
    """Raise NoMatch where `mask` is not [B, S]: ops do not broadcast."""
    extents = elements.shape(mask)
    if not (_is(extents[0], batch) and _is(extents[-1], length)):
        raise NoMatch(
            producer(mask) or mask.name, f"the mask '{mask.name}' is {extents}", wanted=f"[{batch}, {length}], as x is"
        )


def _is(extent: Poly, dim: Dim) -> bool:
    """Whether two sizes are shown to be equal: axes of two names may be of one size, or of one and be broadcast."""
    factors = monomial(dim)
    return factors is not None and extent == poly.product([poly.number(factors[0]), *map(poly.size, factors[1])])


def _is_mask(tensor: gs.Tensor) -> bool:
    shape = tensor.shape
    if shape is None or tensor.dtype is None or len(shape) < 2 or any(dim != 1 for dim in shape[1:-1]):
        return False
    return not isinstance(tensor.dtype, int) and np.dtype(tensor.dtype).kind in "biuf"
