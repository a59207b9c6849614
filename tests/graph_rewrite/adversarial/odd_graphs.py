"""Graphs that ONNX allows, or nearly does: odd files, opsets, names and inputs, and feeds without rows or tokens."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from pathlib import Path

from .build import BOOL, FLOAT, HIDDEN, INT64, Case, Graph, Random, attend, helper, np, onnx, recipe, spelled
from .weights import _layer

_IR_VERSIONS = (4, 6, 7, 8, 9, 10, 11)


def _any_opset(r: Random) -> Case:
    """Opsets 13 to 23 and IR versions in any combination."""
    opset = r.choice([13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23])
    _, model = _layer(r, opset)
    model.ir_version = r.choice(_IR_VERSIONS)
    return Case(model, count=4)


def _newest_opsets(r: Random) -> Case:
    """Opsets that ONNX Runtime may not know yet, or nobody does."""
    _, model = _layer(r, 21)
    model.opset_import[0].version = r.choice([24, 25, 26, 99])
    return Case(model, count=4, runs=False)


def _domains(r: Random) -> Case:
    """The default domain by its long name, twice, or beside domains that nothing uses."""
    _, model = _layer(r, 17)
    how = r.randrange(4)
    if how == 0:
        model.opset_import[0].domain = "ai.onnx"
    elif how == 1:
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    elif how == 2:
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    else:
        for node in model.graph.node:
            node.domain = r.choice(["", "ai.onnx"])
    return Case(model, count=4)


def _nothing_in_it(r: Random) -> Case:
    """No node, or nodes that only pass inputs on; an input that is an output; constants for outputs."""
    info = helper.make_tensor_value_info
    x = info("x", FLOAT, ["B", HIDDEN])
    how = r.randrange(4)
    nodes, outputs, weights = [], [x], []
    if how == 1:
        nodes, outputs = [helper.make_node("Identity", ["x"], ["y"])], [info("y", FLOAT, None)]
    elif how == 2:
        nodes = [helper.make_node("Constant", [], ["y"], value_floats=[1.0, 2.0])]
        outputs = [info("y", FLOAT, None)]
    elif how == 3:
        weights = [onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "y")]
        outputs = [info("y", FLOAT, [2, 3])]
    graph = helper.make_graph(nodes, "empty", [x], outputs, weights)
    return Case(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), count=2)


def _damaged(r: Random) -> Case:
    """Two tensors, nodes or inputs of one name, inputs that nobody makes, circles, axes below 0."""
    _, model = _layer(r)
    nodes = model.graph.node
    how = r.randrange(9)
    some = r.choice([n for n in nodes if n.input])
    if how == 0:
        some.output[0] = r.choice(nodes).output[0]
    elif how == 1:
        some.input[0] = "nobody"
    elif how == 2:
        some.input[0] = nodes[-1].output[0]
    elif how == 3:
        model.graph.initializer.append(model.graph.initializer[0])
    elif how == 4:
        model.graph.input.append(model.graph.input[0])
    elif how == 5:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = r.choice([-1, 0, -5])
    elif how == 6:
        del some.output[:]
    elif how == 7:
        del some.input[:]
    else:
        some.op_type = r.choice(["", "NoSuchOperator", "softmax", "MatMul ", "If", "Loop"])
    feed = {name: np.ones((2, 5), np.int64) for name in ("ids", "attention_mask")}
    return Case(model, count=0, more={"2x5": feed}, runs=False)


def _without_attributes(r: Random) -> Case:
    """An attribute is missing, empty, of another kind, or one that the operator does not have."""
    _, model = _layer(r)
    node = r.choice([n for n in model.graph.node if n.attribute] or model.graph.node)
    how = r.randrange(4)
    if how == 0 and node.attribute:
        del node.attribute[:]
    elif how == 1 and node.attribute:
        name = node.attribute[0].name
        del node.attribute[:]
        node.attribute.append(helper.make_attribute(name, r.choice([1.5, "text", [1.0, 2.0], [1, 2, 3, 4, 5], -7])))
    elif how == 2:
        node.attribute.append(helper.make_attribute("unheard_of", 1))
    else:
        node.attribute.append(onnx.AttributeProto(name="nothing"))
    return Case(model, count=2, runs=False)


@recipe(opset=(18, 20, 21), count=4)
def _optional_inputs_empty(b: Graph, r: Random) -> None:
    """Operators whose optional inputs are left out in front of, or behind, ones that are given."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    t = b.linear(x, HIDDEN, HIDDEN)
    ways = [
        lambda t: b.op("Clip", t, "", b.const(1e9)),
        lambda t: b.op("Clip", t, b.const(-1e9), ""),
        lambda t: b.op("Clip", t, "", ""),
        lambda t: b.op("Slice", t, b.ints([0]), b.ints([1 << 40]), "", b.ints([1])),
        lambda t: b.op("Slice", t, b.ints([0]), b.ints([1 << 40]), b.ints([1]), ""),
        lambda t: b.op("Dropout", t, "", ""),
        lambda t: b.op("Dropout", t, b.const(0.5), ""),
        lambda t: b.op("Pad", t, b.ints([0] * 6), ""),
        lambda t: b.op("ReduceSum", b.unsqueeze(t, 0), b.ints([0]), keepdims=0),
        lambda t: b.op("ReduceMean", t, "", keepdims=1, noop_with_empty_axes=1),
        lambda t: b.op("Squeeze", b.unsqueeze(t, 1), b.ints([1])),
        lambda t: b.op("Resize", b.unsqueeze(t, 0), "", "", b.op("Shape", b.unsqueeze(t, 0)), mode="nearest"),
    ]
    for way in r.sample(ways, 2):
        t = way(t)
    t = t if not t.startswith("resize") else b.op("Squeeze", t, b.ints([0]))
    b.output(b.op("LayerNormalization", b.op("Add", t, y), b.const(np.ones(HIDDEN)), *r.choice([("",), ()]), axis=-1))


