"""A layer whose tensors of the same shape are mixed up: residuals, heads, biases, projections."""

from __future__ import annotations

from .build import BOOL, HEADS, HIDDEN, SIZE, Graph, Random, attend, np, recipe, spelled

M = "attention_mask"


def _heads(b: Graph, x: str) -> str:
    return b.op("Transpose", b.op("Reshape", x, b.ints([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3])


@recipe(count=6)
def _projections_of_others(b: Graph, r: Random) -> None:
    """Q, K or V project another tensor of the same shape."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    parts = {f"{n}_x": r.choice([x, x, y]) for n in "qkv"}
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=6)
def _shared_projections(b: Graph, r: Random) -> None:
    """Q and K, or all three, are one product."""
    x = b.input("x", ("B", "S", HIDDEN))
    made = [b.linear(x, HIDDEN, HIDDEN) for _ in range(2)]
    b.output(attend(b, x, spelled(r, mask="none", parts={n: r.choice(made) for n in "qkv"})))


@recipe(count=6)
def _permuted_heads(b: Graph, r: Random) -> None:
    """Heads, or columns inside of a head, in another order in one of Q, K and V."""
    x = b.input("x", ("B", "S", HIDDEN))
    which = r.choice("qkv")
    heads = _heads(b, b.linear(x, HIDDEN, HIDDEN))
    axis, size = r.choice([(1, HEADS), (3, SIZE)])
    order = r.sample(range(size), size)
    if r.random() < 0.7:
        heads = b.op("Gather", heads, b.ints(order), axis=axis)
    else:
        heads = b.op("Slice", heads, b.ints([-1]), b.ints([-(1 << 62)]), b.ints([axis]), b.ints([-1]))
    b.output(attend(b, x, spelled(r, mask="none", parts={f"{which}_heads": heads})))


@recipe(count=6)
def _moved_places(b: Graph, r: Random) -> None:
    """One of Q, K and V backwards, or one place on."""
    x = b.input("x", ("B", "S", HIDDEN))
    heads = _heads(b, b.linear(x, HIDDEN, HIDDEN))
    axis = r.choice([0, 2])
    moved = b.op("Slice", heads, b.ints([-1]), b.ints([-(1 << 62)]), b.ints([axis]), b.ints([-1]))
    b.output(attend(b, x, spelled(r, mask="none", parts={f"{r.choice('qkv')}_heads": moved})))


@recipe(count=6)
def _scale_of_each_head(b: Graph, r: Random) -> None:
    """A scale of its own for each head, or column, or for one of them."""
    x = b.input("x", ("B", "S", HIDDEN))
    shape = r.choice([(1, HEADS, 1, 1), (HEADS, 1, 1), (1, 1, 1, SIZE), (SIZE,)])
    values = np.full(shape, 0.5)
    if r.random() < 0.7:
        values.flat[r.randrange(values.size)] = r.choice([0.6, 2.0, -0.5])
    heads = b.op("Mul", _heads(b, b.linear(x, HIDDEN, HIDDEN)), b.const(values))
    b.output(attend(b, x, spelled(r, mask="none", parts={f"{r.choice('qkv')}_heads": heads})))


@recipe(opset=(17,), count=6)
def _changed_heads(b: Graph, r: Random) -> None:
    """Something happens to Q, K or V by head: a norm, a rotation, a function, another tensor added."""
    x = b.input("x", ("B", "S", HIDDEN))
    heads = _heads(b, b.linear(x, HIDDEN, HIDDEN))
    if r.random() < 0.3:
        heads = b.op("LayerNormalization", heads, b.const(np.ones(SIZE)), b.const(np.zeros(SIZE)), axis=-1)
    elif r.random() < 0.5:
        heads = b.op(r.choice(["Relu", "Tanh", "Neg", "Abs", "Identity"]), heads)
    else:
        heads = b.op("Add", heads, b.const(b.random.standard_normal(r.choice([(SIZE,), (HEADS, 1, SIZE), (1,)]))))
    b.output(attend(b, x, spelled(r, mask="none", parts={f"{r.choice('qkv')}_heads": heads})))


@recipe(count=8)
def _whole_layer(b: Graph, r: Random) -> None:
    """Attention and feed-forward, in which each residual may come from elsewhere."""
    x, y, mask = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN)), b.ids(M)
    context = attend(b, x, spelled(r, mask="where"), mask)
    first = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), r.choice([x, x, y, context])), HIDDEN)
    wide = b.gelu(b.linear(r.choice([first, first, x, context]), HIDDEN, 32))
    second = b.op("Add", b.linear(wide, 32, HIDDEN), r.choice([first, first, x, y, context]))
    b.output(b.layer_norm(second, HIDDEN))


@recipe(count=10)
def _two_layers(b: Graph, r: Random) -> None:
    """Two layers: weights shared or not, the second one's mask inverted, of another input, or none."""
    x, mask, other = b.input("x", ("B", "S", HIDDEN)), b.ids(M), b.ids("other")
    visible = b.cast(b.unsqueeze(mask, 1, 2), BOOL)
    first = b.additive(visible)
    second = r.choice(
        [
            lambda: first,
            lambda: b.additive(b.op("Not", visible)),
            lambda: b.additive(b.cast(b.unsqueeze(other, 1, 2), BOOL)),
            lambda: b.op("Add", first, first),
            lambda: b.op("Neg", first),
            lambda: b.op("Mul", first, b.const(r.choice([1.0, 1e-4, 0.5]))),
        ]
    )()
    weights = [(b.weight(HIDDEN, HIDDEN), b.weight(HIDDEN)) for _ in range(3)]
    for number, mask_of_layer in enumerate((first, second)):
        if number and r.random() < 0.5:
            r.shuffle(weights)
        parts = {n: b.linear(x, HIDDEN, HIDDEN, weight=w, bias=c) for n, (w, c) in zip("qkv", weights, strict=True)}
        x = attend(b, x, spelled(r, parts={"mask": mask_of_layer, **parts}))
    b.output(x)


@recipe(count=6)
def _transposed_context(b: Graph, r: Random) -> None:
    """The product with V the other way round, or the weights transposed: over the queries."""
    x = b.input("x", ("B", 4, HIDDEN))
    how = r.randrange(3)
    if how == 0:
        parts = {"after_softmax": lambda w: b.op("Transpose", w, perm=[0, 1, 3, 2])}
    elif how == 1:
        parts = {"after_mask": lambda s: b.op("Transpose", s, perm=[0, 1, 3, 2])}
    else:
        parts = {"v_first": True}
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=6)
def _inner_outputs(b: Graph, r: Random) -> None:
    """Scores, weights, heads or context are outputs of the model, too."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    told: list[str] = []

    def tell(t: str) -> str:
        told.append(t)
        return t

    key = r.choice(["after_mask", "after_softmax"])
    b.output(attend(b, x, spelled(r, mask="where", parts={key: tell}), mask))
    b.output(*told)


@recipe(count=6)
def _gemm_chain(b: Graph, r: Random) -> None:
    """Products of products, and GELUs whose product feeds two of them."""
    x = b.input("x", ("B", "S", HIDDEN))
    wide = b.linear(x, HIDDEN, 32)
    first, second = b.gelu(wide), b.gelu(wide if r.random() < 0.5 else b.linear(x, HIDDEN, 32))
    mixed = b.op(r.choice(["Add", "Mul", "Sub"]), first, second)
    b.output(b.layer_norm(b.op("Add", b.linear(mixed, 32, HIDDEN), x), HIDDEN))
