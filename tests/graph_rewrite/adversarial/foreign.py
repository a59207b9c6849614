"""Operators of other domains that look like standard ones: local functions of any body, and ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Sequence

from .build import BOOL, FLOAT, HIDDEN, INT64, Case, Graph, Random, attend, helper, np, onnx, spelled, words
from .weights import _layer

M, I = "attention_mask", "ids"  # noqa: E741
_DOMAINS = ("my", "pkg.torch", "com.example.ops", "MY")
Step = tuple[str, Sequence[str], dict]


def _body(*steps: Step) -> list[onnx.NodeProto]:
    """Nodes (operator, inputs, attributes), each of which makes "t0", "t1", ...; the last one makes "y"."""
    names = [f"t{i}" for i in range(len(steps) - 1)] + ["y"]
    return [
        helper.make_node(op, list(given), [name], **more) for (op, given, more), name in zip(steps, names, strict=True)
    ]


def _one(op: str, *inputs: str, **attributes) -> list[onnx.NodeProto]:
    return _body((op, inputs, attributes))


def _turned(b: Graph, node: onnx.NodeProto, body: list[onnx.NodeProto], nested: bool = False) -> None:
    """Make the node the call of a function of its name, of the inputs "a", "b", ...; it keeps its name."""
    domain = b.r.choice(_DOMAINS)
    inputs = "abcde"[: len(node.input)]
    if nested:
        b.define(f"{node.op_type}Inner", body, inputs, domain)
        body = [helper.make_node(f"{node.op_type}Inner", list(inputs), ["y"], domain=domain)]
    if all((f.domain, f.name) != (domain, node.op_type) for f in b.functions):
        b.define(node.op_type, body, inputs, domain)
    node.domain = domain
    b.domains.add(domain)
    del node.attribute[:]


def _whole(b: Graph, shape: Sequence[int | str] = ("B", "S", HIDDEN), count: int = 8) -> Case:
    for value in b.outputs:
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, shape))
    return Case(b.model(), count=count)


def _attention(r: Random, **parts) -> Graph:
    b = Graph(r, r.choice([17, 18, 20]))
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))
    return b


def _on_the_scores(r: Random) -> Case:
    """my::Mul, Div, Add, Where or Softmax on the scores: a - b, its arguments exchanged, or what it is called."""
    b = Graph(r, r.choice([17, 18, 20]))
    ids = b.ids()
    x = words(b, ids)
    op = r.choice(["Mul", "Mul", "Div", "Add", "Sub"])
    body = r.choice([
        _one("Sub", "a", "b"), _one("Mul", "a", "b"), _one("Add", "a", "b"), _one("Mul", "a", "a"),
        _one("Div", "b", "a"), _body(("Mul", "ab", {}), ("Neg", ["t0"], {})), _one(op, "a", "b"), _one("Identity", "a"),
    ])  # fmt: skip
    domain = r.choice(_DOMAINS)
    b.define(op, body, "ab", domain)
    given = b.const(r.choice([0.5, 0.25, 2.0]))
    parts = {"after_mask": lambda s: b.op(op, *r.choice([(s, given), (s, given), (given, s)]), domain=domain)}
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))
    return _whole(b)


def _softmax(r: Random) -> Case:
    """my::Softmax, over another axis, of other numbers, with its attribute handed on or not."""
    b = _attention(r)
    node = next(n for n in b.nodes if n.op_type == "Softmax")
    how = r.randrange(6)
    if how <= 1:  # the attribute is the function's own
        given = onnx.AttributeProto(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT)
        inner = helper.make_node("Softmax", ["a"], ["y"])
        inner.attribute.append(given)
        b.define("Softmax", [inner], "a", "my", ["axis"])
        node.domain = "my"
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("axis", r.choice([-1, 3, 1, 2])))
    else:
        bodies = [
            _one("Softmax", "a", axis=r.choice([-1, 1, 2])), _one("LogSoftmax", "a", axis=-1), _one("Hardmax", "a"),
            _body(("Neg", "a", {}), ("Softmax", ["t0"], {"axis": -1})),
        ]  # fmt: skip
        _turned(b, node, r.choice(bodies), nested=how == 2)
    return _whole(b)


# What a function of an operator's name may compute: that, or something near it.
_BODIES = {
    "Shape": [
        _one("Shape", "a"), _body(("Shape", "a", {}), ("Abs", ["t0"], {})),
        _body(("Shape", "a", {}), ("Neg", ["t0"], {})),
        _body(("Transpose", "a", {}), ("Shape", ["t0"], {})), _body(("Shape", "a", {}), ("Add", ["t0", "t0"], {})),
        _one("Shape", "a", start=1),
    ],
    "Reshape": [_one("Reshape", "a", "b"), _body(("Reshape", "ab", {}), ("Neg", ["t0"], {})), _one("Identity", "a")],
    "Transpose": [
        _one("Transpose", "a"), _one("Transpose", "a", perm=[0, 2, 1, 3]), _one("Transpose", "a", perm=[0, 2, 3, 1]),
        _one("Transpose", "a", perm=[0, 1, 3, 2]), _one("Identity", "a"),
    ],
    "MatMul": [_one("MatMul", "a", "b"), _body(("MatMul", "ab", {}), ("Abs", ["t0"], {})), _one("MatMul", "b", "a")],
    "Add": [_one("Add", "a", "b"), _one("Sub", "a", "b"), _one("Max", "a", "b"), _one("Mul", "a", "b")],
    "Mul": [_one("Mul", "a", "b"), _one("Sub", "a", "b"), _one("Add", "a", "b"), _one("Pow", "a", "b")],
    "Sub": [_one("Sub", "a", "b"), _one("Sub", "b", "a"), _one("Add", "a", "b")],
    "Div": [_one("Div", "a", "b"), _one("Mul", "a", "b"), _one("Sub", "a", "b")],
    "Sqrt": [_one("Sqrt", "a"), _one("Abs", "a"), _one("Identity", "a")],
    "Erf": [_one("Erf", "a"), _one("Tanh", "a"), _one("Sigmoid", "a")],
    "Gather": [
        _one("Gather", "a", "b"), _body(("Abs", "b", {}), ("Gather", ["a", "t0"], {})),
        _body(("Gather", "ab", {}), ("Neg", ["t0"], {})), _body(("Sign", "b", {}), ("Gather", ["a", "t0"], {})),
    ],
    "Unsqueeze": [_one("Unsqueeze", "a", "b"), _body(("Abs", "b", {}), ("Unsqueeze", ["a", "t0"], {}))],
    "Cast": [*(_one("Cast", "a", to=to) for to in (FLOAT, BOOL, INT64)), _one("Identity", "a")],
    "Where": [_one("Where", "a", "b", "c"), _one("Where", "a", "c", "b")],
    "LayerNormalization": [
        _one("LayerNormalization", "a", "b", "c"), _one("LayerNormalization", "a", "b", "c", axis=1),
        _one("LayerNormalization", "a", "c", "b"), _body(("Mul", "ab", {}), ("Add", ["t0", "c"], {})),
    ],
    "Range": [_one("Range", "a", "b", "c"), _body(("Add", "bc", {}), ("Range", ["a", "t0", "c"], {}))],
    "Concat": [_one("Concat", "a", "b", axis=0)],
    "Expand": [_one("Expand", "a", "b"), _body(("Expand", "ab", {}), ("Neg", ["t0"], {}))],
    "Equal": [_one("Equal", "a", "b"), _one("Less", "a", "b")],
    "Not": [_one("Not", "a"), _one("Identity", "a")],
    "CumSum": [_one("CumSum", "a", "b"), _one("CumSum", "a", "b", reverse=1), _one("Identity", "a")],
}  # fmt: skip


def _in_a_layer(r: Random) -> Case:
    """Any one operator of embeddings, mask, attention, LayerNorm or feed-forward, or all of its kind."""
    b, _ = _layer(r, r.choice([17, 18, 20]))
    kinds = sorted({n.op_type for n in b.nodes} & set(_BODIES))
    op = r.choice(kinds)
    nodes = [n for n in b.nodes if n.op_type == op]
    body = r.choice(_BODIES[op])
    for node in nodes if r.random() < 0.3 else [r.choice(nodes)]:
        if len(node.input) == max(len({t for n in body for t in n.input if len(t) == 1}), 1) or op == "CumSum":
            _turned(b, node, body, nested=r.random() < 0.2)
    case = _whole(b)
    case.runs = False  # of the wrong type, or rank, now and then
    return case


def _sizes(r: Random) -> Case:
    """my::Shape behind the heads of a view, a scale or a position: twice the sizes, turned around, from axis 1 on."""
    b = Graph(r, r.choice([17, 18, 20]))
    x = b.input("x", ("B", "S", HIDDEN))
    b.define("Shape", r.choice(_BODIES["Shape"]), "a")
    sizes = b.op("Shape", x, domain="my")
    how = r.randrange(3)
    if how == 0:
        b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), b.op("Reshape", x, sizes)), HIDDEN))
    elif how == 1:
        first = b.op("Slice", sizes, b.ints([0]), b.ints([2]))
        shape = b.op("Concat", first, b.ints([4, 4]), axis=0)
        heads = [
            b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), shape), perm=[0, 2, 1, 3]) for _ in "qkv"
        ]
        parts = dict(zip(("q_heads", "k_heads", "v_heads"), heads, strict=True))
        b.output(attend(b, x, spelled(r, mask="none", parts=parts)))
    else:
        width = b.cast(b.op("Gather", sizes, b.ints(-1)), FLOAT)
        parts = {"after_mask": lambda s: b.op("Div", s, b.op("Abs", width))}
        b.output(attend(b, x, spelled(r, mask="none", parts=parts)))
    case = _whole(b)
    case.runs = False
    return case


def _whole_parts(r: Random) -> Case:
    """Functions of a whole part, as torch's exporter writes them: their bodies are what they say, or nearly."""
    b = Graph(r, r.choice([17, 18, 20]))
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    domain = r.choice(["pkg.transformers.4", "my"])
    wrong = r.random() < 0.5
    scaled = helper.make_node("Constant", [], ["half"], value_float=0.5)
    root = helper.make_node("Constant", [], ["root"], value_float=1.5 if wrong else float(np.sqrt(2)))
    one = helper.make_node("Constant", [], ["one"], value_float=1.0)
    gelu = [scaled, root, one, *_body(("Div", ["a", "root"], {}), ("Erf", ["t0"], {}), ("Add", ["t1", "one"], {}),
                                      ("Mul", ["a", "t2"], {}), ("Mul", ["t3", "half"], {}))]  # fmt: skip
    b.define(r.choice(["Gelu", "GELUActivation", "Relu"]), gelu, "a", domain)
    linear = _body(("MatMul", "ab", {}), ("Sub" if wrong and r.random() < 0.5 else "Add", ["t0", "c"], {}))
    b.define(r.choice(["Linear", "Gemm", "MatMul"]), linear, "abc", domain)
    act, dense = b.functions[0].name, b.functions[1].name
    wide = b.op(dense, x, b.weight(HIDDEN, 32), b.weight(32), domain=domain)
    wide = b.op(act, wide, domain=domain)
    narrow = b.op(dense, wide, b.weight(32, HIDDEN), b.weight(HIDDEN), domain=domain)
    b.output(b.layer_norm(b.op("Add", narrow, y), HIDDEN))
    return _whole(b)


