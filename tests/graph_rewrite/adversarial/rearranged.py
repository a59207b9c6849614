"""Operators whose result has another shape than one would think: for one text, with axes of 1, at some lengths."""

from __future__ import annotations

from collections.abc import Callable

from .build import BOOL, FLOAT, HIDDEN, INT64, Case, Graph, Random, attend, np, onnx, spelled

M = "attention_mask"


def finish(b: Graph, x: str, y: str) -> None:
    """A layer in which y stands for x [B, S, H] somewhere: as the residual, the input, keys, or beside both."""
    r = b.r
    how = r.randrange(6)
    if how == 0:
        z = b.layer_norm(b.op("Add", *r.sample([b.linear(x, HIDDEN, HIDDEN), y], 2)), HIDDEN)
    elif how == 1:
        z = b.layer_norm(b.op("Add", *r.sample([b.linear(y, HIDDEN, HIDDEN), x], 2)), HIDDEN)
    elif how == 2:
        wide = b.gelu(b.linear(y, HIDDEN, 32))
        z = b.layer_norm(b.op("Add", b.linear(wide, 32, HIDDEN), r.choice([x, y])), HIDDEN)
    elif how == 3:
        z = b.layer_norm(b.op("Add", x, y), HIDDEN)
    elif how == 4:
        if all(v.name != M for v in b.inputs):
            b.ids(M)
        z = attend(b, y, spelled(r, mask=r.choice(["none", "where"])), M)
    else:
        parts = r.choice([{"q_x": y}, {"k_x": y, "v_x": y}, {"v_x": y}])
        z = attend(b, x, spelled(r, mask="none", parts=parts))
    b.output(z)
    if r.random() < 0.3:
        total = b.op("ReduceSum", z, b.ints([1]), keepdims=0)
        b.output(b.op("Div", total, b.cast(b.size(y, 1), FLOAT)))


def small_and_large(names: dict[str, tuple], sizes: tuple[tuple[int, int], ...]) -> dict[str, dict[str, np.ndarray]]:
    """Random inputs of B and S in pairs; other names are once of the same sizes, once 1."""
    random = np.random.default_rng(7)
    more = {}
    for batch, length in sizes:
        for others in ({"A": batch, "T": length, "H": HIDDEN}, {"A": 1, "T": 1, "H": 1}):
            given = {}
            for name, shape in names.items():
                dims = [({"B": batch, "S": length} | others).get(d, d) for d in shape]
                if len(shape) == 2 and name == M:
                    given[name] = ((random.random(dims) < 0.7) | (np.arange(dims[1]) == 0)).astype(np.int64)
                elif name == "axes":
                    given[name] = np.zeros(dims, np.int64)
                else:
                    given[name] = random.standard_normal(dims).astype(np.float32)
            more[f"{batch}x{length} {others['T']}"] = given
    return more


SIZES = ((1, 1), (1, 2), (2, 1), (1, 5), (5, 1), (2, 7), (3, 4), (4, 3), (16, 2), (2, 16))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param


def _case(b: Graph, x: str, y: str) -> Case:
    finish(b, x, y)
    model = b.model()
    shapes = {v.name: tuple(_dim(d) for d in v.type.tensor_type.shape.dim) for v in b.inputs}
    case = Case(model, count=0, more=small_and_large(shapes, SIZES))
    case.runs = False
    return case


def _of(make: Callable[[Graph, str], str], name: str) -> Callable[[Random], Case]:
    def recipe(r: Random) -> Case:
        b = Graph(r, r.choice([18, 18, 20, 21]))
        x = b.input("x", ("B", "S", HIDDEN))
        return _case(b, x, make(b, x))

    recipe.__name__ = name
    return recipe


