"""Axes without names, of other names, or of one element: what is broadcast, and what only looks alike."""

from __future__ import annotations

from collections.abc import Mapping

from .build import BOOL, HIDDEN, INT64, Case, Graph, Random, attend, np, recipe, spelled

M = "attention_mask"
NAMES = ((None, None), ("B", "S"), ("B", None), (None, "S"), ("batch", "sequence"), (1, "S"), ("B", 1))


def _feeds(shapes: list[Mapping[str, tuple[int, ...]]], seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Floats for "x" and "y", ids below 50, masks of 0 and 1 of which the first key is visible."""
    random, made = np.random.default_rng(seed), {}
    for number, sizes in enumerate(shapes):
        feed = {}
        for name, shape in sizes.items():
            if name in "xy":
                feed[name] = random.standard_normal(shape).astype(np.float32)
            elif name == "ids":
                feed[name] = random.integers(0, 50, shape)
            else:
                feed[name] = random.integers(0, 2, shape)
                feed[name][:, :1] = 1
        made[f"shapes {number}"] = feed
    return made


def _runs(names: tuple[str, ...], width: bool, declared: Mapping[str, tuple]) -> list[dict[str, tuple[int, ...]]]:
    """Inputs of one shape, and with one of them of one row, or of one column; what is declared is kept to."""
    found = []
    for shape in ((2, 5), (1, 4), (3, 1), (1, 1), (4, 4)):
        for odd in (None, *names):
            for other in ((1, shape[1]), (shape[0], 1)) if odd else (shape,):
                sizes = {n: (*(other if n == odd else shape), *((HIDDEN,) if n in "xy" else ())) for n in names}
                fits = all(
                    not isinstance(want, int) or want == got
                    for n in names for want, got in zip(declared[n], sizes[n], strict=False)
                )  # fmt: skip
                by_name: dict[str, int] = {}
                for n in names:
                    for want, got in zip(declared[n], sizes[n], strict=False):
                        if isinstance(want, str):
                            fits = fits and by_name.setdefault(want, got) == got
                if fits:
                    found.append(sizes)
    return found


def _case(b: Graph, declared: Mapping[str, tuple], seed: int) -> Case:
    case = Case(b.model(), count=0)
    case.more = _feeds(_runs(tuple(declared), True, declared), seed)
    return case


def _mask_beside_x(r: Random) -> Case:
    b = Graph(r)
    declared = {"x": (*r.choice(NAMES), HIDDEN), M: r.choice(NAMES)}
    x, mask = b.input("x", declared["x"]), b.ids(M, declared[M])
    b.output(attend(b, x, spelled(r, mask=r.choice(["where", "expanded"])), mask))
    return _case(b, declared, r.randrange(99))


def _mask_beside_ids(r: Random) -> Case:
    """Where both have no names the fused model may refuse at run time: such inputs are not fed."""
    b = Graph(r)
    names = [n for n in NAMES if n != (None, None)]
    declared = {"ids": r.choice(names), M: r.choice(names)}
    ids, mask = b.ids("ids", declared["ids"]), b.ids(M, declared[M])
    x = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    visible = b.cast(b.keys(mask), BOOL)
    if r.random() < 0.4:
        length = b.size(ids, 1)
        shape = b.op("Concat", b.size(ids, 0), b.ints([1]), length, length, axis=0)
        visible = b.cast(b.op("Expand", b.cast(visible, INT64), shape), BOOL)
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))
    return _case(b, declared, r.randrange(99))


def _residual_beside_x(r: Random) -> Case:
    b = Graph(r)
    declared = {"x": (*r.choice(NAMES), HIDDEN), "y": (*r.choice(NAMES), HIDDEN)}
    x, y = b.input("x", declared["x"]), b.input("y", declared["y"])
    total = [b.linear(x, HIDDEN, HIDDEN), y]
    r.shuffle(total)
    b.output(b.layer_norm(b.op("Add", *total), HIDDEN))
    return _case(b, declared, r.randrange(99))


def _types_beside_ids(r: Random) -> Case:
    b = Graph(r)
    names = [n for n in NAMES if n != (None, None)]
    declared = {"ids": r.choice(names), "types": r.choice(names)}
    ids, types = b.ids("ids", declared["ids"]), b.ids("types", declared["types"])
    places = b.unsqueeze(b.places(r.choice([ids, types])), 0)
    terms = [
        b.op("Gather", b.weight(97, HIDDEN), ids, axis=0), b.op("Gather", b.weight(2, HIDDEN), types, axis=0),
        b.op("Gather", b.weight(40, HIDDEN), places, axis=0),
    ]  # fmt: skip
    r.shuffle(terms)
    b.output(b.layer_norm(b.op("Add", b.op("Add", *terms[:2]), terms[2]), HIDDEN))
    return _case(b, declared, r.randrange(99))


def _lengths_of_another(r: Random) -> Case:
    """Masks of places whose numbers, or whose limit, are another input's length."""
    b = Graph(r)
    names = [n for n in NAMES if n != (None, None)]
    declared = {"ids": r.choice(names), M: r.choice(names)}
    ids, mask = b.ids("ids", declared["ids"]), b.ids(M, declared[M])
    x = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    real = b.op("Less", b.unsqueeze(b.places(ids), 0), b.length(mask))
    visible = b.keys(b.op("And", b.cast(mask, BOOL), real))
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))
    return _case(b, declared, r.randrange(99))


