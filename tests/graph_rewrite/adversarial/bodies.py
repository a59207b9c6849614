"""Branches and loops beside a layer, and nodes that ask only for the shape of what a layer computes."""

from __future__ import annotations

import numpy as np

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT64, SIZE, Case, Graph, Random, attend, helper, onnx, recipe, spelled

M = "attention_mask"


def _body(nodes: list[onnx.NodeProto], output: str, element: int = FLOAT) -> onnx.GraphProto:
    return helper.make_graph(nodes, f"of_{output}", [], [helper.make_tensor_value_info(output, element, None)])


def _if(b: Graph, condition: str, then: list[onnx.NodeProto], other: list[onnx.NodeProto], element: int = FLOAT) -> str:
    """The last output of `then` or of `other`."""
    return b.op(
        "If", condition, then_branch=_body(then, then[-1].output[0], element),
        else_branch=_body(other, other[-1].output[0], element),
    )  # fmt: skip


def _longer(b: Graph, of: str, n: int) -> str:
    return b.op("Greater", b.length(of), b.ints(n))


def _first_row(b: Graph, x: str, name: str) -> onnx.NodeProto:
    return helper.make_node("Slice", [x, b.ints([0]), b.ints([1]), b.ints([0])], [name])


def _identity(x: str, name: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [x], [name])


@recipe(count=10)
def _residual_of_a_branch(b: Graph, r: Random) -> None:
    """The residual is x, or its first row, which is broadcast."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    branches = [[_identity(y, "whole")], [_first_row(b, y, "row")]]
    r.shuffle(branches)
    residual = _if(b, _longer(b, x, r.choice([3, 9, 20])), *branches)
    b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), residual), HIDDEN))


@recipe(count=10)
def _hidden_states_of_a_branch(b: Graph, r: Random) -> None:
    """x is longer in one branch: its mask has another length, or is broadcast."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    cut = helper.make_node("Slice", [x, b.ints([0]), b.ints([1]), b.ints([r.choice([0, 1])])], ["cut"])
    branches = [[_identity(x, "whole")], [cut]]
    r.shuffle(branches)
    chosen = _if(b, _longer(b, x, r.choice([3, 9])), *branches)
    b.output(attend(b, chosen, spelled(r, mask=r.choice(["where", "none"])), mask))


@recipe(count=10)
def _mask_of_a_branch(b: Graph, r: Random) -> None:
    """The mask is another tensor in a branch: of one row, of ones, of the ids."""
    ids, mask = b.ids(), b.ids(M)
    x = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    how = r.randrange(3)
    if how == 0:
        other = [_first_row(b, mask, "other")]
    elif how == 1:
        other = [helper.make_node("Min", [ids, b.ints(1)], ["other"])]
    else:
        other = [helper.make_node("Mul", [mask, b.ints(r.choice([0, 1]))], ["other"])]
    chosen = _if(b, _longer(b, ids, r.choice([3, 9])), [_identity(mask, "given")], other, INT64)
    visible = b.cast(b.keys(chosen), BOOL)
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))


@recipe(count=8, longest=70)
def _ids_of_a_branch(b: Graph, r: Random) -> None:
    """Ids, or positions, chosen by a condition."""
    ids = b.ids()
    rows = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    places = b.unsqueeze(b.places(ids), 0)
    other = r.choice([
        lambda: [helper.make_node("Add", [places, b.ints(1)], ["moved"])],
        lambda: [helper.make_node("Mul", [places, b.ints(0)], ["moved"])],
        lambda: [_identity(places, "moved")],
    ])()  # fmt: skip
    chosen = _if(b, _longer(b, ids, r.choice([3, 9, 30])), [_identity(places, "usual")], other, INT64)
    b.output(b.layer_norm(b.op("Add", rows, b.op("Gather", b.weight(80, HIDDEN), chosen, axis=0)), HIDDEN))


