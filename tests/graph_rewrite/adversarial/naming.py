"""Names that stand for things elsewhere: nodes without any, axes called like places, tensors called like ours."""

from __future__ import annotations

from .build import BOOL, HIDDEN, INT64, Case, Graph, Random, attend, attention_of, helper, np, onnx, spelled, words
from .padded import POOLED, TOKENS
from .padding import Model
from .weights import _layer

M, I = "attention_mask", "ids"  # noqa: E741


def _ones(b: Graph, *sizes: str) -> str:
    shape = b.op("Concat", *sizes, axis=0)
    return b.op("ConstantOfShape", shape, value=helper.make_tensor("value", INT64, [1], [1]))


def _unnamed(model: onnx.ModelProto, *ops: str) -> onnx.ModelProto:
    for node in model.graph.node:
        if not ops or node.op_type in ops:
            node.name = ""
    return model


def _sums(b: Graph, x: str, axis: int) -> str:
    """A CumSum along an axis, from either end, with or without the element itself."""
    attributes = {name: 1 for name in ("reverse", "exclusive") if b.r.random() < 0.5}
    return b.op("CumSum", x, b.ints(axis), **attributes)


def _running_numbers(r: Random) -> Case:
    """Two CumSums without names that differ in direction, first number or axis, compared."""

    def make(b: Graph) -> str:
        square = _ones(b, b.size(I, 1), b.size(I, 1))
        first, second = (_sums(b, square, r.choice([0, 1])) for _ in range(2))
        holds = b.op(r.choice(["Equal", "LessOrEqual", "Less", "GreaterOrEqual"]), first, second)
        visible = b.keys(b.cast(M, BOOL))
        return b.op(r.choice(["And", "Or"]), visible, b.unsqueeze(holds, 0, 1))

    case = attention_of(r, make, longest=24)
    _unnamed(case.model, *r.choice([("CumSum",), ()]))
    return case


def _sums_of_sums(r: Random) -> Case:
    """A CumSum of a CumSum, of ones or of a diagonal, compared with what it would be of ones."""

    def make(b: Graph) -> str:
        places = b.places(I)
        q, k = b.unsqueeze(places, 1), b.unsqueeze(places, 0)
        below = b.op(r.choice(["Equal", "Equal", "LessOrEqual", "GreaterOrEqual"]), q, k)
        square = r.choice([lambda: b.cast(below, INT64), lambda: _ones(b, b.size(I, 1), b.size(I, 1))])()
        axes = r.choice([(1, 0), (0, 1), (1, 1), (0, 0)])
        total = _sums(b, _sums(b, square, axes[0]), axes[1])
        one = b.ints(1)
        other = r.choice([
            lambda: b.op("Mul", b.op("Add", q, one), b.op("Add", k, one)), lambda: b.op("Add", k, one),
            lambda: b.op("Add", q, one), lambda: b.op("Mul", q, k), lambda: one,
        ])()  # fmt: skip
        holds = b.op(r.choice(["Equal", "LessOrEqual", "GreaterOrEqual"]), total, other)
        return b.op(r.choice(["And", "Or"]), b.keys(b.cast(M, BOOL)), b.unsqueeze(holds, 0, 1))

    case = attention_of(r, make, longest=16)
    _unnamed(case.model, *r.choice([("CumSum",), ()]))
    return case


def _running_positions(r: Random) -> Case:
    """Positions and token types, each by a CumSum without a name, from either end."""
    b = Graph(r)
    ids = b.ids()
    ones = _ones(b, b.size(ids, 0), b.size(ids, 1))
    places = b.op("Add", _sums(b, ones, 1), b.ints(r.choice([0, -1])))
    kinds = b.op("Sub", _sums(b, ones, 1), r.choice([places, b.op("Add", places, b.ints(1))]))
    total = b.op("Add", words(b, ids), b.op("Gather", b.weight(80, HIDDEN), places, axis=0))
    total = b.op("Add", total, b.op("Gather", b.weight(2, HIDDEN), b.op("Clip", kinds, b.ints(0), b.ints(1)), axis=0))
    b.output(b.layer_norm(total, HIDDEN))
    case = Case(_unnamed(b.model()), count=8, longest=40)
    case.runs = False
    return case


_PLACES = ("k<S", "q<S", "b<B", "h<4", "q<k", "i0<S", "along <S", "min(4, S)", "min(S, 4)")


