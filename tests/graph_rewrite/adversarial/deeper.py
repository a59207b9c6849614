"""Sizes that may be 0, names inside of bodies, conversions around bodies, masks of numbers that lift keys."""

from __future__ import annotations

import numpy as np

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT64, SIZE, Case, Graph, Random, attend, helper, onnx, recipe, spelled
from .weights import _layer

M = "attention_mask"


def _attention(r: Random, b: Graph, x: str, visible: str) -> str:
    return attend(b, x, spelled(r, parts={"mask": b.additive(visible)}))


def _more(random: np.random.Generator, shapes: list[tuple[int, int, int]], other: str, width: int = 4) -> dict:
    """Feeds of x and a mask, and of another input of p places."""
    feeds = {}
    for batch, length, p in shapes:
        mask = random.integers(0, 2, (batch, length))
        mask[:, :1] = 1
        feeds[f"{batch}x{length} with {p}"] = {
            "x": random.standard_normal((batch, length, HIDDEN)).astype(np.float32), M: mask,
            other: random.standard_normal((batch, p, width)).astype(np.float32),
        }  # fmt: skip
    return feeds


def _no_past(r: Random) -> Case:
    """Causal, or without a mask, where another input has no places: a length of 0 that is no length of x."""
    b = Graph(r, 17)
    x, mask, past = b.input("x", ("B", "S", HIDDEN)), b.ids(M), b.input("past", ("B", "P", 4))
    q, k = b.grid(x)
    causal = b.op("LessOrEqual", k, q)
    empty = r.choice([
        lambda: b.op("Equal", b.length(past), b.ints(0)),
        lambda: b.op("Less", b.length(past), b.ints(1)),
        lambda: b.op("Not", b.cast(b.length(past), BOOL)),
        lambda: b.op("Equal", b.op("Mul", b.length(past), b.length(x)), b.ints(0)),
        lambda: b.op("Equal", b.op("Size", past), b.ints(0)),
        lambda: b.op("Equal", b.op("Min", b.length(past), b.ints(1)), b.ints(0)),
    ])()  # fmt: skip
    visible = b.op("Or", b.op("Not", empty), causal)
    if r.random() < 0.5:
        visible = b.op("And", visible, b.cast(b.keys(mask), BOOL))
    b.output(_attention(r, b, x, visible))
    shapes = [(2, 5, 0), (2, 5, 3), (1, 4, 1), (3, 1, 0), (1, 7, 0)]
    return Case(b.model(), count=0, more=_more(np.random.default_rng(0), shapes, "past"))


def _past_and_present(r: Random) -> Case:
    """Places that begin at another input's length."""
    b = Graph(r, 17)
    x, mask, past = b.input("x", ("B", "S", HIDDEN)), b.ids(M), b.input("past", ("B", "P", 4))
    q, k = b.grid(x)
    moved = b.op("Add", q, b.length(past))
    limit = r.choice([0, 1, 3])
    visible = b.op("LessOrEqual", b.op("Add", k, b.ints(limit)), moved)
    visible = b.op("Or", b.cast(b.keys(mask), BOOL), visible) if r.random() < 0.5 else visible
    b.output(_attention(r, b, x, visible))
    shapes = [(2, 5, 0), (2, 5, 3), (1, 4, 9), (1, 7, 20)]
    return Case(b.model(), count=0, more=_more(np.random.default_rng(0), shapes, "past"))


def _positions_after_a_past(r: Random) -> Case:
    """Position ids from the length of another input on, which is mostly 0."""
    b = Graph(r, 17)
    ids, past = b.ids(), b.input("past", ("B", "P", 4))
    places = b.op(r.choice(["Add", "Mul"]), b.places(ids), b.length(past))
    rows = b.op("Gather", b.weight(80, HIDDEN), b.unsqueeze(places, 0), axis=0)
    b.output(b.layer_norm(b.op("Add", b.op("Gather", b.weight(97, HIDDEN), ids, axis=0), rows), HIDDEN))
    more = {f"{p}": {"ids": np.arange(10).reshape(2, 5), "past": np.zeros((2, p, 4), np.float32)} for p in (0, 1, 2, 5)}
    return Case(b.model(), count=0, more=more)


