"""Element-wise arithmetic as a polynomial in x and in one function of x: equal expressions are equal everywhere.

A grid shows where two functions differ on the grid. Two polynomials with the same coefficients are one function.
"""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from ..nodes import producer, scalar

# {(i, j): c} is the sum of c xⁱ fʲ.
Polynomial = dict[tuple[int, int], float]
_MOST_TERMS, _MOST_STEPS, _HIGHEST_POWER = 32, 64, 4
# Coefficients of whatever stands on the way. (x + 1e7) - 1e7 is x to a polynomial and rounds it to whole numbers in
# float32; x * 1e38 / 1e38 overflows. What a term is enlarged by is how much of its rounding is kept.
_LEAST, _LARGEST = 1e-4, 32.0
_NOTHING = 1e-12  # what rounding in float64 leaves of a term that is none


def of(tensor: gs.Tensor, x: gs.Tensor, f: gs.Tensor | None) -> Polynomial | None:
    """`tensor` as a polynomial in `x` and `f`; None where it is anything else."""
    return _Reader(x, f).read(tensor, _MOST_STEPS)


def equal(found: Polynomial | None, wanted: Polynomial, tolerance: float) -> bool:
    """Whether the coefficients agree within a relative tolerance, and there are no others."""
    if found is None:
        return False
    others = any(abs(c) > _NOTHING for term, c in found.items() if term not in wanted)
    return not others and all(math.isclose(found.get(t, 0.0), c, rel_tol=tolerance) for t, c in wanted.items())


class _Reader:
    def __init__(self, x: gs.Tensor, f: gs.Tensor | None) -> None:
        self._known: dict[int, Polynomial | None] = {id(x): {(1, 0): 1.0}}
        if f is not None:
            self._known[id(f)] = {(0, 1): 1.0}

    def read(self, tensor: gs.Tensor, steps: int) -> Polynomial | None:
        if id(tensor) not in self._known:
            value = scalar(tensor)
            if value is not None:
                found = {(0, 0): value} if math.isfinite(value) else None
            else:
                found = self._computed(producer(tensor), steps)
                if found is not None and not all(_is_moderate(c) for c in found.values()):
                    found = None
            self._known[id(tensor)] = found
        return self._known[id(tensor)]

    def _computed(self, node: gs.Node | None, steps: int) -> Polynomial | None:
        if node is None or steps == 0 or node.op not in ("Add", "Sub", "Mul", "Div", "Neg", "Pow"):
            return None
        given = []
        for tensor in node.inputs:
            read = self.read(tensor, steps - 1)
            if read is None:
                return None
            given.append(read)
        if node.op == "Neg":
            return _scaled(given[0], -1.0)
        first, second = given
        if node.op in ("Add", "Sub"):
            return _sum(first, second if node.op == "Add" else _scaled(second, -1.0))
        if node.op == "Mul":
            return _product(first, second)
        number = second[(0, 0)] if set(second) == {(0, 0)} else None  # what is divided by, or the power
        if node.op == "Div":
            return _scaled(first, 1 / number) if number else None
        if number is None or number not in range(1, _HIGHEST_POWER + 1):
            return None
        power: Polynomial | None = {(0, 0): 1.0}
        for _ in range(int(number)):
            power = None if power is None else _product(power, first)
        return power


def _is_moderate(coefficient: float) -> bool:
    return coefficient == 0 or _LEAST <= abs(coefficient) <= _LARGEST


def _scaled(p: Polynomial, factor: float) -> Polynomial:
    return {term: c * factor for term, c in p.items()}


def _sum(p: Polynomial, q: Polynomial) -> Polynomial:
    made = {term: p.get(term, 0.0) + q.get(term, 0.0) for term in p | q}
    return {term: 0.0 if term in p and term in q and abs(c) <= _NOTHING else c for term, c in made.items()}


def _product(p: Polynomial, q: Polynomial) -> Polynomial | None:
    made: Polynomial = {}
    for (i, j), c in p.items():
        for (k, m), d in q.items():
            made[i + k, j + m] = made.get((i + k, j + m), 0.0) + c * d
    return made if len(made) <= _MOST_TERMS else None
