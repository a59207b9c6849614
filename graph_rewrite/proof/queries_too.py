"""Masks of pairs of tokens that are a mask of keys times itself: mask[b, query] * mask[b, key]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from ..elements.engine import Places
from ..elements.expr import Apply, Expr, Read
from ..elements.poly import ZERO
from .distance import is_open, reads, with_parts
from .intervals import Interval
from .rule import rule
from .scalar import ranges

if TYPE_CHECKING:
    from ..constants import Runner


def of_keys_alone(
    runner: Runner,
    expr: Expr,
    mask: gs.Tensor,
    key: Places,
    places: Places,
    classify: Callable[[Interval], np.ndarray],
    where,
) -> Expr | None:
    """The expression with mask[b, key] in place of the product mask[b, query] * mask[b, key]; None without one.

    The product is of whole numbers or conditions. Where 0 of it alone hides, a pair is hidden where the token at either
    side is. Where 1 of it alone shows, a pair is shown where both tokens are 1: that both are -1 is left out. Raises
    NoMatch where the product hides by another rule.
    """
    if len(places) < 2 or places[-2] == ZERO or is_open(expr):
        return None
    query = (*key[:-1], places[-2])
    if {read.index for read in reads(expr)} != {key, query}:
        return None
    found = _product(expr, mask, key, query)
    if found is None:
        return None
    product, by_key = found
    whole = Read("the mask's product", (), product.dtype, mask)
    alone = with_parts(expr, {product: whole})
    if any(read != whole for read in reads(alone)):
        return None
    shown = rule(ranges(alone, whole, classify, runner), f"{mask.name} times itself", where)
    if not shown.is_ops and not shown.is_one:
        return None
    return with_parts(expr, {product: by_key})


def _product(expr: Expr, mask: gs.Tensor, key: Places, query: Places) -> tuple[Apply, Expr] | None:
    """A product of two factors that are alike but for their token, and the one of the key's."""
    at = {
        Read(mask.name, query, np.dtype(mask.dtype), mask): Read(mask.name, key, np.dtype(mask.dtype), mask),
    }
    stack, seen = [expr], set()
    while stack:
        current = stack.pop()
        if current in seen or not isinstance(current, Apply):
            continue
        seen.add(current)
        if current.op in ("Mul", "And") and current.dtype.kind in "biu":
            by_index = {frozenset(read.index for read in reads(arg)): arg for arg in current.args}
            of_key, of_query = (by_index.get(frozenset({index})) for index in (key, query))
            if of_key is not None and of_query is not None and with_parts(of_query, at) == of_key:
                return current, of_key
        stack.extend(arg for arg in current.args if arg is not None)
    return None
