"""What a file claims of shapes, and what it is fed: names that two inputs share, declared sizes of what is inside."""

from __future__ import annotations

from .build import BOOL, FLOAT, HIDDEN, INT64, Case, Graph, Random, attend, helper, np, onnx, spelled, words
from .rearranged import finish
from .weights import _layer

M, I = "attention_mask", "ids"  # noqa: E741
_PAIRS = (
    ((2, 5), (2, 5)), ((2, 5), (1, 5)), ((2, 5), (2, 1)), ((2, 5), (1, 1)), ((1, 5), (3, 5)), ((3, 1), (3, 4)),
    ((1, 1), (2, 6)), ((5, 2), (2, 5)), ((4, 3), (3, 4)), ((2, 6), (3, 4)), ((2, 5), (2, 4)), ((2, 4), (2, 5)),
)  # fmt: skip


def _fed(b: Graph, odd: str | None = None, one: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Inputs of B, S; one of them, `odd` or the last, of sizes of its own. ONNX Runtime does not compare names."""
    random = np.random.default_rng(11)
    odd = odd or b.inputs[-1].name
    more = {}
    for sizes, others in _PAIRS:
        given = {}
        for value in b.inputs:
            dims = value.type.tensor_type.shape.dim
            own = others if value.name == odd else sizes
            shape = [d.dim_value or own[min(axis, 1)] for axis, d in enumerate(dims)]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            if dtype.kind == "f":
                array = random.standard_normal(shape)
            elif value.name == I:
                array = random.integers(0, 97, shape)
            else:
                array = random.integers(0, 2, shape)
                array[:, 0] = 1
            given[value.name] = np.asarray(array).astype(dtype)
        more[f"{sizes} and {others}"] = given
    return more


def _mask_of_other_sizes(r: Random) -> Case:
    """Ids and mask [B, S] by one pair of names, fed with a mask of one row, of one key, or of another length."""
    b = Graph(r)
    names = r.choice([("B", "S"), ("B", "S"), (None, None), ("batch", None), (None, "S")])
    ids, mask = b.ids(I, names), b.ids(M, names)
    b.output(attend(b, words(b, ids), spelled(r, parts={"mask": b.additive(b.keys(b.cast(mask, BOOL)))})))
    return Case(b.model(), count=4 if None not in names else 0, more=_fed(b, r.choice([I, M])))


def _embeddings_of_other_sizes(r: Random) -> Case:
    """Ids, token types and positions by one pair of names, one of which broadcasts."""
    b = Graph(r)
    ids, types = b.ids(), b.ids("token_type_ids")
    rows = words(b, ids)
    kinds = b.op("Gather", b.weight(2, HIDDEN), types, axis=0)
    places = b.ids("position_ids") if r.random() < 0.5 else b.unsqueeze(b.places(r.choice([ids, types])), 0)
    places = b.op("Gather", b.weight(80, HIDDEN), places, axis=0)
    terms = r.sample([rows, kinds, places], 3)
    b.output(b.layer_norm(b.op("Add", b.op("Add", *terms[:2]), terms[2]), HIDDEN))
    return Case(b.model(), count=4, more=_fed(b, r.choice([v.name for v in b.inputs])))


def _residual_of_other_sizes(r: Random) -> Case:
    """x and y [B, S, H] by the same names, of which one broadcasts."""
    b = Graph(r)
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    how = r.randrange(3)
    if how == 0:
        finish(b, x, y)
    elif how == 1:
        total = r.sample([b.linear(x, HIDDEN, HIDDEN), y], 2)
        b.output(b.layer_norm(b.op("Add", *total), HIDDEN))
    else:
        wide = b.gelu(b.linear(y, HIDDEN, 32))
        b.output(b.layer_norm(b.op("Add", b.linear(wide, 32, HIDDEN), x), HIDDEN))
    return Case(b.model(), count=4, more=_fed(b, r.choice(["x", "y"])))


def _whole_model(r: Random) -> Case:
    """A model of ids and mask, with embeddings, attention, feed-forward and pooling, fed with a mask of other sizes."""
    b, _ = _layer(r)
    y = b.outputs[-1].name
    if r.random() < 0.6:
        numbers = b.unsqueeze(b.cast(M, FLOAT), 2)
        total = b.op("ReduceSum", b.op("Mul", y, numbers), b.ints([1]), keepdims=0)
        b.output(b.op("Div", total, b.op("Max", b.op("ReduceSum", numbers, b.ints([1]), keepdims=0), b.const(1e-9))))
    return Case(b.model(), count=4, more=_fed(b, r.choice([I, M])))


def _one_name_for_two_axes(r: Random) -> Case:
    """Batch and length of one name, or of each other's."""
    b = Graph(r)
    shapes = r.choice(
        [(("N", "N"), ("N", "N")), (("B", "S"), ("S", "B")), (("N", "N"), ("B", "S")), (("B", "S"), ("B", "B"))]
    )
    ids, mask = b.ids(I, shapes[0]), b.ids(M, shapes[1])
    x = words(b, ids)
    visible = b.cast(mask, BOOL)
    if r.random() < 0.3:
        visible = b.op("Transpose", visible, perm=[1, 0])
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(b.keys(visible))})))
    return Case(b.model(), count=0, more=_fed(b, r.choice([I, M])))