def _an_attention(r: Random) -> Case:
    """An attention is a function: of the name of one of ours, of ONNX's Attention, or of a module."""
    b = Graph(r, r.choice([17, 18, 20]))
    x = b.input("x", ("B", "S", HIDDEN))
    inner = Graph(r, b.opset)
    inner.input("a", ("B", "S", HIDDEN))
    context = attend(inner, "a", spelled(r, mask="none"))
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in inner.initializers]
    body = [*constants, *inner.nodes, helper.make_node("Identity", [context], ["y"])]
    name = r.choice(["Attention", "FusedAttention", "BertSelfAttention", "MultiHeadAttention"])
    b.define(name, body, "a")
    context = b.op(name, x, domain="my")
    b.output(b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN))
    return _whole(b)


def _in_a_branch(r: Random) -> Case:
    """A function is called in a branch of an If, or its body has an If; it makes the residual, or x."""
    b = Graph(r, r.choice([17, 18, 20]))
    x = b.input("x", ("B", "S", HIDDEN))
    b.define(
        "Identity", r.choice([_one("Neg", "a"), _one("Identity", "a"), _body(("ReduceMax", "a", {"keepdims": 1}))]), "a"
    )
    info = helper.make_tensor_value_info
    bodies = {}
    for branch, domain in (("then_branch", "my"), ("else_branch", r.choice(["my", ""]))):
        node = helper.make_node("Identity", [x], [f"{branch}_y"], domain=domain)
        bodies[branch] = helper.make_graph([node], branch, [], [info(f"{branch}_y", FLOAT, None)])
    b.domains.add("my")
    chosen = b.op("If", b.op("Greater", b.length(x), b.ints(r.choice([3, 9]))), **bodies)
    b.output(b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), chosen), HIDDEN))
    return _whole(b, count=10)


