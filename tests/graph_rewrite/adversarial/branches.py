"""Bodies of If, Loop and Scan whose results have other sizes than their names say, in a layer over them."""

from __future__ import annotations

from .bodies import _body, _if, _loop
from .build import BOOL, FLOAT, HIDDEN, INT64, Case, Graph, Random, attend, helper, np, onnx, spelled
from .rearranged import finish

M = "attention_mask"


def _node(op: str, inputs: list[str], output: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def _inputs(b: Graph) -> tuple[str, str]:
    """x [B, S, H] and z of axes of other names."""
    x = b.input("x", ("B", "S", HIDDEN))
    return x, b.input("z", b.r.choice([("B", "T", HIDDEN), ("A", "S", HIDDEN), ("A", "T", HIDDEN)]))


def _condition(b: Graph, x: str) -> str:
    """Which a size decides, or a flag."""
    r = b.r
    if r.random() < 0.3:
        return b.input("flag", (), bool)
    op = r.choice(["Greater", "Less", "Equal"])
    return b.op(op, b.op("Squeeze", b.size(x, r.choice([0, 1])), b.ints([0])), b.ints(r.choice([1, 2, 3, 5])))


def _case(b: Graph) -> Case:
    """Sizes of one and of two names, alike and different."""
    random = np.random.default_rng(5)
    more = {}
    pairs = (
        (1, 1, 1, 1),
        (2, 5, 2, 5),
        (2, 5, 2, 1),
        (2, 5, 1, 5),
        (1, 5, 3, 5),
        (3, 1, 3, 6),
        (2, 3, 1, 1),
        (4, 2, 4, 2),
    )
    for batch, length, other_batch, other_length in pairs:
        sizes = {"B": batch, "S": length, "A": other_batch, "T": other_length}
        for flag in (False, True):
            given = {}
            for value in b.inputs:
                dims = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
                dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                if dtype.kind == "b":
                    array = np.full(dims, flag)
                else:
                    array = random.integers(0, 2, dims) if dtype.kind == "i" else random.standard_normal(dims)
                if value.name == M:
                    array[:, 0] = 1
                given[value.name] = np.asarray(array).astype(dtype)
            more[f"{batch}x{length} {other_batch}x{other_length} {flag}"] = given
    case = Case(b.model(), count=0, more=more)
    case.runs = False
    return case


def _either(r: Random) -> Case:
    """x, or another input, whose axes have other names."""
    b = Graph(r)
    x, z = _inputs(b)
    branches = [[_node("Identity", [x], "one")], [_node(r.choice(["Identity", "Neg"]), [z], "other")]]
    r.shuffle(branches)
    finish(b, *r.sample([x, _if(b, _condition(b, x), *branches)], 2))
    return _case(b)


def _cut_in_a_branch(r: Random) -> Case:
    """x, or its first row or token, or of another rank."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    axis = r.choice([0, 1])
    cut = r.choice([
        lambda: [_node("Slice", [x, b.ints([0]), b.ints([1]), b.ints([axis])], "cut")],
        lambda: [_node("Slice", [x, b.ints([-2]), b.ints([1 << 60]), b.ints([axis])], "cut")],
        lambda: [_node("Gather", [x, b.ints(0)], "cut", axis=axis)],
        lambda: [_node("Transpose", [x], "cut", perm=[1, 0, 2])],
        lambda: [_node("Concat", [x, x], "cut", axis=axis)],
        lambda: [_node("Identity", [x], "cut")],
    ])()  # fmt: skip
    branches = [[_node("Identity", [x], "whole")], cut]
    r.shuffle(branches)
    finish(b, *r.sample([x, _if(b, _condition(b, x), *branches)], 2))
    return _case(b)


def _nested(r: Random) -> Case:
    """An If in a branch of an If, of three tensors."""
    b = Graph(r)
    x, z = _inputs(b)
    inner_condition = _condition(b, z)
    inner = helper.make_node(
        "If", [inner_condition], ["inner"],
        then_branch=_body([_node("Identity", [z], "deep")], "deep"),
        else_branch=_body([_node("Slice", [x, b.ints([0]), b.ints([1]), b.ints([1])], "cut")], "cut"),
    )  # fmt: skip
    branches = [[inner], [_node("Identity", [x], "whole")]]
    r.shuffle(branches)
    condition = b.op("Greater", b.length(x), b.ints(r.choice([1, 3])))
    finish(b, *r.sample([x, _if(b, condition, *branches)], 2))
    return _case(b)


def _sizes_of_a_branch(r: Random) -> Case:
    """Numbers made in a branch: a size, the number of heads, a part's end."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    n = r.choice([4, 2])
    number = _if(
        b, _condition(b, x), [_node("Identity", [b.ints([4])], "four")], [_node("Identity", [b.ints([n])], "n")], INT64
    )
    if r.random() < 0.5:
        shape = b.op("Concat", b.ints([0, 0]), number, b.ints([-1]), axis=0)
        heads = [
            b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), shape), perm=[0, 2, 1, 3]) for _ in "qkv"
        ]
        parts = dict(zip(("q_heads", "k_heads", "v_heads"), heads, strict=True))
        b.output(attend(b, x, spelled(r, mask="none", parts=parts)), shape=("B", "S", HIDDEN))
    else:
        part = b.op("Slice", x, b.ints([0]), b.op("Sub", number, b.ints([3])), b.ints([r.choice([0, 1])]))
        finish(b, x, part)
    return _case(b)


