"""Numbers computed of sizes: fractions, remainders, negative quotients, Min and Max of three, counts of floats."""

from __future__ import annotations

from collections.abc import Callable

from .build import BOOL, FLOAT, HIDDEN, INT64, SIZE, Case, Graph, Random, attend, masking, np, recipe, spelled, words

M, I = "attention_mask", "ids"  # noqa: E741


def _four(b: Graph, x: str) -> str:
    """An int64 [1] that is 4, computed of H = 16, the last size of x [B, S, 16], or of constants."""
    wide = b.size(x, 2)
    real = b.cast(wide, FLOAT)
    whole = lambda t: b.cast(t, INT64)  # noqa: E731
    ints, floats = (lambda n: b.ints([n])), (lambda n: b.const([float(n)]))
    chosen = lambda condition, then, other: b.op("Where", condition, ints(then), ints(other))  # noqa: E731
    ways: list[Callable[[], str]] = [
        lambda: b.op("Min", *b.r.sample([wide, ints(8), ints(4)], 3)),
        lambda: b.op("Max", *b.r.sample([ints(1), ints(2), ints(4)], 3)),
        lambda: b.op("Min", ints(8), wide, ints(4), ints(5)),
        lambda: b.op("Neg", b.op("Div", b.op("Sub", ints(-2), wide), ints(4))),  # -18 / 4 is -4
        lambda: b.op("Add", b.op("Div", b.op("Sub", ints(9), wide), ints(2)), ints(7)),  # -7 / 2 is -3
        lambda: b.op("Div", wide, b.op("Neg", ints(-4))),
        lambda: b.op("Neg", b.op("Div", wide, ints(-4))),
        lambda: b.op("Mod", b.op("Neg", wide), ints(5)),
        lambda: b.op("Add", b.op("Mod", b.op("Neg", wide), ints(5), fmod=1), ints(5)),
        lambda: b.op("Neg", b.op("Mod", b.op("Sub", wide, ints(20)), ints(-5))),
        lambda: whole(b.op("Mul", real, floats(0.26))),
        lambda: whole(b.op("Div", real, floats(3.5))),
        lambda: whole(b.op("Mul", b.op("Div", real, floats(32)), floats(8))),
        lambda: whole(b.op("Add", b.op("Mul", real, floats(0.15)), b.op("Mul", real, floats(0.15)))),
        lambda: whole(b.op("Round", b.op("Mul", real, floats(0.22)))),  # 3.52
        lambda: whole(b.op("Ceil", b.op("Div", real, floats(5)))),
        lambda: whole(b.op("Floor", b.op("Div", real, floats(3.9)))),
        lambda: whole(b.op("Sqrt", real)),
        lambda: whole(b.op("Pow", real, b.const(0.5))),
        lambda: chosen(b.op("Equal", floats(2.5), floats(2.0)), 8, 4),
        lambda: chosen(b.op("Equal", b.op("Div", real, floats(6.4)), floats(2.0)), 2, 4),  # 2.5
        lambda: chosen(b.op("Less", b.op("Mul", real, floats(0.1)), floats(1.5)), 8, 4),
        lambda: chosen(b.cast(b.op("Mul", real, floats(0.01)), BOOL), 4, 2),
        lambda: b.op("Shape", b.op("Range", b.const(0.0), b.const(3.5), b.const(1.0))),
        lambda: b.op("Shape", b.op("Range", b.const(0.5), b.const(4.0), b.const(1.0))),
        lambda: b.op("Shape", b.op("Range", b.const(0.0), b.op("Squeeze", real, b.ints([0])), b.const(4.5))),
        lambda: b.op("Shape", b.op("Range", b.ints(16), b.ints(2), b.ints(-4))),
        lambda: b.op("Div", b.reduced("ReduceProd", b.ints([2, 2, 4]), [0], keepdims=1), ints(4)),
        lambda: b.op("ReduceSum", b.ints([1, 1, 2]), b.ints([0]), keepdims=1),
        lambda: b.op("Sub", wide, ints(12)),
        lambda: whole(b.cast(b.op("Add", wide, ints(244)), 2)),  # 260 in 8 bits
        lambda: b.op("Abs", b.op("Sub", ints(12), wide)),
        lambda: b.op("Mul", b.op("Sign", wide), ints(4)),
    ]  # fmt: skip
    return b.r.choice(ways)()