def _nested_functions(r: Random) -> Case:
    """Functions that call functions, with attributes handed on, in a layer or around one."""
    b = Graph(r, 17)
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    power = helper.make_node("LeakyRelu", ["a"], ["c"])
    power.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    inner = helper.make_function("local", "Inner", ["a"], ["c"], [power], opsets[:1], ["slope"])
    call = helper.make_node("Inner", ["a"], ["b"], domain="local", slope=r.choice([1.0, 0.5]))
    add = helper.make_node("Add", ["b", "rest"], ["c"])
    outer = helper.make_function("local", "Outer", ["a", "rest"], ["c"], [call, add], opsets)
    product = b.linear(x, HIDDEN, HIDDEN)
    total = b.op("Outer", product, y, domain="local") if r.random() < 0.6 else b.op("Add", product, y)
    normal = b.layer_norm(total, HIDDEN)
    b.output(b.op("Outer", normal, y, domain="local"))
    graph = helper.make_graph(b.nodes, "small", b.inputs, b.outputs, b.initializers)
    for value in graph.output:
        value.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * 3)
    functions = [inner, outer]
    r.shuffle(functions)
    return Case(helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions), count=4)


@recipe(opset=(17,), count=4)
def _other_types(b: Graph, r: Random) -> None:
    """Inputs and outputs that are strings, sequences or optionals, beside a layer."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    normal = b.layer_norm(b.op("Add", b.linear(x, HIDDEN, HIDDEN), y), HIDDEN)
    how = r.randrange(3)
    if how == 0:
        sequence = b.op("SequenceConstruct", normal, x)
        b.output(b.op("Add", normal, b.op("SequenceAt", sequence, b.ints(r.choice([0, 1, -1])))))
    elif how == 1:
        pieces = b.op("SplitToSequence", normal, axis=1, keepdims=1)
        b.output(b.op("ConcatFromSequence", pieces, axis=1))
    else:
        kept = b.op("Optional", normal)
        b.output(b.op("Add", b.op("OptionalGetElement", kept), b.const(1.0)))


def _nothing_fed(r: Random) -> Case:
    """No rows, no tokens, or one of each, in models that pool, count and look up."""
    b = Graph(r)
    ids, mask = b.ids(), b.ids("attention_mask")
    rows = b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)
    places = b.op("Gather", b.weight(64, HIDDEN), b.unsqueeze(b.places(ids), 0), axis=0)
    x = b.layer_norm(b.op("Add", rows, places), HIDDEN)
    context = attend(b, x, spelled(r, mask=r.choice(["where", "subtract", "none"])), mask)
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    how = r.randrange(4)
    if how == 0:
        b.output(b.op("ReduceSum", y, b.ints([1]), keepdims=0))
    elif how == 1:
        b.output(b.op("Gather", y, b.ints([0]), axis=1))
    elif how == 2:
        b.output(
            b.op(
                "ReduceSum",
                b.op("Mul", y, b.cast(b.cast(b.unsqueeze(mask, 2), BOOL), FLOAT)),
                b.ints([0, 1]),
                keepdims=0,
            )
        )
    else:
        b.output(b.gelu(b.linear(y, HIDDEN, 8)), b.op("Shape", y))
        b.outputs[1].type.tensor_type.elem_type = INT64
    more = {
        f"{p}x{s}": {n: np.ones((p, s), np.int64) for n in ("ids", "attention_mask")}
        for p, s in ((0, 5), (2, 0), (0, 0), (1, 1), (3, 1))
    }
    return Case(b.model(), count=3, more=more)


@recipe(count=4)
def _no_columns(b: Graph, r: Random) -> None:
    """Weights and inputs of no columns, heads of size 0 or 1, one head, hidden size 1."""
    hidden = r.choice([0, 1, 1, 2, 3])
    x, y = b.input("x", ("B", "S", hidden)), b.input("y", ("B", "S", hidden))
    product = b.op("Add", b.op("MatMul", x, b.const(b.random.standard_normal((hidden, hidden)))), b.weight(hidden))
    if r.random() < 0.5:
        b.output(b.layer_norm(b.op("Add", product, y), hidden))
    else:
        heads = lambda t: b.op("Transpose", b.op("Reshape", t, b.ints([0, 0, hidden or 1, -1])), perm=[0, 2, 1, 3])  # noqa: E731
        q, k, v = (heads(b.op("MatMul", x, b.const(b.random.standard_normal((hidden, hidden))))) for _ in "qkv")
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
        context = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        b.output(b.op("Reshape", context, b.ints([0, 0, hidden or -1])))


@recipe(count=4)
def _wide_and_many(b: Graph, r: Random) -> None:
    """Many heads, a head as wide as the hidden size, heads of an odd size."""
    heads, size = r.choice([(1, 16), (16, 1), (3, 5), (2, 33), (7, 3), (40, 2)])
    width = heads * size
    x = b.input("x", ("B", "S", HIDDEN))
    q, k, v = (
        b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, width), b.ints([0, 0, heads, size])), perm=[0, 2, 1, 3])
        for _ in "qkv"
    )
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2])), b.const(1 / np.sqrt(size)))
    context = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    b.output(b.op("Reshape", context, b.ints([0, 0, width])))


def _external_data(r: Random) -> Case:
    """Weights that lay beside the file, read back with offsets, in one file or in several."""
    _, model = _layer(r)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        one = r.random() < 0.5
        kept = deepcopy(model)
        onnx.save(
            kept, path, save_as_external_data=True, all_tensors_to_one_file=one, size_threshold=r.choice([0, 512])
        )
        return Case(onnx.load(path), count=4)


def _repeated_initialisers(r: Random) -> Case:
    """The same weights under several names, and outputs that nobody asks for."""
    _, model = _layer(r)
    copies = {}
    for tensor in list(model.graph.initializer):
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = f"{tensor.name}_copy"
        copies[tensor.name] = copy.name
        model.graph.initializer.append(copy)
    for node in model.graph.node:
        node.input[:] = [copies[n] if n in copies and r.random() < 0.5 else n for n in node.input]
    kept = r.choice([n for n in model.graph.node if n.op_type in ("MatMul", "Softmax", "Add", "Gather")]).output[0]
    model.graph.output.append(onnx.ValueInfoProto(name=kept))
    return Case(onnx.shape_inference.infer_shapes(model), count=4)


def _unsorted(r: Random) -> Case:
    """Nodes in another order than they are computed in, which ONNX forbids."""
    _, model = _layer(r)
    nodes = list(model.graph.node)
    r.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return Case(model, count=2, runs=False)


def _lies(r: Random) -> Case:
    """Shapes and types that the file gives for inner tensors and outputs, and that are not theirs."""
    _, model = _layer(r)
    for _ in range(r.choice([1, 3])):
        node = r.choice(model.graph.node)
        shape = r.choice([["B", "S", HIDDEN], [1, 1, HIDDEN], ["B", 1, "S"], [], [7], ["B", "S"], ["S", "B", HIDDEN]])
        model.graph.value_info.append(helper.make_tensor_value_info(node.output[0], r.choice([FLOAT, INT64]), shape))
    return Case(model, count=6, runs=False)
