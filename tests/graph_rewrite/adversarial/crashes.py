"""What makes a pass stumble: names, empty axes, empty graphs, missing types and shapes, odd opsets and domains."""

from __future__ import annotations

from .build import FLOAT, HIDDEN, Case, Graph, Random, attend, helper, np, onnx, recipe, spelled
from .weights import _layer


def _odd_names(r: Random) -> Case:
    """Names that are empty, the same, of other alphabets, with slashes, quotes, blanks, or like ours."""
    _, model = _layer(r)
    for number, node in enumerate(model.graph.node):  # ONNX Runtime takes no two of one name, but any without
        odd = r.choice(["", "a b", "ü/é", "'quoted'", '"', "FusedAttention", "x" * 300, "%s{}\\n", node.name])
        node.name = f"{odd}{number}" if odd else ""
    stems = ["bertfuse", "/a/b", "x:0", "FusedGemm_qkv", "0", "%d{0}", "ü", "a b", "_cast", "Q_qkv_weight"]
    names = {t.name: f"{r.choice(stems)}{i}" for i, t in enumerate(model.graph.initializer)}
    names |= {
        o: f"{r.choice(stems)}.{i}" for i, n in enumerate(model.graph.node) for o in n.output if "output" not in o
    }
    kept = {v.name for v in (*model.graph.input, *model.graph.output)}
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    for node in model.graph.node:
        for given in (node.input, node.output):
            given[:] = [n if n in kept else names.get(n, n) for n in given]
    return Case(model, count=4)


def _taken_names(r: Random) -> Case:
    """Tensors whose names fusion would give to its own."""
    _, model = _layer(r)
    taken = []
    for node in model.graph.node:
        taken += [
            f"{node.output[0]}_{end}" for end in ("qkv", "qkv_weight", "cast", "expand", "shape", "word", "merged")
        ]
    for name in taken[:200]:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), name))
        model.graph.node.append(helper.make_node("Identity", [name], [f"{name}_read"]))
    return Case(model, count=4)


def _empty_axes(r: Random) -> Case:
    """Batches of none, sequences of none: the fused model runs where the original does."""
    _, model = _layer(r)
    more = {}
    for batch, length in ((0, 5), (2, 0), (0, 0), (1, 1)):
        more[f"{batch}x{length}"] = {n: np.ones((batch, length), np.int64) for n in ("ids", "attention_mask")}
    return Case(model, count=4, more=more)


def _empty_batches_of_floats(r: Random) -> Case:
    """The same of one attention without embeddings."""
    b = Graph(r)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    b.output(attend(b, x, spelled(r, mask=r.choice(["where", "none", "subtract"])), mask))
    more = {}
    for batch, length in ((0, 5), (2, 0), (1, 1)):
        feed = {"x": np.ones((batch, length, HIDDEN), np.float32), "attention_mask": np.ones((batch, length), np.int64)}
        more[f"{batch}x{length}"] = feed
    return Case(b.model(), count=4, more=more)


def _missing_shapes(r: Random) -> Case:
    """Inputs and outputs without names of axes, without shapes, or with wrong ones in between."""
    _, model = _layer(r)
    for value in (*model.graph.input, *model.graph.output):
        if r.random() < 0.5:
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_param"):
                    dim.ClearField("dim_param")
        elif value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
    node = r.choice([n for n in model.graph.node if n.op_type in ("Add", "MatMul", "Softmax")])
    if r.random() < 0.3:
        model.graph.value_info.append(helper.make_tensor_value_info(node.output[0], FLOAT, ["odd", "B*S", "?"]))
    return Case(model, count=6)


def _same_symbols(r: Random) -> Case:
    """Axes named after each other: B for the length, one name for both, names that are expressions."""
    _, model = _layer(r)
    names = r.choice(
        [("S", "B"), ("N", "N"), ("B*S", "S"), ("batch", "batch + 1"), ("-1", "0"), ("None", "def"), ("", "S")]
    )
    for value in (*model.graph.input, *model.graph.output):
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
            if dim.HasField("dim_param"):
                dim.dim_param = name
    case = Case(model, count=1)
    case.more = {
        f"{b}x{s}": {"ids": np.arange(b * s).reshape(b, s) % 97, "attention_mask": np.tri(b, s, s // 2, dtype=np.int64)}
        for b, s in ((1, 1), (2, 7), (5, 3), (3, 3), (4, 20))
    }
    return case


def _dead_ends(r: Random) -> Case:
    """Nodes that nobody reads, of any operator, and outputs that are inputs."""
    _, model = _layer(r)
    model.graph.node.append(helper.make_node(r.choice(["Softmax", "Erf", "Tanh", "Shape"]), ["ids_float"], ["dead"]))
    model.graph.node.insert(0, helper.make_node("Cast", ["ids"], ["ids_float"], to=FLOAT))
    model.graph.node.append(helper.make_node("Identity", ["ids"], ["ids_again"]))
    model.graph.output.append(helper.make_tensor_value_info("ids_again", 7, None))
    return Case(model, count=4)


@recipe(opset=(17,), count=4)
def _anchors_alone(b: Graph, r: Random) -> None:
    """A Softmax, an Erf or a LayerNormalization of inputs, constants, or itself."""
    x = b.input("x", r.choice([("B", "S", HIDDEN), (HIDDEN,), ("N", HIDDEN)]))
    t = b.op("Softmax", x, axis=-1)
    t = b.op("Mul", b.op("Erf", t), t)
    t = b.op("LayerNormalization", t, b.const(np.ones(HIDDEN)), axis=-1)
    constant = b.op("Softmax", b.weight(3, HIDDEN))
    b.output(b.op("Add", t, b.op("ReduceSum", b.op("Erf", constant), keepdims=0)))


@recipe(opset=(17,), count=4)
def _optional_inputs(b: Graph, r: Random) -> None:
    """Inputs left out by an empty name, outputs that are not asked for."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    product = b.op("Clip", b.linear(x, HIDDEN, HIDDEN), "", b.const(1e9))
    dropped = b.op("Dropout", product, "", "")
    gamma = b.const(np.ones(HIDDEN))
    b.output(b.op("LayerNormalization", b.op("Add", dropped, y), gamma, *r.choice([("",), ()]), axis=-1))


def _functions(r: Random) -> Case:
    """The model has a local function, called in the middle of a layer; its name may be one of ours."""
    b = Graph(r, 17)
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    domain = r.choice(["local", "bertfuse.test"])
    product = b.op("Twice", b.linear(x, HIDDEN, HIDDEN), domain=domain)
    b.output(b.layer_norm(b.op("Add", product, y), HIDDEN))
    graph = helper.make_graph(b.nodes, "small", b.inputs, b.outputs, b.initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    twice = helper.make_function(
        domain, "Twice", ["a"], ["c"], [helper.make_node("Add", ["a", "a"], ["c"])], [helper.make_opsetid("", 17)]
    )
    for value in graph.output:
        value.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * 3)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[twice])
    return Case(model, count=4)