def _loop(b: Graph, x: str, times: str, nodes: list[onnx.NodeProto], output: str, element: int = FLOAT) -> str:
    """`nodes` make `output` of "carried", as many times."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["go"], ["go_on"])], "loop",
        [info("step", INT64, []), info("go", BOOL, []), info("carried", element, None)],
        [info("go_on", BOOL, []), info(output, element, None)],
    )  # fmt: skip
    return b.op("Loop", times, b.const(np.asarray(True), dtype=bool), x, body=body)


@recipe(count=8)
def _grown_by_a_loop(b: Graph, r: Random) -> None:
    """A Loop that appends tokens or rows to x, then a layer over them, with a part of x for a residual."""
    x = b.input("x", ("B", "S", HIDDEN))
    axis = r.choice([0, 1])
    first = helper.make_node("Slice", ["carried", b.ints([0]), b.ints([1]), b.ints([axis])], ["first"])
    grown = helper.make_node("Concat", ["carried", "first"], ["grown"], axis=axis)
    made = _loop(b, x, b.ints(r.choice([0, 1, 2])), [first, grown], "grown")
    if r.random() < 0.5:
        part = b.op("Slice", x, b.ints([0]), b.ints([1]), b.ints([axis]))
        b.output(b.layer_norm(b.op("Add", b.linear(made, HIDDEN, HIDDEN), r.choice([part, made])), HIDDEN))
    else:
        b.output(attend(b, made, spelled(r, mask="none"), None))


@recipe(count=8)
def _changed_by_a_loop(b: Graph, r: Random) -> None:
    """A mask, or x, that each turn of a Loop changes, of the same shape throughout."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    if r.random() < 0.5:
        turned = helper.make_node("Sub", [b.ints(1), "carried"], ["turned"])
        mask = _loop(b, mask, b.ints(r.choice([0, 1, 2])), [turned], "turned", INT64)
    else:
        turned = helper.make_node("Mul", ["carried", b.const(0.5)], ["turned"])
        x = _loop(b, x, b.length(mask) if r.random() < 0.3 else b.ints(2), [turned], "turned")
    visible = b.cast(b.keys(mask), BOOL)
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))


@recipe(count=6)
def _scanned(b: Graph, r: Random) -> None:
    """x is a Scan's output along the sequence: a running sum, of another order of axes."""
    x = b.input("x", ("B", "S", HIDDEN))
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["sum_in", "row"], ["sum_out"]), _identity("sum_out", "scanned")],
        "scan", [info("sum_in", FLOAT, None), info("row", FLOAT, None)],
        [info("sum_out", FLOAT, None), info("scanned", FLOAT, None)],
    )  # fmt: skip
    start = b.op("ReduceSum", x, b.ints([1]), keepdims=0)
    axes = r.choice([{"scan_output_axes": [1]}, {}])
    _, rows = b.op("Scan", start, x, body=body, num_scan_inputs=1, scan_input_axes=[1], outputs=2, **axes)
    residual = r.choice([rows, x]) if axes else rows
    b.output(b.layer_norm(b.op("Add", b.linear(rows, HIDDEN, HIDDEN), residual), HIDDEN))


@recipe(count=8)
def _layer_in_a_branch(b: Graph, r: Random) -> None:
    """A branch has a layer of its own, with weights of the outer graph and names that the outer graph has, too."""
    x = b.input("x", ("B", "S", HIDDEN))
    weight = b.weight(HIDDEN, HIDDEN)
    y = b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN, weight=weight), x), HIDDEN)
    inner = [
        helper.make_node("MatMul", [y, weight], ["inner_product"]),
        helper.make_node("Add", ["inner_product", y], ["inner_sum"]),
    ]
    chosen = _if(b, _longer(b, x, r.choice([3, 9])), inner, [_identity(r.choice([x, y]), "same")])
    b.output(b.layer_norm(b.op("Add", b.linear(chosen, HIDDEN, HIDDEN), y), HIDDEN))


@recipe(count=8)
def _body_reads_the_inside(b: Graph, r: Random) -> None:
    """A branch reads, or asks for the shape of, a product, heads, scores or weights of a layer."""
    x = b.input("x", ("B", "S", HIDDEN))
    context = attend(b, x, spelled(r, mask="none"))
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    inside = r.choice([n for n in b.nodes if n.op_type in ("MatMul", "Softmax", "Transpose", "Reshape", "Add")]).output[
        0
    ]
    if r.random() < 0.5:
        then = [
            helper.make_node("Shape", [inside], ["sizes"]),
            helper.make_node("Cast", ["sizes"], ["floats"], to=FLOAT),
        ]
        then.append(helper.make_node("ReduceSum", ["floats"], ["sum"], keepdims=0))
    else:
        then = [helper.make_node("ReduceSum", [inside], ["sum"], keepdims=0)]
    other = [helper.make_node("Constant", [], ["nothing"], value_float=1.0)]
    b.output(b.op("Add", y, _if(b, _longer(b, x, r.choice([3, 9])), then, other)))