def _axes_like_places(r: Random) -> Case:
    """An axis of an input has the name that a proof may give to a place: masked by its size, which is its own."""
    b = Graph(r)
    ids, _ = b.ids(), b.ids(M)
    extra = b.input("extra", (r.choice(_PLACES),), np.float32)
    n = b.op("Squeeze", b.op("Shape", extra), b.ints([0]))
    q, k = b.grid(ids)
    other = b.op("Add", r.choice([q, k, k, n]), b.ints(r.choice([0, 0, 1])))
    holds = b.op(r.choice(["Equal", "LessOrEqual", "GreaterOrEqual", "Less"]), *r.sample([other, n], 2))
    visible = b.op("And" if r.random() < 0.6 else "Or", b.keys(b.cast(M, BOOL)), holds)
    b.output(attend(b, words(b, ids), spelled(r, parts={"mask": b.additive(visible)})))
    random = np.random.default_rng(3)
    more = {}
    for batch, length, size in ((1, 1, 1), (2, 5, 5), (2, 5, 3), (3, 4, 1), (1, 7, 9), (2, 8, 0)):
        mask = np.maximum(random.integers(0, 2, (batch, length)), np.arange(length) == 0)
        given = {I: random.integers(0, 97, (batch, length)), M: mask, "extra": np.zeros(size, np.float32)}
        more[f"{batch}x{length}, {size}"] = given
    return Case(b.model(), count=0, more=more)


def _axes_like_numbers(r: Random) -> Case:
    """Axes that are named like numbers, products, sums, or words of Python and of SymPy."""
    b = Graph(r)
    names = [
        ("B", "1"), ("1", "S"), ("B", "16"), ("B", "B*S"), ("B", "2*B"), ("N", "Min(1, N)"), ("B", "S + 1"), ("S", "E"),
        ("pi", "I"), ("B", "None"), ("lambda", "if"), ("B", "axis_1"), ("axis_1", "axis_2"), ("k", "q"), ("B", "b"),
        ("unnamed_axis_0", "unnamed_axis_1"), ("B", "S<"), ("'", '"'), ("B", " "), ("\n", "S"), ("ü", "é"), ("0", "1"),
    ]  # fmt: skip
    batch, length = r.choice(names)
    x, y = b.input("x", (batch, length, HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    mask = b.ids(M, (batch, length))
    context = attend(b, x, spelled(r, mask=r.choice(["where", "none"])), mask)
    b.output(b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), r.choice([x, x, y])), HIDDEN))
    random = np.random.default_rng(3)
    more = {}
    for p, s, p2, s2 in (
        (1, 1, 1, 1),
        (2, 5, 2, 5),
        (2, 5, 1, 5),
        (2, 5, 2, 1),
        (3, 3, 3, 3),
        (4, 2, 1, 1),
        (1, 16, 1, 1),
    ):
        mask = np.maximum(random.integers(0, 2, (p, s)), np.arange(s) == 0)
        floats = {"x": random.standard_normal((p, s, HIDDEN)), "y": random.standard_normal((p2, s2, HIDDEN))}
        more[f"{p}x{s} {p2}x{s2}"] = {n: a.astype(np.float32) for n, a in floats.items()} | {M: mask}
    for given in more.values():
        for name in list(given):
            if all(v.name != name for v in b.inputs):
                del given[name]
    case = Case(b.model(), count=0, more=more)
    case.runs = False
    return case


def _names_of_nodes(r: Random) -> Case:
    """Nodes without names, of one name for all, or of each other's tensors' names."""
    _, model = _layer(r)
    how = r.randrange(4)
    outputs = [n.output[0] for n in model.graph.node]
    r.shuffle(outputs)
    for number, node in enumerate(model.graph.node):
        node.name = {0: "", 1: "node", 2: outputs[number], 3: "" if number % 2 else str(number)}[how]
    return Case(model, count=4, runs=how != 1)


_OURS = (
    "cu_seqlens", "max_seqlen", "tokens", "sequences", "longest", "row_count", "token_index", "cu_seqlens_of_mask",
    "ids_padded", "attention_mask_padded", "places", "sequence_ids", "columns", "mask_padded",
)  # fmt: skip


def _of_an_interface(r: Random) -> Case:
    """Outputs, weights and tensors inside that are called like what packing and ragged batches add."""
    m = Model(r, of_ids=False)
    case = m.case((m.mean(m.weight()), POOLED), *([(m.x, TOKENS)] if r.random() < 0.5 else []))
    graph = case.model.graph
    outputs = [v.name for v in graph.output]
    weights = [t.name for t in graph.initializer]
    inside = [n.output[0] for n in graph.node if n.output[0] not in outputs]
    chosen = r.choice([outputs, weights, inside, [*outputs, *weights, *inside]])
    names = r.sample(_OURS, min(len(chosen), r.choice([1, 2, 6])))
    names[0] = r.choice(["cu_seqlens", "max_seqlen"]) if not {"cu_seqlens", "max_seqlen"} & set(names) else names[0]
    mapping = dict(zip(r.sample(chosen, len(names)), names, strict=True))
    for node in graph.node:
        for given in (node.input, node.output):
            given[:] = [mapping.get(name, name) for name in given]
    for value in (*graph.output, *graph.initializer, *graph.value_info):
        value.name = mapping.get(value.name, value.name)
    if r.random() < 0.3:  # and axes
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                dim.dim_param = {"B": "sequences", "S": "longest"}.get(dim.dim_param, dim.dim_param)
    return case


RECIPES = (
    _running_numbers, _running_numbers, _sums_of_sums, _sums_of_sums, _running_positions, _axes_like_places,
    _axes_like_places, _axes_like_numbers, _names_of_nodes, _of_an_interface, _of_an_interface,
)  # fmt: skip
