"""Masks that are floats: between 0 and 1, beyond them, and what Casts, thresholds and roundings make of them."""

from __future__ import annotations

from .build import BOOL, FLOAT, INT32, INT64, Case, Graph, Random, attention_of, np

M = "attention_mask"


def _of(r: Random, make, **case) -> Case:
    return attention_of(r, make, mask_type=np.float32, count=18, **case)


def _subtracted(r: Random) -> Case:
    """(1 - mask) * -1e4: 0.9999 lowers a score by one."""
    hidden = r.choice([1e3, 1e4, 1e9, float(np.finfo(np.float32).max)])

    def make(b: Graph) -> str:
        if r.random() < 0.3:
            return b.op("Mul", b.op("Sub", b.keys(M), b.const(1.0)), b.const(hidden))
        return b.op("Mul", b.op("Sub", b.const(1.0), b.keys(M)), b.const(-hidden))

    return _of(r, make, added=True)


def _as_integers(r: Random) -> Case:
    """Cut to whole numbers: 0.7 is 0."""
    kind = r.choice([INT64, INT32, 2, 3, 6])
    return _of(r, lambda b: b.keys(b.cast(b.cast(M, kind), BOOL)))


def _logarithm(r: Random) -> Case:
    return _of(r, lambda b: b.op("Log", b.keys(M)), added=True)


def _clipped(r: Random) -> Case:
    low, high = r.choice([(0.0, 1.0), (0.5, 1.0), (0.0, 0.5)])
    return _of(r, lambda b: b.keys(b.op("Greater", b.op("Clip", M, b.const(low), b.const(high)), b.const(low))))


def _powers(r: Random) -> Case:
    exponent = r.choice([0.5, 2.0, 10.0])
    return _of(
        r, lambda b: b.op("Sub", b.op("Mul", b.op("Pow", b.keys(M), b.const(exponent)), b.const(1e5)), b.const(1e5)),
        added=True,
    )  # fmt: skip


def _not_a_number(r: Random) -> Case:
    """IsNaN and IsInf of a quotient: 0 / 0 hides."""

    def make(b: Graph) -> str:
        ratio = b.op("Div", b.const(r.choice([0.0, 1.0])), M)
        found = b.op(r.choice(["IsNaN", "IsInf"]), ratio)
        return b.keys(b.op("Not", found))

    return _of(r, make)


def _unsigned(r: Random) -> Case:
    """Integers of 64 bits without sign: 1 << 32 is not 0, of 32 bits it is."""

    def make(b: Graph) -> str:
        return b.keys(b.cast(b.cast(M, r.choice([INT32, INT64, 12, 2, FLOAT])), BOOL))

    feed_of = {"numbers": (1, 255, 256)}
    return attention_of(r, make, mask_type=r.choice([np.uint64, np.uint32]), **feed_of)


def _half(r: Random) -> Case:
    """The mask is float16 or float64."""
    kind = r.choice([np.float16, np.float64])

    def make(b: Graph) -> str:
        x = b.cast(b.keys(M), FLOAT)
        if r.random() < 0.5:
            return b.cast(x, BOOL)
        return b.op("Greater", x, b.const(0.5))

    return attention_of(r, make, mask_type=kind, count=18)


RECIPES = (
    _subtracted, _as_integers, _logarithm, _clipped, _powers, _not_a_number, _unsigned, _half,
)  # fmt: skip
