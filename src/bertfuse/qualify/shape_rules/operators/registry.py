"""Which function draws a node of which operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..draw import Draw

Drawer = Callable[[Draw, str], Any]
DRAWERS: dict[str, Drawer] = {}


def draws(*operators: str) -> Callable[[Drawer], Drawer]:
    """The decorated function adds a node of any of these to a Draw (and what it needs); it may raise Refused."""

    def register(function: Drawer) -> Drawer:
        for operator in operators:
            assert operator not in DRAWERS, operator
            DRAWERS[operator] = function
        return function

    return register