def _same_name_twice(r: Random) -> Case:
    """Batch and length have one name: B is S, and what is folded in either order is the same size."""
    b = Graph(r)
    declared = {"x": ("N", "N", HIDDEN), M: r.choice([("N", "N"), ("B", "N"), ("N", "S")])}
    x, mask = b.input("x", declared["x"]), b.ids(M, declared[M])
    rows = b.op("Transpose", x, perm=[1, 0, 2]) if r.random() < 0.4 else x
    visible = (
        b.cast(b.keys(mask), BOOL) if r.random() < 0.7 else b.cast(b.keys(b.op("Transpose", mask, perm=[1, 0])), BOOL)
    )
    context = attend(b, rows, spelled(r, parts={"mask": b.additive(visible)}))
    b.output(b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), r.choice([x, rows])), HIDDEN))
    return _case(b, declared, r.randrange(99))


def _product_names(r: Random) -> Case:
    """Axes whose names are expressions of other names, or of the words that inference makes up."""
    b = Graph(r)
    name = r.choice(
        ["2*S", "S + 0", "B*S", "axis_1", "unnamed_axis_0", "Min(4, S)", "floor(S)", "S", "unk__1", "x_axis_0"]
    )
    declared = {"x": ("B", "S", HIDDEN), "y": ("B", name, HIDDEN)}
    x, y = b.input("x", declared["x"]), b.input("y", declared["y"])
    parts = {"k_x": y, "v_x": y} if r.random() < 0.5 else {}
    if parts:
        b.output(attend(b, x, spelled(r, mask="none", parts=parts)))
    else:
        b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), y), HIDDEN))
    return _case(b, declared, r.randrange(99))


def _joined(r: Random) -> Case:
    """x and y one after the other, or cut apart again: sums of lengths."""
    b = Graph(r)
    declared = {"x": ("B", "S", HIDDEN), "y": ("B", r.choice(["S", "T", None, 1]), HIDDEN)}
    x, y = b.input("x", declared["x"]), b.input("y", declared["y"])
    whole = b.op("Concat", x, y, axis=1)
    if r.random() < 0.5:
        whole = b.op("Slice", whole, b.size(x, 1), b.ints([1 << 62]), b.ints([1]))
    residual = r.choice([whole, y])
    b.output(b.layer_norm(b.op("Add", b.linear(whole, HIDDEN, HIDDEN), residual), HIDDEN))
    return _case(b, declared, r.randrange(99))