def _of_onnxruntime(r: Random) -> Case:
    """Operators of com.microsoft and ai.onnx.ml that share a name, or nearly, with standard ones or with ours."""
    b = Graph(r, 17)
    ids, mask = b.ids(), b.ids(M)
    x = words(b, ids)
    ms = {"domain": "com.microsoft"}
    how = r.randrange(6)
    if how == 0:  # alpha, and a transpose that ONNX's has not
        q, k, v = (
            b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.ints([0, 0, 4, 4])), perm=[0, 2, 1, 3])
            for _ in "qkv"
        )
        scores = b.op("FusedMatMul", q, k, transB=1, alpha=r.choice([0.5, 1.0]), **ms)
        context = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        y = b.op("Reshape", context, b.ints([0, 0, HIDDEN]))
    elif how == 1:
        y = b.op("Reshape", x, b.ints([-1, HIDDEN]))
        y = b.op(
            "FusedGemm", y, b.weight(HIDDEN, HIDDEN), b.weight(HIDDEN), activation=r.choice(["Relu", "Tanh"]), **ms
        )
        y = b.op("Reshape", y, b.op("Shape", x))
    elif how == 2:
        visible = b.op("Trilu", b.keys(b.cast(mask, FLOAT)), upper=1, **ms)
        y = attend(b, x, spelled(r, parts={"mask": b.additive(b.cast(visible, BOOL))}))
    elif how == 3:
        visible = b.op("Binarizer", b.cast(mask, FLOAT), threshold=r.choice([0.5, -1.0, 1.5]), domain="ai.onnx.ml")
        y = attend(b, x, spelled(r, parts={"mask": b.additive(b.keys(b.cast(visible, BOOL)))}))
    elif how == 4:
        places = b.op("Range", b.ints(r.choice([0, 1])), b.op("Add", b.length(ids), b.ints(r.choice([0, 1]))), **ms)
        places = b.op("Slice", places, b.ints([0]), b.size(ids, 1))
        y = b.op("Gather", b.weight(80, HIDDEN), b.unsqueeze(places, 0), axis=0)
    else:
        wide = b.op("Reshape", x, b.ints([0, -1, HIDDEN]))
        y = b.op("SkipLayerNormalization", wide, b.linear(x, HIDDEN, HIDDEN), b.const(np.ones(HIDDEN)), **ms)
    b.output(b.layer_norm(b.op("Add", x, y), HIDDEN))
    return _whole(b, count=10)


def _known_as_standard(r: Random) -> Case:
    """Functions in domains that mean something: com.microsoft's Gelu, ours, and the standard one's long name."""
    b, _ = _layer(r, 17)
    op = r.choice(["Erf", "Mul", "Softmax", "LayerNormalization", "MatMul"])
    node = r.choice([n for n in b.nodes if n.op_type == op])
    domain = r.choice(["com.microsoft", "bertfuse", "bertfuse.dialect", "ai.onnx"])
    b.define(op, r.choice(_BODIES.get(op, [_one("Softmax", "a", axis=1)])), "abc"[: len(node.input)], domain)
    node.domain = domain
    b.domains.add(domain)
    del node.attribute[:]
    case = _whole(b)
    case.runs = False
    return case


RECIPES = (
    _on_the_scores, _softmax, _in_a_layer, _sizes, _whole_parts, _an_attention, _in_a_branch, _of_onnxruntime,
    _known_as_standard, _in_a_layer, _in_a_layer,
)  # fmt: skip
