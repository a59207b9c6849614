"""Attention of families beyond BERT, twisted: orders of heads, norms of heads, ranges of keys, biases by distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.graph_rewrite.variants import Variant

from .build import Case, Graph, Random, helper, np
from .variants import M, drawn, variant_case

_FIRST = -(1 << 62)


def _grouped(r: Random) -> Case:
    """Heads of K and V repeated in turn, one after the other, unevenly, and in two ways."""

    def gather(order: Callable[[int, Variant], int]) -> Callable[..., str]:
        return lambda b, x, mask, v: b.op("Gather", x, b.ints([order(h, v) for h in range(v.heads)]), axis=1)

    def expanded(b: Graph, x: str, mask: str, v: Variant) -> str:
        sizes = [b.op("Slice", b.op("Shape", mask), b.ints([i]), b.ints([i + 1])) for i in range(2)]
        groups = v.heads // v.shared
        shape = b.op("Concat", sizes[0], b.ints([v.shared]), b.ints([groups]), sizes[1], b.ints([v.size]), axis=0)
        return b.op("Reshape", b.op("Expand", b.unsqueeze(x, 1), shape), b.ints([0, v.heads, -1, v.size]))

    def tiled(b: Graph, x: str, mask: str, v: Variant) -> str:
        return b.op("Tile", x, b.ints([1, v.shared, 1, 1]))

    def joined(b: Graph, x: str, mask: str, v: Variant) -> str:
        return b.op("Concat", *[x] * v.shared, axis=1)

    ways = [
        gather(lambda h, v: h // v.shared), gather(lambda h, v: h % (v.heads // v.shared)), expanded, tiled, joined,
        gather(lambda h, v: max(0, h - 1) // v.shared), gather(lambda h, v: 0),
        gather(lambda h, v: (v.heads - 1 - h) // v.shared),
    ]  # fmt: skip
    one = r.choice(ways)
    parts = {"k_repeated": one, "v_repeated": one if r.random() < 0.7 else r.choice(ways)}
    heads, shared = r.choice([(4, 2), (4, 4), (6, 3), (6, 2), (4, 1)])
    return variant_case(r, drawn(r, heads=heads, shared=shared, size=4, rotated=r.choice([0, 4]), parts=parts))


def _normed(r: Random) -> Case:
    """RMS norms of heads over other axes, with other scales and epsilons, of Q alone, twice, or without the mean."""
    how, epsilon = r.randrange(12), r.choice([1e-6, 1e-2, 2.0, -1e-7])

    def rms(b: Graph, x: str, size: int, axis: int = -1, shape: tuple[int, ...] = (), epsilon: float = 1e-6) -> str:
        mean = b.mean(b.op("Mul", x, x), [axis])
        inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", mean, b.const(epsilon))))
        return b.op("Mul", b.op("Mul", x, inverse), b.const(1 + 0.2 * b.random.standard_normal(shape or size)))

    def normed(b: Graph, x: str, name: str, v: Variant) -> str:
        heads = v.heads if name == "q" else v.heads // v.shared
        if how == 0:
            return rms(b, x, v.size, axis=2)
        if how == 1:  # over the heads
            turned = b.op("Transpose", x, perm=[0, 1, 3, 2])
            return b.op("Transpose", rms(b, turned, heads), perm=[0, 1, 3, 2])
        if how == 2:
            return rms(b, x, v.size, shape=r.choice([(1,), (heads, v.size), (1, v.size)]))
        if how == 3:
            return rms(b, x, v.size) if name == "q" else x
        if how == 4:
            return rms(b, x, v.size, epsilon=epsilon if name == "q" or r.random() < 0.5 else 1e-6)
        if how == 5:
            return rms(b, rms(b, x, v.size), v.size)
        if how == 6:
            return rms(b, b.op("Sub", x, b.mean(x)), v.size)
        if how == 7:  # of all heads together
            whole = b.op("Reshape", x, b.ints([0, 0, heads * v.size]))
            return b.op("Reshape", rms(b, whole, heads * v.size), b.ints([0, 0, heads, v.size]))
        if how == 8:
            return rms(b, b.op("Mul", x, b.const(2.0)), v.size)
        if how == 9:
            made = rms(b, x, v.size)
            return b.op("Slice", made, b.ints([-1]), b.ints([_FIRST]), b.ints([r.choice([2, 3])]), b.ints([-1]))
        if how == 10:
            return b.op("Mul", rms(b, x, v.size), b.const(r.choice([3.0, -3.0])))
        return rms(b, x, v.size, epsilon=epsilon)

    return variant_case(r, drawn(r, norm=True, parts={"normalised": normed}))


def _no_rotation_but(r: Random, **parts: Any) -> Variant:
    return drawn(r, rotated=0, norm=False, parts=parts)


def _lifting(r: Random) -> Case:
    """(1 - mask) * -10000, which lifts keys of more than 1 above others, beside windows and biases."""

    def lifted(b: Graph, mask: str) -> str:
        numbers = b.cast(b.unsqueeze(mask, 1, 2), 1)
        return b.op("Mul", b.op("Sub", b.const(1.0), numbers), b.const(r.choice([-1e4, -1e5, -1e9])))

    variant = _no_rotation_but(r, added=lifted)
    variant.masked = False
    return variant_case(r, variant)


def _biased(r: Random) -> Case:
    """Tables by distance: looked up beyond their ends, by computed buckets, by head; with entries that hide."""
    entries, rows = r.choice([1.0, 30.0, 900.0, 2e3, 1e4, 1e9, np.inf, np.nan]), r.randrange(8, 20)
    how, n = r.randrange(10), r.randrange(1, 7)

    def bucket(b: Graph, d: str) -> str:
        floats = b.cast(d, 1)
        made = [
            lambda: b.op("Abs", d),
            lambda: b.op("Mod", b.op("Abs", d), b.ints(n)),
            lambda: b.op("Div", d, b.ints(n)),
            lambda: b.cast(b.op("Floor", b.op("Mul", floats, b.const(1.0 / n))), 7),
            lambda: b.cast(b.op("Mul", floats, b.const(0.3)), 7),
            lambda: b.cast(b.op("Log", b.op("Add", b.op("Abs", floats), b.const(1.0))), 7),
            lambda: b.op("Where", b.op("Greater", d, b.ints(n)), b.ints(1), b.ints(0)),
            lambda: b.op("Add", d, b.ints(n)),
            lambda: b.cast(b.op("Round", b.op("Div", floats, b.const(2.0))), 7),
            lambda: b.op("Min", b.op("Abs", d), b.op("Gather", b.op("Shape", M), b.ints(1), axis=0)),
        ][how]()
        low, high = r.choice([(0, 7), (-7, 7), (-3, 4), (0, rows)])
        held = b.op("Clip", made, b.ints(low), b.ints(high))
        return b.op("Add", held, b.ints(-low)) if low < 0 and r.random() < 0.8 else held

    def biased(b: Graph, d: str) -> str:
        table = b.random.standard_normal((rows, 4))
        table[r.randrange(8)] = entries if r.random() < 0.5 else -entries
        form = r.randrange(4)
        if form == 0:
            return b.op("Gather", b.const(table[:, 0]), bucket(b, d), axis=0)
        if form == 1:
            return b.unsqueeze(b.op("Gather", b.const(table.T), bucket(b, d), axis=1), 0)
        found = b.op(
            "Transpose", b.op("Gather", b.const(table), bucket(b, d), axis=0), perm=[2, *r.choice([(0, 1), (1, 0)])]
        )
        if form == 2:
            found = b.op("Gather", found, b.ints(r.choice([[0, 1, 2, 3], [1, 0, 3, 2]])), axis=0)
        scale = r.choice([None, 2.0, -0.5])
        return b.unsqueeze(found if scale is None else b.op("Mul", found, b.const(scale)), 0)

    return variant_case(r, _no_rotation_but(r, bias=biased))


def _ranged(r: Random) -> Case:
    """Conditions of distance in odd arithmetic, of the length, and beside the first tokens."""
    n = r.randrange(1, 9)

    def seen(b: Graph, mask: str, other: str | None) -> str:
        length = b.op("Gather", b.op("Shape", mask), b.ints(1), axis=0)
        places = b.op("Range", b.ints(0), length, b.ints(1))
        d = b.op("Sub", b.unsqueeze(places, 0), b.unsqueeze(places, 1))
        far, floats = b.op("Abs", d), b.cast(d, 1)
        one = helper.make_tensor("value", 1, [1], [1.0])
        ones = lambda: b.op("ConstantOfShape", b.op("Shape", d), value=one)  # noqa: E731
        made = [
            lambda: b.op("LessOrEqual", b.op("Div", d, b.ints(r.choice([2, -2]))), b.ints(n)),
            lambda: b.op("Less", b.op("Mul", d, d), b.ints(n * n)),
            lambda: b.op("Equal", b.op("Mod", d, b.ints(n + 1)), b.ints(0)),
            lambda: b.op("LessOrEqual", b.op("Mul", floats, b.const(0.4)), b.const(float(n))),
            lambda: b.op("LessOrEqual", b.cast(b.cast(d, r.choice([2, 3, 6, 13])), 7), b.ints(n)),
            lambda: b.op("Less", d, b.op("Sub", length, b.ints(n))),
            lambda: b.op("LessOrEqual", far, b.op("Min", length, b.ints(n))),
            lambda: b.cast(b.op("Trilu", ones(), b.ints(r.choice([n, -n, 0])), upper=r.randrange(2)), 9),
            lambda: b.op("Xor", b.op("Less", d, b.ints(n)), b.op("Less", d, b.ints(r.choice([-n, n + 2])))),
            lambda: b.op("Or", b.op("LessOrEqual", far, b.ints(n)), b.op("Less", places, b.ints(1))),
            lambda: b.op("LessOrEqual", b.op("Add", d, b.ints(1)), b.ints(0)),
            lambda: b.op(
                "LessOrEqual", b.op("Mul", b.cast(d, 6), b.ints(1 << 27, np.int32)), b.ints(1 << 30, np.int32)
            ),
            lambda: b.op("LessOrEqual", far, b.ints(r.choice([63, 64, (1 << 31) - 2, (1 << 31) - 1, 1 << 40]))),
        ]
        condition = r.choice(made)()
        return condition if other is None else b.op(r.choice(["And", "And", "Or"]), condition, other)

    return variant_case(r, _no_rotation_but(r, hidden=seen), longest=r.choice([20, 70]))