def _merged_names(r: Random) -> Case:
    """A model without anything odd but an If whose branches have axes of other names, then layers over both."""
    b = Graph(r)
    x, z = _inputs(b)
    chosen = _if(b, _condition(b, x), [_node("Tanh", [x], "one")], [_node("Sigmoid", [z], "other")])
    y = b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), x), HIDDEN)
    w = b.layer_norm(b.op("Add", b.linear(z, HIDDEN, HIDDEN), z), HIDDEN)
    both = [b.layer_norm(b.op("Add", b.linear(chosen, HIDDEN, HIDDEN), t), HIDDEN) for t in (y, w, chosen)]
    b.output(*r.sample(both, r.choice([1, 2])), *r.sample([y, w], 1))
    return _case(b)


def _one_turn(r: Random) -> Case:
    """A Loop of one turn, or of none, that cuts, joins, transposes or only passes on."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    axis = r.choice([0, 1])
    nodes = r.choice([
        lambda: [_node("Identity", ["carried"], "left")],
        lambda: [_node("Slice", ["carried", b.ints([0]), b.ints([1]), b.ints([axis])], "left")],
        lambda: [_node("Concat", ["carried", x], "left", axis=axis)],
        lambda: [_node("Transpose", ["carried"], "left", perm=[1, 0, 2])],
        lambda: [_node("ReduceMax", ["carried"], "left", keepdims=1)],
        lambda: [_node("Neg", ["carried"], "left")],
    ])()  # fmt: skip
    times = r.choice([
        lambda: b.ints(1), lambda: b.ints(0), lambda: b.op("Min", b.length(x), b.ints(1)),
        lambda: b.cast(_condition(b, x), INT64),
    ])()  # fmt: skip
    finish(b, *r.sample([x, _loop(b, x, times, nodes, "left")], 2))
    return _case(b)


def _collected(r: Random) -> Case:
    """What a Loop collects, turn by turn: [turns, ...], as many as there are tokens, rows, or less."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    info = helper.make_tensor_value_info
    taken = _node("Gather", [x, "step"], "taken", axis=1)
    go = _node("Less", ["step", b.ints(r.choice([0, 2, 1 << 30]))], "go_on")
    body = helper.make_graph(
        [taken, go], "collect", [info("step", INT64, []), info("go", BOOL, [])],
        [info("go_on", BOOL, []), info("taken", FLOAT, None)],
    )  # fmt: skip
    rows = b.op("Loop", b.length(x), b.const(np.asarray(True), dtype=bool), body=body)
    y = b.op("Transpose", rows, perm=[1, 0, 2]) if r.random() < 0.7 else rows
    finish(b, *r.sample([x, y], 2))
    return _case(b)


def _scanned(r: Random) -> Case:
    """A Scan over the tokens, or the rows, of x: axes of its result where they say, or in front; backwards."""
    b = Graph(r)
    x = b.input("x", ("B", "S", HIDDEN))
    info = helper.make_tensor_value_info
    op = r.choice(["Identity", "Neg", "Tanh"])
    body = helper.make_graph(
        [_node(op, ["row"], "out")], "scan", [info("row", FLOAT, None)], [info("out", FLOAT, None)]
    )
    axis = r.choice([0, 1])
    attributes = {"scan_input_axes": [axis], "num_scan_inputs": 1}
    if r.random() < 0.6:
        attributes["scan_output_axes"] = [r.choice([axis, 1 - axis])]
    if r.random() < 0.3:
        attributes["scan_input_directions"] = [1]
    y = b.op("Scan", x, body=body, **attributes)
    finish(b, *r.sample([x, y], 2))
    return _case(b)


def _masks_and_ids(r: Random) -> Case:
    """The mask, or the positions, of a branch, a Loop or a Scan."""
    b = Graph(r)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    how = r.randrange(3)
    if how == 0:
        other = b.input("other", r.choice([("B", "T"), ("A", "S"), ("B", "S")]), np.int64)
        chosen = _if(b, _condition(b, x), [_node("Identity", [mask], "one")], [_node("Abs", [other], "two")], INT64)
    elif how == 1:
        turned = r.choice([
            lambda: [_node("Identity", ["carried"], "left")], lambda: [_node("Sub", [b.ints(1), "carried"], "left")],
            lambda: [_node("Slice", ["carried", b.ints([0]), b.ints([1]), b.ints([r.choice([0, 1])])], "left")],
        ])()  # fmt: skip
        chosen = _loop(b, mask, b.ints(r.choice([0, 1, 2])), turned, "left", INT64)
    else:
        info = helper.make_tensor_value_info
        body = helper.make_graph(
            [_node("Identity", ["row"], "out")], "s", [info("row", INT64, None)], [info("out", INT64, None)]
        )
        axes = {"scan_output_axes": [1]} if r.random() < 0.7 else {}
        direction = {"scan_input_directions": [1]} if r.random() < 0.4 else {}
        chosen = b.op("Scan", mask, body=body, num_scan_inputs=1, scan_input_axes=[1], **axes, **direction)
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(b.keys(b.cast(chosen, BOOL)))})))
    return _case(b)
