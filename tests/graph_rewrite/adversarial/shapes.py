"""Shapes that broadcast: residuals, biases, masks and x of other ranks and batches; heads that are no heads."""

from __future__ import annotations

from .build import BOOL, HEADS, HIDDEN, SIZE, Graph, Random, attend, np, recipe, spelled


@recipe(count=8)
def _residual(b: Graph, r: Random) -> None:
    """A residual, or x, that broadcasts over batch or length."""
    first, second = r.choice(
        [
            (("B", "S", HIDDEN), (1, "S", HIDDEN)), ((1, "S", HIDDEN), ("R", "S", HIDDEN)),
            (("B", "S", HIDDEN), ("S", HIDDEN)), (("B", "S", HIDDEN), ("B", 1, HIDDEN)),
            (("B", 1, HIDDEN), ("B", "S", HIDDEN)), (("B", "S", HIDDEN), (HIDDEN,)),
            (("B", "S", HIDDEN), ("B", "S", 1)), (("S", HIDDEN), ("B", "S", HIDDEN)), ((HIDDEN,), ("B", "S", HIDDEN)),
            ((1, 1, HIDDEN), ("B", "S", HIDDEN)), (("B", "S", HIDDEN), ("B", "S", HIDDEN)),
            (("A", "B", "S", HIDDEN), ("B", "S", HIDDEN)),
        ]
    )  # fmt: skip
    x, y = b.input("x", first), b.input("y", second)
    total = [b.linear(x, HIDDEN, HIDDEN), y]
    r.shuffle(total)
    b.output(b.layer_norm(b.op("Add", *total), HIDDEN))


@recipe(count=10)
def _mask_of_another_batch(b: Graph, r: Random) -> None:
    x = b.input("x", r.choice([("B", "S", HIDDEN), (1, "S", HIDDEN)]))
    shape = r.choice([("B", "S"), (1, "S"), ("R", "S"), ("B", 1), (1, 1), ("B", 1, 1, "S"), ("B", 1, "S", "S")])
    mask = b.input("attention_mask", shape, np.int64)
    visible = b.cast(mask, BOOL)
    visible = visible if len(shape) == 4 else b.keys(visible)
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))


@recipe(count=8)
def _one_head(b: Graph, r: Random) -> None:
    """One head: some of Q, K and V stay [B, S, H], others get an axis of 1."""
    x = b.input("x", ("B", "S", HIDDEN))
    made = []
    for _ in "qkv":
        t = b.linear(x, HIDDEN, HIDDEN)
        made.append(b.unsqueeze(t, 1) if r.random() < 0.5 else t)
    q, k, v = made
    ranks = [4 if t.startswith("unsqueeze") else 3 for t in made]
    k = b.op("Transpose", k, perm=[0, 1, 3, 2] if ranks[1] == 4 else [0, 2, 1])
    weights = b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), b.const(0.25)), axis=-1)
    context = b.op("MatMul", weights, v)
    b.output(b.op("Reshape", context, b.ints([0, -1, HIDDEN])) if max(ranks) == 4 else context)


@recipe(count=6)
def _bias_of_more_axes(b: Graph, r: Random) -> None:
    """Biases and LayerNorm's weights of [1], [1, H], [1, 1, H] or [S, H]."""
    length = 5
    x, y = b.input("x", ("B", length, HIDDEN)), b.input("y", ("B", length, HIDDEN))
    shape = lambda: r.choice([(HIDDEN,), (1, HIDDEN), (1, 1, HIDDEN), (length, HIDDEN), (1,), (), (length, 1)])  # noqa: E731
    bias, gamma, beta = (b.const(b.random.standard_normal(shape()) + 1) for _ in range(3))
    total = b.op("Add", b.op("Add", b.op("MatMul", x, b.weight(HIDDEN, HIDDEN)), bias), y)
    centred = b.op("Sub", total, b.mean(total))
    variance = b.mean(b.op("Mul", centred, centred))
    normal = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.const(r.choice([[1e-5], 1e-5])))))
    b.output(b.op("Add", b.op("Mul", normal, gamma), beta))


