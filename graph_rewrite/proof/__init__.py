"""Proof that a subgraph is what an op takes in its place: a mask of keys, positions, one value for every token.

What an element of a tensor is made of, `elements/` finds out.

scalar.py     a function of one mask value, for every value of its type (intervals.py)
rule.py       which values show a key; key_mask.py puts it together
samples.py    what was proven, tried out: a second check that can only refute
"""

from .prover import Prover, prover

__all__ = ["Prover", "prover"]