@recipe(count=10)
def _one_token(b: Graph, r: Random) -> None:
    """The first token, or the mean, of a layer is broadcast over its tokens."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    context = attend(b, x, spelled(r, mask="where"), mask)
    first = b.op("Slice", context, b.ints([0]), b.ints([1]), b.ints([1]))
    one = first if r.random() < 0.5 else b.op("ReduceMean", context, b.ints([1])) if b.opset >= 18 else first
    terms = [b.linear(r.choice([one, context]), HIDDEN, HIDDEN), r.choice([one, context, x])]
    b.output(b.layer_norm(b.op("Add", *terms), HIDDEN))


def _cut_to_another(r: Random) -> Case:
    """x up to, or from, the length of another input, which may be more, less or 1."""
    b = Graph(r)
    declared = {"x": ("B", "S", HIDDEN), "y": ("B", "T", HIDDEN)}
    x, y = b.input("x", declared["x"]), b.input("y", declared["y"])
    bound = r.choice([
        lambda: b.size(y, 1), lambda: b.op("Mul", b.size(y, 1), b.ints([2])),
        lambda: b.op("Sub", b.size(x, 1), b.ints([2])),
        lambda: b.op("Div", b.size(x, 1), b.ints([2])), lambda: b.op("Sub", b.size(x, 1), b.size(y, 1)),
        lambda: b.op("Min", b.size(x, 1), b.size(y, 1)), lambda: b.op("Max", b.size(x, 1), b.size(y, 1)),
    ])()  # fmt: skip
    ends = (b.ints([0]), bound) if r.random() < 0.6 else (bound, b.ints([1 << 62]))
    cut = b.op("Slice", x, *ends, b.op("Abs", b.ints([1])) if r.random() < 0.3 else b.ints([1]))
    terms = r.choice([(x, cut), (cut, x), (cut, y), (y, cut), (cut, cut)])
    b.output(b.layer_norm(b.op("Add", b.linear(terms[0], HIDDEN, HIDDEN), terms[1]), HIDDEN))
    shapes = [(2, 5, 5), (2, 5, 1), (2, 5, 3), (1, 3, 7), (3, 1, 4), (1, 4, 2), (2, 2, 1)]
    feeds = [{"x": (p, s, HIDDEN), "y": (p, t, HIDDEN)} for p, s, t in shapes]
    return Case(b.model(), count=0, more=_feeds(feeds))


def _shaped_by_a_condition(r: Random) -> Case:
    """x in a shape that is another at some length, or by way of a condition that is cast to a number."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    batch, length, n = b.size(x, 0), b.size(x, 1), r.choice([1, 2, 4])
    how = r.randrange(4)
    if how == 0:
        equal = b.op("Equal", length, b.ints([n]))
        first = b.op("Where", equal, b.op("Mul", batch, length), batch)
        shape = b.op("Concat", first, b.ints([-1, HIDDEN]), axis=0)
    elif how == 1:
        one = b.cast(b.cast(length, BOOL), INT64)
        shape = b.op("Concat", one, b.ints([-1, HIDDEN]), axis=0)
    elif how == 2:
        rest = b.op("Max", b.op("Sub", length, b.ints([n])), b.ints([1]))
        shape = b.op(
            "Concat",
            b.ints([-1]),
            b.op("Where", b.op("Equal", rest, b.ints([1])), length, length),
            b.ints([HIDDEN]),
            axis=0,
        )
    else:
        narrow = b.cast(b.cast(b.op("Add", length, b.ints([256])), 2), INT64)
        shape = b.op("Concat", batch, narrow, b.ints([HIDDEN]), axis=0)
    given = b.op("Reshape", x, shape)
    b.output(b.layer_norm(b.op("Add", b.linear(given, HIDDEN, HIDDEN), r.choice([given, x])), HIDDEN))
    feeds = [{"x": (p, s, HIDDEN)} for p, s in ((2, 5), (1, 4), (2, 4), (3, 2), (2, 1), (1, 1))]
    return Case(b.model(), count=0, more=_feeds(feeds), runs=False)