@recipe(count=6)
def _weights_of_three_axes(b: Graph, r: Random) -> None:
    """MatMul with a weight for each row of the batch, or with one axis more."""
    batch = r.choice([1, 3])
    x, y = b.input("x", (3, "S", HIDDEN)), b.input("y", (3, "S", HIDDEN))
    product = b.op("MatMul", x, b.const(b.random.standard_normal((batch, HIDDEN, HIDDEN)) / 4))
    b.output(b.layer_norm(b.op("Add", b.op("Add", product, b.weight(HIDDEN)), y), HIDDEN))


@recipe(count=6)
def _fewer_heads(b: Graph, r: Random) -> None:
    """K and V of fewer columns, repeated by Expand or Tile (grouped queries)."""
    x = b.input("x", ("B", 4, HIDDEN))
    groups = r.choice([1, 2])

    def grouped(t: str) -> str:
        heads = b.op("Transpose", b.op("Reshape", t, b.ints([0, 0, groups, SIZE])), perm=[0, 2, 1, 3])
        if r.random() < 0.5:
            return b.op("Tile", heads, b.ints([1, HEADS // groups, 1, 1]))
        wide = b.op("Expand", b.unsqueeze(heads, 2), b.ints([1, 1, HEADS // groups, 1, 1]))
        return b.op("Reshape", wide, b.ints([0, HEADS, -1, SIZE]))

    k, v = (grouped(b.linear(x, HIDDEN, groups * SIZE)) for _ in "kv")
    b.output(attend(b, x, spelled(r, mask="none", parts={"k_heads": k, "v_heads": v})))


@recipe(count=6)
def _wider_v(b: Graph, r: Random) -> None:
    """V, or Q and K, of another size."""
    x = b.input("x", ("B", "S", HIDDEN))
    sizes = r.choice([(4, 4, 8), (8, 8, 4), (4, 4, 2)])
    q, k, v = (
        b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, HEADS * s), b.ints([0, 0, HEADS, s])), perm=[0, 2, 1, 3])
        for s in sizes
    )
    parts = {"q_heads": q, "k_heads": k, "v_heads": v, "merge_shape": [0, 0, HEADS * sizes[2]]}
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=6)
def _static(b: Graph, r: Random) -> None:
    """Axes of equal sizes, so that nothing but the order of views tells them apart."""
    batch, length = r.choice([(4, 4), (1, 1), (4, 16), (16, 4), (1, 4)])
    x, mask = b.input("x", (batch, length, HIDDEN)), b.ids("attention_mask", (batch, length))
    parts = r.choice([{}, {"q_perm": (0, 2, 1, 3)}, {"v_perm": (2, 0, 1, 3)}, {"q_perm": (2, 0, 1, 3)}])
    if batch != length and any("perm" in key and value[0] == 2 for key, value in parts.items()):
        parts = {}
    b.output(attend(b, x, spelled(r, mask="where", parts=parts), mask))


@recipe(count=6)
def _norm_of_two_axes(b: Graph, r: Random) -> None:
    """x [N, H] of rank two, or [B, A, S, H] of rank four."""
    shape = r.choice([("N", HIDDEN), ("B", "A", "S", HIDDEN), ("B", "S", HIDDEN), (HIDDEN, HIDDEN)])
    x, y = b.input("x", shape), b.input("y", shape)
    b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), y), HIDDEN))


@recipe(count=6)
def _shared_axis(b: Graph, r: Random) -> None:
    """Gathered rows added to a product, of one row for all."""
    ids = b.ids("ids", r.choice([("B", "S"), (1, "S"), ("S",)]))
    x = b.input("x", ("B", "S", HIDDEN))
    rows = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), rows), HIDDEN))