@recipe(count=6)
def _number_of_heads(b: Graph, r: Random) -> None:
    """Four heads of four, one of which numbers is computed."""
    x = b.input("x", ("B", "S", HIDDEN))

    def heads(t: str) -> str:
        sizes = [b.ints([0]), b.ints([0]), _four(b, x), b.ints([r.choice([-1, 4])])]
        if r.random() < 0.3:
            sizes[2], sizes[3] = sizes[3], sizes[2]
        return b.op("Transpose", b.op("Reshape", t, b.op("Concat", *sizes, axis=0)), perm=[0, 2, 1, 3])

    parts = {f"{n}_heads": heads(b.linear(x, HIDDEN, HIDDEN)) for n in "qkv"}
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=6)
def _scale(b: Graph, r: Random) -> None:
    """1 / sqrt(4), or / 4, of which the 4 is computed."""
    x = b.input("x", ("B", "S", HIDDEN))
    root = b.op("Sqrt", b.cast(_four(b, x), FLOAT)) if r.random() < 0.6 else b.cast(_four(b, x), FLOAT)
    scaled = r.choice([lambda s: b.op("Div", s, root), lambda s: b.op("Mul", s, b.op("Reciprocal", root))])
    spec = spelled(r, mask="none", parts={"after_mask": scaled})
    spec.scale = "none"
    b.output(attend(b, x, spec))


