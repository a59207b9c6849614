"""What one element of a tensor is, and how many there are, for every size and place at once.

engine.py        follows an element up to what it is made of, by a rule for each operator: moves.py, picks.py,
                 pointwise.py
shape_rules.py   the shape that an operator gives: an allow list, with shape_views.py; shapes_of_ours.py for our ops
expr.py          what an element then is; simplify.py decides what sizes and places alone decide
poly.py          index arithmetic: polynomials of sizes and places, and whether they can be negative
"""

from . import moves, picks, pointwise, shape_rules, shape_views, shapes_of_ours  # they fill the tables of rules
from .engine import Elements

__all__ = ["Elements", "moves", "picks", "pointwise", "shape_rules", "shape_views", "shapes_of_ours"]
