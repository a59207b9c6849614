"""Index arithmetic: polynomials with whole coefficients over the sizes of axes and places along them.

A place i along an axis of size n is 0 <= i < n. The size of an axis of what something is shown of is at least 1: where
it is 0 there are no elements. Any other size may be 0. From that it follows for many polynomials that they are never
negative, whatever the sizes; `nonnegative` shows it or gives up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_MAX_TERMS = 64


@dataclass(frozen=True, eq=False)
class Atom:
    """A number that is not known but bounded: one of `lows` is at most it (each of them is), `highs` likewise.

    Which number it is says its `key`; what it is called is for the reader, and two may be called alike.
    """

    key: Hashable
    name: str
    lows: tuple[Poly, ...] = ()
    highs: tuple[Poly, ...] = ()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _order(self) -> tuple[str, str]:
        return self.name, repr(self.key)

    def __lt__(self, other: Atom) -> bool:
        return self.name < other.name or (self.name == other.name and self._order < other._order)

    @property
    def is_size(self) -> bool:
        """Whether nothing is known but that it is at least 1."""
        return self.lows == (ONE,) and not self.highs


class Poly:
    """A sum of products of atoms. `terms` maps each product, sorted, to its coefficient."""

    __slots__ = ("__dict__", "terms")

    def __init__(self, terms: Mapping[tuple[Atom, ...], int]) -> None:
        self.terms = {product: factor for product, factor in terms.items() if factor}

    @cached_property
    def _key(self) -> frozenset:
        return frozenset(self.terms.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self._key)

    def __add__(self, other: Poly) -> Poly:
        terms = dict(self.terms)
        for product, factor in other.terms.items():
            terms[product] = terms.get(product, 0) + factor
        return Poly(terms)

    def __neg__(self) -> Poly:
        return Poly({product: -factor for product, factor in self.terms.items()})

    def __sub__(self, other: Poly) -> Poly:
        return self + -other

    def __mul__(self, other: Poly) -> Poly:
        terms: dict[tuple[Atom, ...], int] = {}
        for ours, factor in self.terms.items():
            for theirs, times in other.terms.items():
                product = tuple(sorted((*ours, *theirs)))
                terms[product] = terms.get(product, 0) + factor * times
        return Poly(terms)

    @cached_property
    def constant(self) -> int | None:
        """The number that this is, None where it depends on an atom."""
        return None if any(self.terms) else self.terms.get((), 0)

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        return frozenset(atom for product in self.terms for atom in product)

    def split(self, atom: Atom) -> tuple[Poly, Poly] | None:
        """(c, r) with self = c * atom + r, neither holding the atom; None where it is squared."""
        with_it, rest = {}, {}
        for product, factor in self.terms.items():
            if product.count(atom) > 1:
                return None
            if atom in product:
                with_it[tuple(a for a in product if a != atom)] = factor
            else:
                rest[product] = factor
        return Poly(with_it), Poly(rest)

    def text(self, exact: bool) -> str:
        """The polynomial in words; `exact` says of places along which axis they are."""
        if not self.terms:
            return "0"
        parts = []
        for product, factor in sorted(self.terms.items(), key=lambda term: [a.name for a in term[0]], reverse=True):
            names = "*".join(atom.name if exact else atom.name.partition("<")[0] for atom in product)
            sign = "-" if factor < 0 else "+"
            number = "" if names and abs(factor) == 1 else str(abs(factor))
            parts.append(f"{sign} {number}{'*' if number and names else ''}{names}")
        return " ".join(parts).removeprefix("+ ")

    def __repr__(self) -> str:
        return self.text(exact=False)


def number(value: int) -> Poly:
    return Poly({(): int(value)})


ZERO, ONE = number(0), number(1)


def of(atom: Atom) -> Poly:
    return Poly({(atom,): 1})


def size(name: str, empty: bool = False) -> Poly:
    """The size of an axis, known by name: at least 1, or with `empty` 0."""
    return of(Atom(("size", name), name, (ZERO if empty else ONE,)))


def place(name: str, extent: Poly, of_what: Hashable = None) -> Poly:
    """A place along an axis: 0 where that has one element. Of one name, extent and `of_what` there is one."""
    if extent == ONE:
        return ZERO
    return of(Atom(("place", name, extent, of_what), f"{name}<{extent.text(True)}", (ZERO,), (extent - ONE,)))


def product(factors: Iterable[Poly]) -> Poly:
    total = ONE
    for factor in factors:
        total = total * factor
    return total


def minimum(a: Poly, b: Poly) -> Poly:
    """The smaller of two numbers; one that only has bounds where it is open which that is."""
    if nonnegative(b - a):
        return a
    if nonnegative(a - b):
        return b
    first, second = sorted((a, b), key=lambda p: p.text(True))
    lows = tuple(low for low in (ONE, ZERO) if nonnegative(a - low) and nonnegative(b - low))[:1]
    return of(Atom(("minimum", first, second), f"min({first.text(True)}, {second.text(True)})", lows, (first, second)))


def quotient(a: Poly, b: Poly) -> Poly:
    """How many times b, at least 1, is in a, at least 0: a number with bounds where it is no polynomial."""
    found = divided(a, b)
    if found is not None:
        return found[0]
    least = ONE if nonnegative(a - b) else ZERO
    return of(Atom(("quotient", a, b), f"(({a.text(True)}) // ({b.text(True)}))", (least,), (a,)))


def limit(found: Poly, unlimited: Poly) -> int | None:
    """n where `found` is the smaller of n and `unlimited`."""
    limits = [high.constant for atom in found.atoms for high in atom.highs if high.constant is not None]
    return next((n for n in limits if found == minimum(unlimited, number(n))), None)


def one_size(a: Poly, b: Poly) -> bool:
    """Whether sizes that are broadcast together must be equal for the model to run.

    A buffer of n > 1 elements that is cut to S has fewer only where S > n > 1, and then nothing of size S fits it.
    """
    return any((n := limit(x, y)) is not None and n > 1 for x, y in ((a, b), (b, a)))


def nonnegative(poly: Poly) -> bool:
    """Whether `poly` is shown to be at least 0 for every value of its atoms; False also where that stays open."""
    if poly.constant is not None:
        return poly.constant >= 0
    if len(poly.terms) > _MAX_TERMS:
        return False
    bounded = sorted(atom for atom in poly.atoms if not atom.is_size)
    if not bounded:
        return _of_sizes(poly)
    # The innermost first: bounds of one may hold others.
    for atom in bounded:
        if any(atom in bound.atoms for other in bounded for bound in (*other.lows, *other.highs)):
            continue
        parts = poly.split(atom)
        if parts is None:
            return False
        factor, rest = parts
        if nonnegative(factor):
            bounds = [factor * low for low in atom.lows]
        elif nonnegative(-factor):
            bounds = [factor * high for high in atom.highs]
        else:
            return False
        return any(nonnegative(bound + rest) for bound in (*bounds, *_of_a_quotient(atom, factor)))
    return False


def _of_a_quotient(atom: Atom, factor: Poly) -> list[Poly]:
    """What factor * atom is at least, where the factor is c times the divisor: a - b < b * (a // b) <= a."""
    kind, *parts = atom.key
    if kind != "quotient" or factor.constant is None or not parts[1].constant or factor.constant % parts[1].constant:
        return []
    a, b = parts
    times = number(factor.constant // b.constant)
    return [times * (a - b + ONE if factor.constant > 0 else a)]


def _of_sizes(poly: Poly) -> bool:
    """With every size written as 1 more than a number from 0 on, no term may be negative."""
    shifted = ZERO
    for atoms, factor in poly.terms.items():
        term = number(factor)
        for atom in atoms:
            term = term * (of(atom) + ONE)
        shifted = shifted + term
    return all(factor >= 0 for factor in shifted.terms.values())


def divided(a: Poly, b: Poly) -> tuple[Poly, Poly] | None:
    """(q, r) with a = q b + r and 0 <= r < b; None where they are not found."""
    if not nonnegative(b - ONE):
        return None
    if b == ONE:
        return a, ZERO
    if nonnegative(a) and nonnegative(b - ONE - a):
        return ZERO, a
    if len(b.terms) != 1:
        return (ONE, ZERO) if a == b else None
    ((divisor, times),) = b.terms.items()
    quotient, rest = {}, {}
    for atoms, factor in a.terms.items():
        left = _without(atoms, divisor)
        if left is None:
            rest[atoms] = factor
        else:
            quotient[left], remains = divmod(factor, times)
            rest[atoms] = remains
    q, r = Poly(quotient), Poly(rest)
    return (q, r) if nonnegative(r) and nonnegative(b - ONE - r) else None


def _without(atoms: tuple[Atom, ...], divisor: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    left = list(atoms)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def quotient_of_products(whole: list[Poly], part: list[Poly]) -> Poly | None:
    """The product of `whole` divided by that of `part`, where it is a polynomial."""
    whole, part = list(whole), list(part)
    for factor in list(part):
        if factor in whole:
            whole.remove(factor)
            part.remove(factor)
    found = divided(product(whole), product(part))
    return found[0] if found is not None and found[1] == ZERO else None


def depends_on(poly: Poly, atom: Atom) -> bool:
    """Whether the atom is in the polynomial, or in what one of its atoms stands for."""
    return any(
        other == atom or any(isinstance(part, Poly) and depends_on(part, atom) for part in other.key)
        for other in poly.atoms
    )


def evaluated(poly: Poly, sizes: Mapping[str, int]) -> int | None:
    """The number that the polynomial is where axes have these sizes by name; None where that leaves it open."""
    total = 0
    for atoms, factor in poly.terms.items():
        for atom in atoms:
            value = _value(atom, sizes)
            if value is None:
                return None
            factor *= value
        total += factor
    return total


def _value(atom: Atom, sizes: Mapping[str, int]) -> int | None:
    kind, *parts = atom.key
    if kind in ("minimum", "quotient"):
        found = [evaluated(part, sizes) for part in parts]
        return None if None in found else min(found) if kind == "minimum" else found[0] // found[1]
    return sizes.get(parts[0]) if kind == "size" else None