@recipe(count=6)
def _columns(b: Graph, r: Random) -> None:
    """A part of the columns, the residual's or the projection's, cut at a computed number."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", 2 * HIDDEN))
    end = b.op("Mul", _four(b, x), b.ints([SIZE]))
    start = b.op("Sub", _four(b, x), b.ints([4]))
    part = b.op("Slice", y, start, end, b.ints([2]))
    b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), part), HIDDEN))


def _of_length(b: Graph, n: int) -> tuple[str, str]:
    """Two int64 scalars computed of S that look alike, and need not be so."""
    r, s = b.r, b.length(I)
    real = b.cast(s, FLOAT)
    whole = lambda t: b.cast(t, INT64)  # noqa: E731
    half = lambda t: b.op("Div", t, b.ints(2))  # noqa: E731
    more = lambda t, by: b.op("Add", t, b.ints(by))  # noqa: E731
    count = lambda *bounds: b.op("Size", b.op("Range", *bounds))  # noqa: E731
    pairs: list[Callable[[], tuple[str, str]]] = [
        lambda: (b.op("Min", s, b.ints(n + 3), b.ints(n)), b.op("Min", s, b.ints(n + 3))),
        lambda: (b.op("Max", s, b.ints(1), b.ints(n)), s),
        lambda: (half(b.op("Sub", s, b.ints(n))), b.op("Sub", half(more(s, n % 2)), b.ints((n + n % 2) // 2))),
        lambda: (b.op("Neg", half(b.op("Neg", s))), half(more(s, r.choice([0, 1])))),
        lambda: (b.op("Mul", b.op("Div", s, b.ints(2)), b.ints(2)), s),
        lambda: (whole(b.op("Mul", real, b.const(0.5))), b.op("Div", s, b.ints(2))),
        lambda: (whole(b.op("Mul", real, b.const(1.5))), s),
        lambda: (b.op("Mod", b.op("Sub", s, b.ints(n)), b.ints(n)), b.op("Mod", s, b.ints(n))),
        lambda: (b.op("Mod", b.op("Sub", s, b.ints(n)), b.ints(n), fmod=1), b.op("Mod", s, b.ints(n))),
        lambda: (count(b.const(0.0), b.op("Mul", real, b.const(0.5)), b.const(1.0)), half(s)),
        lambda: (b.op("Size", b.op("Range", b.ints(0), s, b.ints(2))), b.op("Div", s, b.ints(2))),
        lambda: (count(b.ints(0), b.op("Sub", s, b.ints(n)), b.ints(1)), b.op("Sub", s, b.ints(n))),
        lambda: (b.op("Abs", b.op("Sub", s, b.ints(n))), b.op("Sub", s, b.ints(n))),
        lambda: (whole(b.op("Equal", b.op("Div", real, b.const(2.0)), b.const(n / 2 + 0.5))), b.ints(0)),
        lambda: (whole(b.op("Sqrt", b.cast(b.op("Mul", s, s), FLOAT))), s),
        lambda: (b.op("Where", b.op("Equal", s, b.ints(n)), b.ints(1), s), s),
        lambda: (whole(b.cast(b.op("Sub", s, b.ints(n)), BOOL)), b.ints(1)),
        lambda: (b.op("Clip", s, b.ints(0), b.ints(n)), s),
        lambda: (whole(b.cast(b.op("Mul", s, b.ints(40)), 3)), b.op("Mul", s, b.ints(40))),
    ]  # fmt: skip
    return r.choice(pairs)()


@masking(longest=24)
def _a_condition(b: Graph, r: Random) -> str:
    """Keys are hidden where two numbers computed of S are (not) equal, or from one of them on."""
    n = r.choice([2, 3, 4, 5, 8])
    b.numbers = (n, n + 1)
    first, second = _of_length(b, n)
    how = r.randrange(3)
    visible = b.keys(b.cast(M, BOOL))
    if how == 0:
        return b.op("And", visible, b.op("Equal", first, second))
    _, k = b.grid(I)
    if how == 1:
        return b.op("And", visible, b.op("Less", b.op("Sub", k, first), b.op("Sub", b.length(I), second)))
    return b.op("Or", visible, b.op("Less", first, second))


def _a_part_of_the_mask(r: Random) -> Case:
    """The mask is cut, or made as long as, a computed number."""
    n = r.choice([2, 3, 4, 8])
    b = Graph(r)
    ids, mask = b.ids(), b.ids(M)
    x = words(b, ids)
    first, second = _of_length(b, n)
    cut = b.op("Add", b.length(ids), b.op("Sub", first, second)) if r.random() < 0.7 else first
    part = b.op("Slice", mask, b.ints([0]), b.op("Unsqueeze", cut, b.ints([0])), b.ints([1]))
    if r.random() < 0.4:
        shape = b.op("Concat", b.size(ids, 0), b.op("Unsqueeze", cut, b.ints([0])), axis=0)
        part = b.op("Expand", b.op("Slice", mask, b.ints([0]), b.ints([1]), b.ints([1])), shape)
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(b.keys(b.cast(part, BOOL)))})))
    case = Case(b.model(), numbers=(n, n + 1), longest=24, count=12)
    case.runs = False
    return case


def _places(r: Random) -> Case:
    """Positions from one computed number to another."""
    n = r.choice([2, 3, 4, 8])
    b = Graph(r)
    ids = b.ids()
    first, second = _of_length(b, n)
    apart = b.op("Sub", first, second)
    start = r.choice([lambda: b.ints(0), lambda: apart])()
    end = b.op("Add", b.length(ids), apart)
    places = b.unsqueeze(b.op("Range", start, end, b.ints(1)), 0)
    if r.random() < 0.4:  # from 0 on by floats
        places = b.unsqueeze(b.cast(b.op("Range", b.const(0.0), b.cast(end, FLOAT), b.const(1.0)), INT64), 0)
    rows = b.op("Gather", b.weight(97, HIDDEN), places, axis=0)
    b.output(b.layer_norm(b.op("Add", words(b, ids), rows), HIDDEN))
    case = Case(b.model(), numbers=(n, n + 1), longest=24, count=12)
    case.runs = False
    return case


def _a_residual(r: Random) -> Case:
    """The residual has as many tokens as some number says: S, or 1, which broadcasts."""
    n = r.choice([2, 3, 4])
    b = Graph(r)
    ids = b.ids()
    x = words(b, ids)
    first, second = _of_length(b, n)
    count = b.op("Max", b.op("Sub", b.length(ids), b.op("Abs", b.op("Sub", first, second))), b.ints(1))
    part = b.op("Slice", x, b.ints([0]), b.op("Unsqueeze", count, b.ints([0])), b.ints([1]))
    b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), part), HIDDEN))
    more = {f"1x{s}": {I: np.arange(s)[None] % 97} for s in (1, 2, 3, 4, 5, 8)}
    return Case(b.model(), numbers=(n, n + 1), longest=24, count=10, more=more)


RECIPES = (
    _number_of_heads, _number_of_heads, _scale, _columns, _a_condition, _a_condition, _a_part_of_the_mask, _places,
    _a_residual,
)  # fmt: skip