_CLAIMS = (
    ("B", "S", HIDDEN), (1, "S", HIDDEN), ("B", 1, HIDDEN), (2, 5, HIDDEN), ("S", "B", HIDDEN), ("B", "S", "H"),
    ("S", HIDDEN),
)  # fmt: skip


def _claimed_inside(r: Random) -> Case:
    """A tensor that no inference follows, or any does, declared as x's shape, and of another at some sizes."""
    b = Graph(r, r.choice([17, 18, 20]))
    x = b.input("x", ("B", "S", HIDDEN))
    made = r.choice([
        lambda: b.op("Gather", x, b.op("Squeeze", b.op("NonZero", b.places(x)), b.ints([0])), axis=1),
        lambda: b.op("Compress", x, b.op("Less", b.places(x), b.ints(r.choice([1, 4, 100]))), axis=1),
        lambda: b.op("Slice", x, b.ints([-r.choice([1, 3])]), b.ints([1 << 60]), b.ints([1])),
        lambda: b.op("Reshape", x, b.input("shape", (3,), np.int64)),
        lambda: b.op("Slice", x, b.ints([0]), b.op("Min", b.size(x, 1), b.ints([2])), b.ints([r.choice([0, 1])])),
        lambda: b.op("Identity", x),
    ])()  # fmt: skip
    finish(b, *r.sample([x, made], 2))
    has_shape = any(v.name == "shape" for v in b.inputs)
    case = Case(b.model(), count=0, more=_fed(b, "x") if not has_shape else {})
    for name in (
        [made]
        if r.random() < 0.7
        else [made, r.choice([n for n in b.nodes if n.op_type == "Add"] or b.nodes).output[0]]
    ):
        value = helper.make_tensor_value_info(name, FLOAT, r.choice(_CLAIMS))
        case.model.graph.value_info.append(value)
    if has_shape:
        random = np.random.default_rng(2)
        for sizes in ([2, 5, 16], [1, 5, 16], [2, 1, 16], [5, 2, 16], [1, 10, 16]):
            for batch, length in ((2, 5), (1, 10)):
                if np.prod(sizes) == batch * length * HIDDEN:
                    given = {"x": random.standard_normal((batch, length, HIDDEN)).astype(np.float32)}
                    if any(v.name == M for v in b.inputs):
                        given[M] = np.ones((batch, length), np.int64)
                    case.more[f"{batch}x{length} {sizes}"] = given | {"shape": np.array(sizes)}
    case.runs = False
    return case


def _claimed_sizes(r: Random) -> Case:
    """Sizes or numbers declared of shape arithmetic and masks: as many numbers as are not there, constant axes."""
    b, model = _layer(r)
    nodes = [
        n
        for n in model.graph.node
        if n.op_type in ("Shape", "Concat", "Range", "Unsqueeze", "Cast", "Gather", "Reshape", "Transpose")
    ]
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    for node in r.sample(nodes, min(len(nodes), r.choice([1, 3, 8]))):
        element = types.get(node.output[0], INT64)
        shape = r.choice(
            [
                [2],
                [7],
                [1, 7],
                [2, 1, 1, 7],
                ["B", "S", HIDDEN],
                [2, 7, HIDDEN],
                [],
                ["B", 4, "S", 4],
                ["S"],
                [1, 1, 1, 1],
            ]
        )
        model.graph.value_info.append(helper.make_tensor_value_info(node.output[0], element, shape))
    del b
    return Case(model, count=8, runs=False)


def _claimed_outputs(r: Random) -> Case:
    """Outputs declared of fixed sizes that hold for some inputs alone, or of no shape."""
    b, model = _layer(r)
    value = model.graph.output[0]
    shape = r.choice(
        [None, ["B", "S", HIDDEN], [2, 7, HIDDEN], ["S", "B", HIDDEN], ["?", "?", "?"], [None, None, None]]
    )
    value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, shape))
    del b
    return Case(model, count=8, runs=False)


RECIPES = (
    _mask_of_other_sizes, _mask_of_other_sizes, _embeddings_of_other_sizes, _residual_of_other_sizes, _whole_model,
    _one_name_for_two_axes, _claimed_inside, _claimed_inside, _claimed_sizes, _claimed_outputs,
)  # fmt: skip