def _names_in_bodies(r: Random) -> Case:
    """Tensors of a branch have the names that fusion would give to its own."""
    _, model = _layer(r)
    ends = (
        "qkv",
        "qkv_weight",
        "qkv_bias",
        "qkv_bias_values",
        "cast",
        "shape",
        "transposed",
        "q_by_head",
        "equal",
        "max",
    )
    taken = [f"{t}_{e}" for n in model.graph.node for t in (*n.output, *n.input) if t for e in ends]
    taken = list(dict.fromkeys(taken))
    nodes = [helper.make_node("Constant", [], [name], value_float=1.0) for name in taken]
    nodes.append(helper.make_node("Sum", taken, ["then_sum"]))
    then = helper.make_graph(nodes, "then", [], [helper.make_tensor_value_info("then_sum", FLOAT, [])])
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["else_sum"], value_float=1.0)],
        "else", [], [helper.make_tensor_value_info("else_sum", FLOAT, [])],
    )  # fmt: skip
    model.graph.node.extend([
        helper.make_node("Shape", ["ids"], ["if_shape"]),
        helper.make_node("ReduceMax", ["if_shape"], ["if_longest"], keepdims=0),
        helper.make_node("Constant", [], ["if_limit"], value_int=9),
        helper.make_node("Greater", ["if_longest", "if_limit"], ["if_longer"]),
        helper.make_node("If", ["if_longer"], ["if_sum"], then_branch=then, else_branch=other),
    ])  # fmt: skip
    model.graph.output.append(helper.make_tensor_value_info("if_sum", FLOAT, None))
    return Case(model, count=4)