def _einsum(b: Graph, x: str) -> str:
    """Axes of one letter are of one size, or of 1."""
    y = b.input("y", b.r.choice([("B", 1, HIDDEN), (1, "S", HIDDEN), ("B", "S", 1), ("B", "S", HIDDEN)]))
    how = b.r.randrange(5)
    if how == 0:
        return b.op("Einsum", *b.r.sample([x, y], 2), equation="bsh,bsh->bsh")
    if how == 1:
        return b.op("Einsum", x, y, b.weight(HIDDEN, HIDDEN), equation="bsh,bsh,hk->bsk")
    if how == 2:
        return b.op("Einsum", y, b.const(np.eye(HIDDEN)), equation="bsh,hk->bsk") if b.inputs[-1] else x
    if how == 3:
        return b.op("Einsum", x, b.const(np.ones((1, 1))), equation="bsh,sh->bsh")
    return (
        b.op("Einsum", x, y, equation="bsh,...h->bsh") if b.r.random() < 0.5 else b.op("Einsum", x, equation="bsh->sbh")
    )


def _reduced(b: Graph, x: str) -> str:
    """Axes [] are all axes, or none, by an attribute; and so is an input that is not given."""
    op = b.r.choice(["ReduceSum", "ReduceMean", "ReduceMax"])
    axes = b.r.choice(
        [[b.ints(np.zeros(0))], [""], [], [b.input("axes", (0,), np.int64)] if b.r.random() < 0.5 else []]
    )
    noop = b.r.choice([0, 1])
    keepdims = b.r.choice([1, 1, 0])
    return b.op(op, x, *axes, keepdims=keepdims, **({"noop_with_empty_axes": noop} if b.r.random() < 0.8 else {}))


def _squeezed(b: Graph, x: str) -> str:
    """Every axis of one element goes: also the batch, and the sequence."""
    wide = b.unsqueeze(x, b.r.choice([0, 1, 3]))
    y = b.op("Squeeze", wide)
    return (
        b.op("Reshape", y, b.r.choice([b.op("Shape", y), b.op("Shape", x), b.ints([0, -1, HIDDEN])]))
        if b.r.random() < 0.4
        else y
    )


def _padded(b: Graph, x: str) -> str:
    """Of some axes, in any order; below 0, elements are taken away."""
    r = b.r
    axes = r.sample([0, 1, 2], r.choice([1, 2, 3]))
    if 1 not in axes:
        axes[0] = 1
    n = r.choice([1, 2])
    pads = [n if a == 1 else 0 for a in axes] + [r.choice([0, -n]) if a == 1 else 0 for a in axes]
    if r.random() < 0.4:
        pads = pads[len(axes) :] + pads[: len(axes)]
    given = [a - 3 if r.random() < 0.3 else a for a in axes]
    return b.op("Pad", x, b.ints(pads), "", b.ints(given), mode="constant")


def _padded_by_numbers(b: Graph, x: str) -> str:
    """Pads that are computed: of the sizes, or of constants."""
    n = b.op("Sub", b.size(x, 1), b.r.choice([b.size(x, 1), b.ints([3]), b.ints([1])]))
    zero = b.ints([0])
    return b.op("Pad", x, b.op("Concat", zero, n, zero, zero, b.r.choice([zero, b.op("Neg", n)]), zero, axis=0))


def _split(b: Graph, x: str) -> str:
    """In parts that are not alike: the last one has less, or nothing."""
    count = b.r.choice([2, 3, 4])
    parts = list(b.op("Split", x, outputs=count, axis=1, num_outputs=count))
    how = b.r.randrange(4)
    if how == 0:
        return parts[0]
    if how == 1:
        return parts[-1]
    return b.op("Concat", *(parts if how == 2 else reversed(parts)), axis=1)


def _split_columns(b: Graph, x: str) -> str:
    """16 columns in three parts: 6, 6 and 4."""
    count = b.r.choice([3, 5])
    parts = list(b.op("Split", x, outputs=count, axis=r_axis(b), num_outputs=count))
    return b.op("Concat", *b.r.sample(parts, len(parts)), axis=2)


def r_axis(b: Graph) -> int:
    return b.r.choice([2, -1])


