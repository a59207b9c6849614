"""Views between projections and products that are right at some lengths only, or for some heads."""

from __future__ import annotations

from .build import HEADS, HIDDEN, SIZE, Case, Graph, Random, attend, np, recipe, spelled

# Lengths and batches that a trial of a layout is likely to use, and others.
LIKELY = (1, 2, 3, 5, 7, 8, 11, 13)


def _projected(b: Graph, x: str, width: int = HIDDEN) -> str:
    return b.linear(x, HIDDEN, width)


def _heads(b: Graph, x: str) -> str:
    return b.op("Transpose", b.op("Reshape", x, b.ints([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3])


def _with(r: Random, b: Graph, x: str, which: str, made: str, **case) -> Case:
    """An attention in which `made` [B, heads, S, size] takes the place of Q, K or V."""
    b.output(attend(b, x, spelled(r, mask="none", parts={f"{which}_heads": made})))
    return Case(b.model(), **({"count": 14, "longest": 20} | case))


def _cut_at_a_length(r: Random) -> Case:
    """The first n tokens or rows, which are all up to n of them."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    n, axis = r.choice(LIKELY), r.choice([0, 2])
    start, end = r.choice([(0, n), (-n, 1 << 62), (-(1 << 62), n), (0, n + 1)])
    more = {f"{p}x{q}": {"x": np.ones((p, q, HIDDEN), np.float32)} for p in (1, 2, n) for q in (1, 2, n)}
    made = b.op("Slice", _heads(b, _projected(b, x)), b.ints([start]), b.ints([end]), b.ints([axis]))
    if r.random() < 0.5:  # all three, so that it runs
        parts = {
            f"{n}_heads": b.op("Slice", _heads(b, _projected(b, x)), b.ints([start]), b.ints([end]), b.ints([axis]))
            for n in "qkv"
        }
        b.output(attend(b, x, spelled(r, mask="none", parts=parts)))
        return Case(b.model(), count=14, longest=20, numbers=(n,))
    return _with(r, b, x, r.choice("kv"), made, more=more)


def _sizes_by_number(r: Random) -> Case:
    """Reshapes that name a length or a batch: right at that one."""
    b = Graph(r)
    n = r.choice(LIKELY)
    batch, length = r.choice([(n, "S"), ("B", n), (n, r.choice(LIKELY))])
    x = b.input("x", (batch, length, HIDDEN))
    shape = [batch if isinstance(batch, int) else -1, length if isinstance(length, int) else -1, HEADS, SIZE]
    shape = [0 if r.random() < 0.2 and size != -1 and i < 2 else size for i, size in enumerate(shape)]
    if shape.count(-1) > 1:
        shape[0] = 0
    order = r.choice([(0, 1, 2, 3), (1, 0, 2, 3)]) if batch == length else (0, 1, 2, 3)
    split = b.op("Reshape", _projected(b, x), b.ints([shape[i] for i in order]))
    perm = r.choice([(0, 2, 1, 3), (1, 2, 0, 3)]) if batch == length else (0, 2, 1, 3)
    return _with(r, b, x, r.choice("qkv"), b.op("Transpose", split, perm=perm))


def _folded(r: Random) -> Case:
    """Batch and sequence in one axis, and apart again in the other order."""
    b = Graph(r)
    x = b.input("x", r.choice([("B", "S", HIDDEN), ("N", "N", HIDDEN), (3, "S", HIDDEN), ("B", 4, HIDDEN)]))
    flat = b.op("Reshape", _projected(b, x), b.ints([-1, HIDDEN]))
    sizes = [b.size(x, 0), b.size(x, 1)]
    if r.random() < 0.5:
        sizes.reverse()
    apart = b.op("Reshape", flat, b.op("Concat", *sizes, b.ints([HEADS, SIZE]), axis=0))
    if r.random() < 0.3:
        apart = b.op("Reshape", apart, b.op("Concat", b.size(x, 0), b.ints([-1, HEADS, SIZE]), axis=0))
    case = _with(r, b, x, r.choice("qkv"), b.op("Transpose", apart, perm=[0, 2, 1, 3]), count=0)
    random = np.random.default_rng(0)
    case.more = {
        f"{p}x{q}": {"x": random.standard_normal((p, q, HIDDEN)).astype(np.float32)}
        for p, q in ((1, 1), (2, 2), (3, 3), (4, 4), (2, 4), (4, 2), (3, 4), (3, 6), (6, 4), (1, 7), (5, 7))
    }
    return case


def _gathered_places(r: Random) -> Case:
    """Tokens by a constant list of numbers: in order, or with two exchanged near the end."""
    b = Graph(r)
    n = r.choice([4, 5, 7, 9])
    x = b.input("x", ("B", n, HIDDEN))
    order = list(range(n))
    if r.random() < 0.5:
        i, j = r.sample(order, 2)
        order[i], order[j] = order[j], order[i]
    order = [i - n if r.random() < 0.3 else i for i in order]
    return _with(r, b, x, r.choice("qkv"), b.op("Gather", _heads(b, _projected(b, x)), b.ints(order), axis=2))


def _chunks(r: Random) -> Case:
    """Split in pieces along any axis, put together in order or not."""
    b = Graph(r)
    x = b.input("x", ("B", 6, HIDDEN))
    axis, size = r.choice([(1, HEADS), (2, 6), (3, SIZE)])
    count = r.choice([2, size])
    more = {"num_outputs": count} if b.opset >= 18 else {}
    pieces = list(b.op("Split", _heads(b, _projected(b, x)), outputs=count, axis=axis, **more))
    if r.random() < 0.6:
        r.shuffle(pieces)
    return _with(r, b, x, r.choice("qkv"), b.op("Concat", *pieces, axis=axis))


@recipe(count=8)
def _packed_unequally(b: Graph, r: Random) -> None:
    """Q, K and V side by side in one product, of unequal parts or overlapping."""
    x = b.input("x", ("B", "S", HIDDEN))
    packed = _projected(b, x, 3 * HIDDEN + 4)
    starts = [0, HIDDEN, 2 * HIDDEN]
    which = r.randrange(3)
    starts[which] += r.choice([0, 4, -4, 1]) if starts[which] else r.choice([0, 4, 1])
    parts = {}
    for name, start in zip("qkv", starts, strict=True):
        cut = b.op("Slice", packed, b.ints([start]), b.ints([start + HIDDEN]), b.ints([2]))
        parts[f"{name}_heads"] = _heads(b, cut)
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=8)
def _interleaved(b: Graph, r: Random) -> None:
    """Packed by head, by column or by third, and the context merged back accordingly or not."""
    x = b.input("x", ("B", "S", HIDDEN))
    order = r.choice([[3, HEADS, SIZE], [HEADS, 3, SIZE], [HEADS, SIZE, 3], [3, SIZE, HEADS]])
    apart = b.op("Reshape", _projected(b, x, 3 * HIDDEN), b.ints([0, 0, *order]))
    third = order.index(3) + 2
    head, size = [axis for axis in (2, 3, 4) if axis != third]
    if order == [3, SIZE, HEADS]:
        head, size = size, head
    moved = b.op("Transpose", apart, perm=[third, 0, head, 1, size])
    parts = {f"{n}_heads": b.op("Gather", moved, b.ints(i), axis=0) for i, n in enumerate("qkv")}
    parts["merge_perm"] = r.choice([(0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 3, 1)])
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=8)
def _merged_otherwise(b: Graph, r: Random) -> None:
    """The context goes back by other sizes, or stays in parts that only look merged."""
    length = r.choice([4, 8, "S"])
    x = b.input("x", ("B", length, HIDDEN))
    shape = r.choice([[0, 0, HIDDEN], [0, -1, HIDDEN], [-1, 4, HIDDEN], [0, HIDDEN, -1], [0, 0, -1]])
    if length == "S" and shape == [-1, 4, HIDDEN]:
        shape = [0, 0, HIDDEN]
    parts = {"merge_shape": shape, "merge_perm": (0, 2, 1, 3)}
    if r.random() < 0.3:
        parts = {"merge_shape": [0, -1, HIDDEN], "merge_perm": (0, 1, 2, 3)}
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=10)
def _batch_in_the_heads(b: Graph, r: Random) -> None:
    """Heads and batch in one axis, in either order, as bmm has them."""
    x = b.input("x", ("B", "S", HIDDEN))
    first = r.random() < 0.5

    def folded(t: str) -> str:
        apart = b.op("Reshape", t, b.ints([0, 0, HEADS, SIZE]))
        perm = [0, 2, 1, 3] if first else [2, 0, 1, 3]
        return b.op(
            "Reshape",
            b.op("Transpose", apart, perm=perm),
            b.op("Concat", b.ints([-1]), b.size(x, 1), b.ints([SIZE]), axis=0),
        )

    q, k, v = (folded(_projected(b, x)) for _ in "qkv")
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), b.const(0.5))
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    back_first = first if r.random() < 0.6 else not first
    sizes = [b.size(x, 0), b.ints([HEADS])]
    sizes = sizes if back_first else sizes[::-1]
    apart = b.op("Reshape", context, b.op("Concat", *sizes, b.size(x, 1), b.ints([SIZE]), axis=0))
    merged = b.op("Transpose", apart, perm=[0, 2, 1, 3] if back_first else [1, 2, 0, 3])
    b.output(b.op("Reshape", merged, b.ints([0, 0, HIDDEN])))


def _longer_queries(r: Random) -> Case:
    """Q is repeated, padded or cut, so that there are more or fewer queries than keys."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    q = _heads(b, _projected(b, x))
    made = r.choice([
        lambda: b.op("Concat", q, q, axis=2),
        lambda: b.op("Slice", q, b.ints([0]), b.ints([1]), b.ints([2])),
        lambda: b.op("Pad", q, b.ints([0, 0, 0, 0, 0, 0, 1, 0])),
        lambda: b.op("Slice", q, b.ints([0]), b.ints([1 << 40]), b.ints([2]), b.ints([r.choice([1, 2])])),
    ])()  # fmt: skip
    return _with(r, b, x, "q", made, count=8)


def _broadcast_heads(r: Random) -> Case:
    """One of K and V is that of the first head, or of the first row, for all."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    heads = _heads(b, _projected(b, x))
    first = b.op("Slice", heads, b.ints([0]), b.ints([1]), b.ints([r.choice([0, 1])]))
    return _with(r, b, x, r.choice("kv"), first, count=8)


def _scaled_on_the_way(r: Random) -> Case:
    """Scales before and after the heads are taken apart, of Q, K, both, or of one head."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    t = _projected(b, x)
    for _ in range(r.choice([1, 2])):
        t = b.op(r.choice(["Mul", "Div"]), t, b.const(r.choice([2.0, 0.5, -1.0, 0.3, [0.5], [[[2.0]]]])))
    heads = _heads(b, t)
    if r.random() < 0.5:
        heads = b.op("Mul", heads, b.const(r.choice([0.5, [0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.6]])))
    return _with(r, b, x, r.choice("qkv"), heads, count=8)


@recipe(count=8, longest=8, runs=False)
def _axes_added_by_numbers(b: Graph, r: Random) -> None:
    """In one place a constant of one element with more axes than what it is multiplied with: an axis of 1 in front."""
    batch, length = r.choice([("B", 1), ("B", 1), (1, "S"), (1, 1), (4, 4), ("B", 5)])
    x = b.input("x", (batch, length, HIDDEN))
    place, rank = (
        r.choice(["projections", "heads", "scores", "merged", "product", "residual", "sum"]),
        r.choice([3, 4, 5]),
    )
    number = np.full((1,) * rank, r.choice([1.0, 0.5]), np.float32)
    op = r.choice(["Mul", "Div"])

    def changed(t: str, here: str) -> str:
        return b.op(op, t, b.const(number)) if here == place else t

    def heads(t: str) -> str:
        shape = [0, 0, HEADS, SIZE] if r.random() < 0.8 else [-1, length if isinstance(length, int) else 1, HEADS, SIZE]
        return changed(
            b.op("Transpose", b.op("Reshape", changed(t, "projections"), b.ints(shape)), perm=[0, 2, 1, 3]), "heads"
        )

    q, k, v = (heads(_projected(b, x)) for _ in "qkv")
    perm = [0, 1, 2, 4, 3] if place == "heads" and rank == 5 else [0, 1, 3, 2]
    scores = changed(b.op("MatMul", q, b.op("Transpose", k, perm=perm)), "scores")
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    five = place in ("heads", "scores") and rank == 5
    merged = b.op("Transpose", context, perm=[0, 1, 3, 2, 4] if five else [0, 2, 1, 3])
    merged = changed(b.op("Reshape", merged, b.ints([0, 0, 0, HIDDEN] if five else [0, 0, HIDDEN])), "merged")
    product = changed(b.linear(merged, HIDDEN, HIDDEN), "product")
    b.output(b.layer_norm(changed(b.op("Add", product, changed(x, "residual")), "sum"), HIDDEN))
