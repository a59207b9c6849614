"""Masks that are floats: between 0 and 1, beyond them, and what Casts, thresholds and roundings make of them."""

from __future__ import annotations

from .build import BOOL, FLOAT, INT32, INT64, Case, Graph, Random, attention_of, np

M = "attention_mask"


def _of(r: Random, make, **case) -> Case:
    return attention_of(r, make, mask_type=np.float32, count=18, **case)


def _cast_to_bool(r: Random) -> Case:
    return _of(r, lambda b: b.keys(b.cast(M, BOOL)))


def _compared(r: Random) -> Case:
    bound = r.choice([0.0, 0.1, 0.3, 0.5, 0.9, 0.99995, 1.0, 1.5, -0.5])
    op = r.choice(["Greater", "Less", "GreaterOrEqual", "Equal"] if r.random() < 0.7 else ["LessOrEqual"])
    return _of(r, lambda b: b.keys(b.op(op, *((M, b.const(bound)) if r.random() < 0.7 else (b.const(bound), M)))))


def _rounded(r: Random) -> Case:
    return _of(r, lambda b: b.keys(b.cast(b.op(r.choice(["Sign", "Round", "Ceil", "Floor", "Relu"]), M), BOOL)))


def _subtracted(r: Random) -> Case:
    """(1 - mask) * -1e4: 0.9999 lowers a score by one."""
    hidden = r.choice([1e3, 1e4, 1e9, float(np.finfo(np.float32).max)])

    def make(b: Graph) -> str:
        if r.random() < 0.3:
            return b.op("Mul", b.op("Sub", b.keys(M), b.const(1.0)), b.const(hidden))
        return b.op("Mul", b.op("Sub", b.const(1.0), b.keys(M)), b.const(-hidden))

    return _of(r, make, added=True)


def _inverted(r: Random) -> Case:
    """Hidden where 1 - mask is not 0."""

    def make(b: Graph) -> str:
        rest = b.op("Sub", b.const(1.0), b.keys(M))
        if r.random() < 0.5:
            return b.op("Where", b.cast(rest, BOOL), b.const(-3.4e38), b.const(0.0))
        return b.op("Where", b.cast(rest, BOOL), b.const(-3.4e38), rest)

    return _of(r, make, added=True)


def _as_integers(r: Random) -> Case:
    """Cut to whole numbers: 0.7 is 0."""
    kind = r.choice([INT64, INT32, 2, 3, 6])
    return _of(r, lambda b: b.keys(b.cast(b.cast(M, kind), BOOL)))


def _logarithm(r: Random) -> Case:
    return _of(r, lambda b: b.op("Log", b.keys(M)), added=True)


def _narrow(r: Random) -> Case:
    """Through float16, where 1e-30 is 0 and 0.9999 is 1."""
    return _of(r, lambda b: b.keys(b.cast(b.cast(M, 10), BOOL)))


def _clipped(r: Random) -> Case:
    low, high = r.choice([(0.0, 1.0), (0.5, 1.0), (0.0, 0.5)])

    def make(b: Graph) -> str:
        x = b.op("Clip", M, b.const(low), b.const(high))
        return b.keys(b.op("Greater", x, b.const(low)))

    return _of(r, make)


def _added_as_given(r: Random) -> Case:
    """The input is the additive mask itself, of whatever numbers."""

    def make(b: Graph) -> str:
        return b.keys(M) if r.random() < 0.5 else b.op("Mul", b.keys(M), b.const(r.choice([1.0, -1e4, 1e4])))

    return _of(r, make, added=True)


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
    _cast_to_bool, _compared, _rounded, _subtracted, _inverted, _as_integers, _logarithm, _narrow, _clipped,
    _added_as_given, _powers, _not_a_number, _unsigned, _half,
)  # fmt: skip
