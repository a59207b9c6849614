"""One function for each operator that can be drawn, or several alike: a node, its inputs and attributes random."""

from . import (
    control,
    elementwise,
    foreign,
    images,
    moves,
    products,
    quantised,
    recurrent,
    reductions,
    sequences,
    signals,
    text,
)
from .registry import DRAWERS

__all__ = [
    "DRAWERS",
    "control",
    "elementwise",
    "foreign",
    "images",
    "moves",
    "products",
    "quantised",
    "recurrent",
    "reductions",
    "sequences",
    "signals",
    "text",
]
