"""Proof that a subgraph is what an op takes in its place: a mask of keys, positions, one value for every token.

elements.py   follows one element of a tensor up to what it is made of, for all sizes (moves.py, picks.py, pointwise.py)
expr.py       what an element then is; simplify.py decides what sizes and places alone decide
poly.py       index arithmetic: polynomials of sizes and places, and whether they can be negative
scalar.py     a function of one mask value, for every value of its type (intervals.py)
rule.py       which values show a key; key_mask.py puts it together
samples.py    what was proven, tried out: a second check that can only refute
"""

from .prover import Prover, prover

__all__ = ["Prover", "prover"]
