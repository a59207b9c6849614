"""Attention of families beyond BERT, twisted: other tokens, pairs, signs, angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.graph_rewrite.variants import HIDDEN, Variant, attend, turn

from .build import Case, Graph, Random, np

M = "mask"
_LAST, _FIRST = (1 << 31) - 1, -(1 << 62)


def drawn(r: Random, **changes: Any) -> Variant:
    size = r.choice([4, 6, 8])
    side = lambda: r.choice([None, None, r.randrange(9)])  # noqa: E731
    given: dict[str, Any] = {
        "shared": r.choice([1, 2, 4]), "size": size, "rotated": 2 * r.randrange(size // 2 + 1),
        "base": r.choice([100.0, 1e4, 1.6e5]), "pairs": r.choice(["halves", "neighbours"]), "left": side(),
        "right": side(), "masked": r.random() < 0.7, "norm": r.random() < 0.3, "divided": r.random() < 0.3,
        "stored": r.choice([0, 0, 80]),
    }  # fmt: skip
    return Variant(**(given | changes))


def variant_case(r: Random, variant: Variant, opset: int | None = None, **case: Any) -> Case:
    b = Graph(r, opset or r.choice([14, 16, 17, 18, 20]))
    b.input("x", ("B", "S", HIDDEN))
    b.ids(M)
    b.output(attend(b, variant))
    return Case(b.model(), count=8, **case)


def _any(r: Random) -> Case:
    """As exporters write it."""
    return variant_case(r, drawn(r))


def _cut(r: Random) -> Case:
    """Q, K, V or several of them without some tokens or rows; bounds that change nothing up to a length."""
    axis = r.choice([2, 2, 2, 0])
    start, end = r.choice(
        [(0, -1), (0, 5), (0, 64), (0, 200), (1, _LAST), (0, 1), (-3, _LAST), (0, _LAST), (-200, _LAST)]
    )
    step = r.choice([1, 1, 1, 2])

    def cut(b: Graph, x: str) -> str:
        return b.op("Slice", x, b.ints([start]), b.ints([end]), b.ints([axis]), b.ints([step]))

    parts = dict.fromkeys(r.choice(["kv", "kv", "q", "qkv", "k"]), cut)
    masked = r.random() < 0.2
    sides = {} if masked else {"left": None, "right": None}
    case = variant_case(r, drawn(r, masked=masked, stored=0, parts=parts, **sides), longest=r.choice([7, 70, 210]))
    case.runs = False  # K and V of different lengths
    return case


def _turned(r: Random) -> Case:
    """Pairs that are turned another way, scaled, swapped, or mixed with other tokens' and heads' columns."""

    def back(b: Graph, x: str, axis: int) -> str:
        return b.op("Slice", x, b.ints([-1]), b.ints([_FIRST]), b.ints([axis]), b.ints([-1]))

    def narrow(b: Graph, x: str) -> str:
        return b.cast(b.cast(x, 10), 1)

    number = r.choice([2.0, -1.0, 0.5])
    times = lambda b, x: b.op("Mul", x, b.const(number))  # noqa: E731
    ways: list[Callable[..., list[str]]] = [
        lambda b, f, s, c, n, q: turn(b, f, s, c, n)[::-1],
        lambda b, f, s, c, n, q: turn(b, f, s, c, n) if q == "q" else [f, s],
        lambda b, f, s, c, n, q: turn(b, f, s, c, n) if q == "q" else turn(b, s, f, c, n),
        lambda b, f, s, c, n, q: turn(b, s, f, c, n),
        lambda b, f, s, c, n, q: [times(b, t) if q == "k" else t for t in turn(b, f, s, c, n)],
        lambda b, f, s, c, n, q: [times(b, t) for t in turn(b, f, s, c, n)],
        lambda b, f, s, c, n, q: [turn(b, f, s, c, n)[0], times(b, turn(b, f, s, c, n)[1])],
        lambda b, f, s, c, n, q: turn(b, f, s, times(b, c), times(b, n)),
        lambda b, f, s, c, n, q: turn(b, f, s, times(b, c), times(b, n)) if q == "q" else turn(b, f, s, c, n),
        lambda b, f, s, c, n, q: turn(b, f, s, times(b, c), n),
        lambda b, f, s, c, n, q: turn(b, f, s, c, b.op("Neg", n)),
        lambda b, f, s, c, n, q: turn(b, f, s, n, c),
        lambda b, f, s, c, n, q: turn(b, f, s, b.op("Abs", c), n),
        lambda b, f, s, c, n, q: turn(b, f, s, b.op("Mul", c, c), n),
        lambda b, f, s, c, n, q: turn(b, f, s, narrow(b, c), narrow(b, n)),
        lambda b, f, s, c, n, q: turn(b, narrow(b, f), narrow(b, s), c, n),
        lambda b, f, s, c, n, q: [b.op("Add", t, b.const(0.1)) for t in turn(b, f, s, c, n)],
        *(
            lambda b, f, s, c, n, q, axis=axis: turn(b, f, back(b, s, axis), c, n)
            for axis in (1, 2, 3)
        ),
        lambda b, f, s, c, n, q: turn(b, back(b, f, 2), back(b, s, 2), c, n),
        lambda b, f, s, c, n, q: turn(b, back(b, f, 3), back(b, s, 3), c, n),
    ]  # fmt: skip
    size = r.choice([4, 8])
    return variant_case(
        r, drawn(r, size=size, rotated=r.choice([4, size]), norm=False, parts={"rotated": r.choice(ways)})
    )


def _signed(r: Random) -> Case:
    """Columns, pairs and heads of Q or K by factors of their own."""
    heads, size = 4, r.choice([4, 8])
    half, number = size // 2, r.choice([-1.0, -1.0, 2.0, 0.0])
    columns = np.ones(size)
    at = r.randrange(half)
    columns[r.choice([[at, at + half], [2 * at, 2 * at + 1], [at], list(range(half)), list(range(size))])] = number
    by_head = np.ones((1, heads, 1, 1))
    by_head[0, r.randrange(heads)] = number
    factors = r.choice([columns, columns, columns, by_head])
    parts = dict.fromkeys(r.choice(["q", "q", "k", "qk", "v"]), lambda b, x: b.op("Mul", x, b.const(factors)))
    rotated = r.choice([size, size, half, 0])
    return variant_case(r, drawn(r, heads=heads, size=size, rotated=rotated, norm=r.random() < 0.2, parts=parts))


def _angled(r: Random) -> Case:
    """Places that are not the token's, frequencies that change with them, and angles of another type."""
    frequencies = (1e4 ** (-np.arange(0, 8, 2) / 8))[None]
    other = r.choice([
        frequencies, -frequencies, np.zeros((1, 4)), np.full((1, 4), 1e3), frequencies * [[1, 1, 2, 1]],
        frequencies * [[np.nan, 1, 1, 1]], frequencies * [[np.inf, 1, 1, 1]],
    ])  # fmt: skip
    scaled = lambda b, place: b.op("Mul", place, b.const(other))  # noqa: E731
    length = lambda b: b.cast(b.op("Gather", b.op("Shape", M), b.ints(1), axis=0), 1)  # noqa: E731
    n = r.choice([1.0, 5.0, 30.0])

    def whole(b: Graph) -> str:
        """Arithmetic of whole places, before they become floats."""
        of_text = b.op("Gather", b.op("Shape", M), b.ints(1), axis=0)
        place = b.op("Range", b.ints(0), of_text, b.ints(1))
        op = r.choice(["Mul", "Mul", "Add", "Sub", "Div", "Mod", "Min", "Max"])
        other = r.choice([place, of_text, b.ints(int(n))])
        made = b.op(op, place, b.op("Max", other, b.ints(1)) if op in ("Div", "Mod") else other)
        return b.unsqueeze(b.cast(made, 1), 1)

    ways: list[Callable[[Graph, str, str], str]] = [
        lambda b, angle, place: scaled(b, place),
        lambda b, angle, place: scaled(b, b.op("Add", place, b.const(n))),
        lambda b, angle, place: scaled(b, b.op("Min", place, b.const(n))),
        lambda b, angle, place: scaled(b, b.op("Mod", place, b.const(n), fmod=1)),
        lambda b, angle, place: scaled(b, b.op("Sub", length(b), place)),
        lambda b, angle, place: scaled(b, b.cast(b.cast(place, 10), 1)),
        lambda b, angle, place: b.cast(b.cast(angle, 10), 1),
        lambda b, angle, place: b.cast(b.op("Mul", b.cast(place, 11), b.const(1e3 * other, dtype=np.float64)), 1),
        lambda b, angle, place: scaled(b, whole(b)),
        lambda b, angle, place: scaled(b, whole(b)),
        lambda b, angle, place: b.op("Neg", angle),
        lambda b, angle, place: b.op("Mul", angle, b.const(n)),
        lambda b, angle, place: b.op("Mul", angle, b.op("Div", length(b), b.const(n))),
        lambda b, angle, place: b.op("Div", angle, b.op("Max", length(b), b.const(n))),
    ]
    variant = drawn(r, size=8, rotated=8, stored=0, norm=False, parts={"angle": r.choice(ways)})
    return variant_case(r, variant, longest=r.choice([20, 80]))