def _resized(b: Graph, x: str) -> str:
    """By axes, in their order, by scales that round, and with a policy that keeps proportions."""
    r = b.r
    how = r.randrange(4)
    if how == 0:
        sizes = b.op("Concat", b.size(x, 1), b.ints([HIDDEN]), axis=0)
        axes, sizes = (
            ([1, 2], sizes) if r.random() < 0.6 else ([2, 1], b.op("Concat", b.ints([HIDDEN]), b.size(x, 1), axis=0))
        )
        policy = r.choice(["stretch", "not_larger", "not_smaller"])
        return b.op("Resize", x, "", "", sizes, axes=axes, keep_aspect_ratio_policy=policy, mode="nearest")
    if how == 1:
        sizes = b.ints([4, 8])
        policy = r.choice(["not_larger", "not_smaller", "stretch"])
        y = b.op("Resize", x, "", "", sizes, axes=[1, 2], keep_aspect_ratio_policy=policy, mode="nearest")
        return b.op(
            "Pad", y, b.op("Concat", b.ints([0]), b.op("Sub", b.ints([HIDDEN]), b.size(y, 2)), axis=0), "", b.ints([2])
        )
    if how == 2:
        scale = r.choice([1.01, 1.3, 0.99, 0.5])
        return b.op("Resize", x, "", b.const([1.0, scale, 1.0]), mode="nearest")
    return b.op("Resize", x, "", b.const([r.choice([1.0, 1.2, 2.0])]), axes=[1], mode="nearest")


def _reshaped(b: Graph, x: str) -> str:
    """0 is a size as it is, or no elements; -1 is what is left."""
    r = b.r
    shape = r.choice([[0, 0, HIDDEN], [0, -1, HIDDEN], [-1, 0, HIDDEN], [-1, 1, HIDDEN], [1, -1, HIDDEN]])
    sizes = b.ints(shape)
    if r.random() < 0.4:
        sizes = b.op("Concat", *r.sample([b.size(x, 0), b.size(x, 1)], 2), b.ints([HIDDEN]), axis=0)
    return b.op("Reshape", x, sizes, allowzero=r.choice([0, 1, 1]))


def _sliced(b: Graph, x: str) -> str:
    """Bounds that may lie outside, before the start, or behind the end; steps that leave one token."""
    r = b.r
    n = r.choice([1, 2, 3])
    bounds = [
        lambda: (b.ints([-n]), b.ints([1 << 60])), lambda: (b.ints([0]), b.ints([-n])),
        lambda: (b.op("Sub", b.size(x, 1), b.ints([n])), b.ints([1 << 60])),
        lambda: (b.op("Neg", b.size(x, 1)), b.ints([1 << 60])), lambda: (b.ints([0]), b.op("Neg", b.ints([n]))),
        lambda: (b.ints([n]), b.ints([-n])),
        lambda: (b.ints([0]), b.op("Mul", b.size(x, 1), b.ints([r.choice([1, 2])]))),
        lambda: (b.ints([0]), b.op("Sub", b.size(x, 1), b.ints([n]))),
    ]  # fmt: skip
    start, end = r.choice(bounds)()
    if r.random() < 0.3:
        start, end = b.op("Neg", b.ints([1])), b.ints([-(1 << 60)])
        return b.op("Slice", x, r.choice([start, b.ints([n]), b.ints([1 << 40])]), end, b.ints([1]), b.ints([-1]))
    return b.op("Slice", x, start, end, b.ints([1]), b.ints([r.choice([1, 1, 2])]))


def _gathered(b: Graph, x: str) -> str:
    """GatherND with batch_dims, GatherElements, Gather with indices of more axes, Compress."""
    r = b.r
    places = b.places(x)
    how = r.randrange(6)
    if how == 0:
        return b.op(
            "GatherND",
            x,
            b.op("Expand", b.unsqueeze(places, 0, 2), b.op("Concat", b.size(x, 0), b.size(x, 1), b.ints([1]), axis=0)),
            batch_dims=1,
        )
    if how == 1:
        return b.op(
            "GatherND",
            x,
            b.op(
                "ConstantOfShape",
                b.op("Concat", b.size(x, 0), b.ints([1]), axis=0),
                value=onnx.helper.make_tensor("v", INT64, [1], [-1]),
            ),
            batch_dims=1,
        )
    if how == 2:
        return b.op("GatherElements", x, b.op("Expand", b.unsqueeze(places, 0, 2), b.op("Shape", x)), axis=1)
    if how == 3:
        return b.op(
            "GatherElements",
            x,
            b.op("Expand", b.ints([[[0]]]), b.op("Concat", b.size(x, 0), b.ints([1, HIDDEN]), axis=0)),
            axis=1,
        )
    if how == 4:
        return b.op("Gather", x, r.choice([b.ints([0]), b.ints([-1]), places]), axis=1)
    return b.op("Compress", x, b.op("Less", places, b.ints(r.choice([1, 3, 100]))), axis=1)