@recipe(opset=(17,), dtype="fp16", count=8, longest=20)
def _converted_around(b: Graph, r: Random) -> None:
    """Converted to float16 beside branches, loops, functions, sequences and operators that know floats alone."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    context = attend(b, x, spelled(r, mask="where"), mask)
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    info = helper.make_tensor_value_info
    longer = b.op("Greater", b.length(x), b.ints(5))
    how = r.randrange(6)
    if how == 0:
        weight = b.weight(HIDDEN, HIDDEN)
        then = helper.make_graph([helper.make_node("MatMul", [y, weight], ["t"])], "t", [], [info("t", FLOAT, None)])
        other = helper.make_graph([helper.make_node("Identity", [y], ["e"])], "e", [], [info("e", FLOAT, None)])
        b.output(b.op("If", longer, then_branch=then, else_branch=other))
    elif how == 1:
        nodes = [helper.make_node("Add", ["carried", y], ["grown"]), helper.make_node("Identity", ["go"], ["on"])]
        body = helper.make_graph(
            nodes, "loop", [info("i", INT64, []), info("go", BOOL, []), info("carried", FLOAT, None)],
            [info("on", BOOL, []), info("grown", FLOAT, None)],
        )  # fmt: skip
        b.output(b.op("Loop", b.ints(2), b.const(np.asarray(True), dtype=bool), x, body=body))
    elif how == 2:
        pieces = b.op("SplitToSequence", y, axis=1, keepdims=1)
        b.output(b.op("ConcatFromSequence", pieces, axis=1))
    elif how == 3:
        chosen = b.op("Where", b.op("Greater", y, b.const(-100.0)), y, b.op("CastLike", b.ints(1), y))
        b.output(b.op("Clip", chosen, b.const(-2.0), b.const(2.0)))
    elif how == 4:
        values, _ = b.op("TopK", y, b.ints([3]), outputs=2, axis=-1)
        b.output(b.op("Resize", values, "", b.const([1.0, 1.0, 2.0]), mode="nearest"))
    else:
        b.output(b.op("Einsum", y, b.weight(HIDDEN, HIDDEN), equation="bsh,hk->bsk"))


def _attention_of_opset_24(r: Random) -> Case:
    """Attention nodes with masks of other ranks and lengths, and with numbers of keys."""
    opset = r.choice([23, 24])
    b = Graph(r, 21)
    x = b.input("x", ("B", "S", HIDDEN))
    q, k, v = (
        b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.ints([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3])
        for _ in "qkv"
    )
    mask = b.ids(M)
    visible = r.choice([
        lambda: b.cast(b.keys(mask), BOOL),
        lambda: b.cast(b.unsqueeze(mask, 1), BOOL),
        lambda: b.cast(mask, BOOL),
        lambda: b.op("Where", b.cast(b.keys(mask), BOOL), b.const(0.0), b.const(-1e4)),
    ])()  # fmt: skip
    inputs = [q, k, v, visible]
    if opset == 24 and r.random() < 0.4:
        inputs += ["", "", b.op("ReduceSum", mask, b.ints([1]), keepdims=0)]
    context = b.op("Attention", *inputs, scale=r.choice([0.5, 0.25]))
    b.output(b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.ints([0, 0, HIDDEN])))
    graph = helper.make_graph(b.nodes, "small", b.inputs, b.outputs, b.initializers)
    for value in graph.output:
        value.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * 3)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    case = Case(model, count=10, runs=False)
    if len(inputs) > 4:
        case.never = "FusedAttention"
    return case


def _other_ids(r: Random) -> Case:
    """Word ids of one or three axes, of int32, negative, or summed over pieces of a word."""
    b = Graph(r)
    how = r.randrange(4)
    if how == 0:
        ids = b.input("ids", ("B", "S", 2), np.int64)
        rows = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
        rows = b.op("ReduceSum", rows, b.ints([2]), keepdims=0)
        where = b.op("Squeeze", b.op("Slice", ids, b.ints([0]), b.ints([1]), b.ints([2])), b.ints([2]))
    elif how == 1:
        ids = b.input("ids", ("B", "S"), np.int32)
        rows, where = (
            b.op("Gather", b.weight(97, HIDDEN), b.op("Neg", b.op("Add", ids, b.ints(1, np.int32))), axis=0),
            ids,
        )
    elif how == 2:
        ids = b.input("ids", ("S",), np.int64)
        rows, where = b.unsqueeze(b.op("Gather", b.weight(97, HIDDEN), ids, axis=0), 0), b.unsqueeze(ids, 0)
    else:
        ids = b.input("ids", ("B", "S", 1), np.int64)
        where = b.op("Squeeze", ids, b.ints([2]))
        rows = b.op("Squeeze", b.op("Gather", b.weight(97, HIDDEN), ids, axis=0), b.ints([2]))
    places = b.op("Gather", b.weight(64, HIDDEN), b.unsqueeze(b.places(where), 0), axis=0)
    b.output(b.layer_norm(b.op("Add", rows, places), HIDDEN))
    random = np.random.default_rng(0)
    dims = [d.dim_value or {"B": 3, "S": 7}[d.dim_param] for d in b.inputs[0].type.tensor_type.shape.dim]
    kind = np.int32 if how == 1 else np.int64
    more = {f"{seed}": {"ids": random.integers(0, 90, dims).astype(kind)} for seed in range(3)}
    return Case(b.model(), count=0, more=more)


@recipe(count=16)
def _numbers_of_any_size(b: Graph, r: Random) -> None:
    """(1 - mask) times a number for masks of counts, lengths, differences and large numbers; and its like downwards."""
    x, mask = (
        b.input("x", ("B", "S", HIDDEN)),
        b.input(M, ("B", "S"), r.choice([np.int64, np.int32, np.uint8, np.int8])),
    )
    number = b.cast(b.keys(mask), FLOAT)
    hidden = r.choice([1e4, 1e4, 2e4, 1e5])
    way = r.randrange(5)
    if way == 0:
        number = b.op("Mul", b.op("Sub", b.const(1.0), number), b.const(-hidden))
    elif way == 1:
        number = b.op("Div", b.op("Sub", number, b.const(1.0)), b.const(1 / hidden))
    elif way == 2:
        number = b.op("Add", b.op("Mul", number, b.const(hidden)), b.const(-hidden))
    elif way == 3:
        number = b.op("Mul", number, b.const(-hidden))
    else:
        number = b.op("Neg", b.op("Mul", b.op("Add", b.op("Neg", number), b.const(1.0)), b.const(hidden)))
    b.output(attend(b, x, spelled(r, parts={"mask": number})))


@recipe(count=16)
def _in_whole_numbers(b: Graph, r: Random) -> None:
    """The difference, or all of it, in integers, which may wrap; cast to floats last."""
    kind = r.choice([np.int64, np.int32])
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.input(M, ("B", "S"), kind)
    number = b.op("Sub", b.ints(1, kind), b.keys(mask))
    if r.random() < 0.5:
        number = b.op("Mul", number, b.ints(-10000, kind))
        number = b.cast(number, FLOAT)
    else:
        number = b.op("Mul", b.cast(number, FLOAT), b.const(-10000.0))
    b.output(attend(b, x, spelled(r, parts={"mask": number})))


def _axes_in_front(r: Random) -> Case:
    """A term of embeddings, what a Where selects, an epsilon or a bias has more axes than what it is joined with."""
    b = Graph(r, 17)
    rank = r.choice([3, 4, 5])
    place = r.choice(["embeddings", "selected", "nan", "epsilon", "bias", "gelu"])

    def front(value, here: str) -> np.ndarray:
        axes = rank - np.ndim(value) if here == place else 0
        return np.reshape(value, (1,) * axes + np.shape(value))

    ids = b.ids("ids", ("B", r.choice([1, "S"])))
    b.ids(M)
    rows = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    places = b.op("Gather", b.weight(64, HIDDEN), b.unsqueeze(b.places(ids), 0), axis=0)
    total = b.op("Add", b.op("Add", rows, places), b.const(front(np.full(HIDDEN, 0.5), "embeddings")))
    x = total if place == "selected" or place == "nan" else b.layer_norm(total, HIDDEN)
    if place in ("selected", "nan"):
        x = rows
        q, k, v = (b.op("Unsqueeze", b.linear(x, HIDDEN, HIDDEN), b.ints([1])) for _ in "qkv")
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
        q_place, k_place = b.grid(ids)
        shown = b.op("GreaterOrEqual", b.op("Add", q_place, k_place), b.ints(0))
        scores = b.op("Where", shown, scores, b.const(front(np.float32(-1e9), "selected")))
        weights = b.op("Softmax", scores, axis=-1)
        weights = b.op("Where", b.op("IsNaN", weights), b.const(front(np.float32(0), "nan")), weights)
        context = b.op("MatMul", weights, v)
        b.output(
            b.op("Squeeze", context, b.ints([1]))
            if r.random() < 0.5
            else b.op("Reshape", context, b.ints([0, -1, HIDDEN]))
        )
        return Case(b.model(), count=0, more=_ids_alone(ids), runs=False)
    product = b.op(
        "Add", b.op("MatMul", x, b.weight(HIDDEN, HIDDEN)), b.const(front(b.random.standard_normal(HIDDEN), "bias"))
    )
    wide = b.op("Mul", b.op("Mul", product, b.const(front(np.float32(0.5), "gelu"))),
                b.op("Add", b.op("Erf", b.op("Div", product, b.const(np.sqrt(2)))), b.const(1.0)))  # fmt: skip
    centred = b.op("Sub", wide, b.mean(wide))
    variance = b.op("Add", b.mean(b.op("Mul", centred, centred)), b.const(front(np.float32(1e-5), "epsilon")))
    b.output(b.op("Add", b.op("Mul", b.op("Div", centred, b.op("Sqrt", variance)), b.weight(HIDDEN)), b.weight(HIDDEN)))
    return Case(b.model(), count=0, more=_ids_alone(ids), runs=False)


def _ids_alone(name: str) -> dict[str, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    shapes = ((1, 1), (3, 1), (1, 4), (2, 5))
    return {f"{p}x{s}": {name: random.integers(0, 97, (p, s)), M: np.ones((p, s), np.int64)} for p, s in shapes}