@recipe(opset=(15, 17, 18, 21), count=8)
def _shape_of_the_inside(b: Graph, r: Random) -> None:
    """Sizes are read off what fusion takes away: products, sums, heads, scores, with start and end."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    context = attend(b, x, spelled(r, mask=r.choice(["where", "none"])), mask)
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    z = b.layer_norm(b.op("Add", b.linear(b.gelu(b.linear(y, HIDDEN, 32)), 32, HIDDEN), y), HIDDEN)
    inside = r.choice(
        [n for n in b.nodes if n.op_type in ("MatMul", "Softmax", "Transpose", "Erf", "Add", "Sub")]
    ).output[0]
    attributes = r.choice(
        [{}, {}, {"start": 1}, {"end": 2}, {"start": -1}, {"start": -2, "end": -1}, {"start": 1, "end": 1}]
    )
    sizes = b.op("Shape", inside, **attributes) if r.random() < 0.8 else b.op("Size", inside)
    b.output(b.op("Mul", z, b.op("ReduceSum", b.cast(sizes, FLOAT), keepdims=0)))


@recipe(opset=(15, 17, 18, 21), count=8, longest=70)
def _filled_by_shape(b: Graph, r: Random) -> None:
    """A tensor like what fusion takes away, made by its shape: of zeros, expanded, at random of nothing."""
    ids, types = b.ids(), b.ids("types")
    rows = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    kinds = b.op("Gather", b.weight(2, HIDDEN), b.op("Min", b.op("Abs", types), b.ints(1)), axis=0)
    places = b.op("Gather", b.weight(80, HIDDEN), b.unsqueeze(b.places(ids), 0), axis=0)
    terms = [rows, kinds, places]
    r.shuffle(terms)
    first = b.op("Add", *terms[:2])
    total = b.op("Add", first, terms[2])
    y = b.layer_norm(total, HIDDEN)
    shape = b.op("Shape", r.choice([rows, kinds, places, first, total]))
    like = r.choice([
        lambda: b.op("ConstantOfShape", shape, value=helper.make_tensor("v", FLOAT, [1], [0.5])),
        lambda: b.op("Expand", b.weight(HIDDEN), shape),
        lambda: b.op("Expand", b.cast(b.op("ReduceProd", shape, keepdims=0), FLOAT), shape),
    ])()  # fmt: skip
    b.output(b.op("Add", y, like))


@recipe(count=10)
def _reshaped_by_another(b: Graph, r: Random) -> None:
    """Heads are merged, or a context is reshaped, to the sizes of another tensor."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", r.choice([("B", "S", HIDDEN), ("S", "B", HIDDEN)]))
    q, k, v = (
        b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.ints([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3])
        for _ in "qkv"
    )
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2])), b.const(0.5))
    context = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    b.output(b.op("Reshape", context, b.op("Shape", r.choice([y, y, x]))))


def _shape_given(r: Random) -> Case:
    """A Reshape in the layer takes its shape from an input of the model."""
    b = Graph(r)
    x = b.input("x", ("B", 6, HIDDEN))
    shape = b.input("shape", (3,), np.int64)
    given = b.op("Reshape", x, shape)
    b.output(b.layer_norm(b.op("Add", b.linear(given, HIDDEN, HIDDEN), r.choice([given, x])), HIDDEN))
    more = {}
    for batch, sizes in ((2, [2, 6, 16]), (2, [1, 12, 16]), (2, [12, 1, 16]), (1, [1, 6, 16]), (2, [6, 2, 16])):
        values = np.random.default_rng(batch).standard_normal((batch, 6, HIDDEN)).astype(np.float32)
        more[f"{batch} {sizes}"] = {"x": values, "shape": np.array(sizes, np.int64)}
    return Case(b.model(), count=0, more=more)