def _expanded(b: Graph, x: str) -> str:
    """Both ways: where x has one row, the shape may have more; where it has none, x's counts."""
    r = b.r
    shape = r.choice([
        lambda: b.op("Concat", b.ints([1]), b.size(x, 1), b.ints([1]), axis=0), lambda: b.ints([2, 1, 1]),
        lambda: b.op("Concat", b.size(x, 1), b.ints([1, 1]), axis=0), lambda: b.ints([1, 1, HIDDEN]),
        lambda: b.op("Concat", b.ints([1, 1]), b.size(x, 1), axis=0),
    ])()  # fmt: skip
    return (
        b.op("Expand", x, shape)
        if r.random() < 0.7
        else b.op("Tile", x, b.ints(r.choice([[1, 1, 1], [1, 2, 1], [2, 1, 1]])))
    )


def _broadcast(b: Graph, x: str) -> str:
    """Elementwise operators and Where of two lengths, of which one may be 1."""
    r = b.r
    y = b.input("y", r.choice([("B", "T", HIDDEN), ("A", "S", HIDDEN), ("T", HIDDEN), ("B", "S", "H")]))
    how = r.randrange(4)
    if how == 0:
        return b.op(r.choice(["Add", "Sub", "Max", "Mean"]), *r.sample([x, y], 2))
    if how == 1:
        return b.op("Where", b.op("Less", x, y), *r.sample([x, y], 2))
    if how == 2:
        return b.op("Sum", x, y, b.const(0.0))
    return b.op("Min", b.op("Mul", y, b.const(0.0)), y, x)


def _joined(b: Graph, x: str) -> str:
    """Concat with what has no tokens at some lengths; a stack of axes."""
    r = b.r
    nothing = b.op("Slice", x, b.ints([r.choice([1, 2])]), b.ints([1 << 60]), b.ints([1]))
    first = b.op("Slice", x, b.ints([0]), b.ints([1]), b.ints([1]))
    return b.op("Concat", *r.choice([[first, nothing], [nothing, first], [nothing], [first]]), axis=1)


def _counted(b: Graph, x: str) -> str:
    """NonZero, TopK, Unique, OneHot: as many as there are."""
    r = b.r
    places = b.places(x)
    how = r.randrange(3)
    if how == 0:
        found = b.op("Squeeze", b.op("NonZero", b.op("Sub", places, b.ints(r.choice([0, 1])))), b.ints([0]))
        return b.op("Gather", x, found, axis=1)
    if how == 1:
        k = r.choice([b.size(x, 1), b.ints([1])])
        values, _ = b.op("TopK", x, k, outputs=2, axis=1)
        return values
    unique = b.op("Unique", b.op("Mod", places, b.ints(r.choice([1, 2, 100]))), outputs=1, sorted=1)
    return b.op("Gather", x, unique, axis=1)


def _mask_of_other_shape(r: Random) -> Case:
    """The same operators on the mask [B, S]."""
    b = Graph(r, r.choice([18, 20, 21]))
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    numbers = b.unsqueeze(b.cast(mask, FLOAT), 2)
    wide = b.op("Expand", numbers, b.op("Concat", b.op("Shape", mask), b.ints([HIDDEN]), axis=0))
    y = r.choice([_squeezed, _padded, _split, _reshaped, _sliced, _gathered, _expanded, _joined, _resized])(b, wide)
    one = b.op("Gather", y, b.ints(0), axis=-1)
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(b.keys(b.cast(one, BOOL)))})))
    case = Case(b.model(), count=0, more=small_and_large({"x": ("B", "S", HIDDEN), M: ("B", "S")}, SIZES))
    case.runs = False
    return case


_MAKERS = (
    _einsum, _reduced, _squeezed, _padded, _padded_by_numbers, _split, _split_columns, _resized, _reshaped, _sliced,
    _gathered, _expanded, _broadcast, _joined, _counted,
)  # fmt: skip
RECIPES = (*(_of(make, make.__name__) for make in _MAKERS), _mask_of_other_shape, _mask_of_other_shape)
