"""Weights that are not only weights: overridable, inputs, outputs, shared, in branches, sparse, of other types."""

from __future__ import annotations

from .build import BOOL, FLOAT, HIDDEN, Case, Graph, Random, attend, helper, np, onnx, spelled


def _layer(r: Random, opset: int | None = None) -> tuple[Graph, onnx.ModelProto]:
    """Attention, residual and feed-forward over looked-up ids, with every op in it."""
    b = Graph(r, opset)
    ids, mask = b.ids(), b.ids("attention_mask")
    rows = b.op("Gather", b.weight(97, HIDDEN, name="words"), ids, axis=0)
    places = b.op("Gather", b.weight(64, HIDDEN, name="positions"), b.unsqueeze(b.places(ids), 0), axis=0)
    x = b.layer_norm(b.op("Add", rows, places), HIDDEN)
    projections = {n: b.linear(x, HIDDEN, HIDDEN) for n in "qkv"}
    visible = b.cast(b.unsqueeze(mask, 1, 2), BOOL)
    context = attend(b, x, spelled(r, parts={"mask": b.additive(visible), **projections}))
    first = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    wide = b.gelu(b.linear(first, HIDDEN, 32))
    b.output(b.layer_norm(b.op("Add", b.linear(wide, 32, HIDDEN), first), HIDDEN))
    return b, b.model()


def _initialisers(model: onnx.ModelProto, least: int = 0) -> list[onnx.TensorProto]:
    return [t for t in model.graph.initializer if np.prod(t.dims) >= least and t.data_type == FLOAT]


def _overridable(r: Random) -> Case:
    """Initialisers that are inputs of the graph, as before IR version 4: whoever runs the model may replace them."""
    _, model = _layer(r)
    chosen = r.sample(_initialisers(model), r.choice([1, 3]))
    for tensor in chosen:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, FLOAT, list(tensor.dims)))
    return Case(model, count=6, override=tuple(t.name for t in chosen))


def _all_overridable(r: Random) -> Case:
    """Every initialiser is an input, of IR version 3 and up."""
    _, model = _layer(r)
    model.ir_version = r.choice([3, 4, 8])
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    chosen = r.sample(_initialisers(model), 2)
    return Case(model, count=6, override=tuple(t.name for t in chosen))


def _outputs(r: Random) -> Case:
    """A weight is an output of the model."""
    _, model = _layer(r)
    for tensor in r.sample(_initialisers(model, 8), 2):
        model.graph.output.append(helper.make_tensor_value_info(tensor.name, FLOAT, list(tensor.dims)))
    return Case(model, count=6)


def _in_a_branch(r: Random) -> Case:
    """A weight, or the mask, is read inside of an If."""
    _, model = _layer(r)
    tensor = r.choice(_initialisers(model, 8))
    inner = helper.make_graph(
        [helper.make_node("ReduceSum", [tensor.name], ["then_sum"], keepdims=0)],
        "then", [], [helper.make_tensor_value_info("then_sum", FLOAT, [])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["else_sum"], value_float=1.0)],
        "else", [], [helper.make_tensor_value_info("else_sum", FLOAT, [])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["ids"], ["if_shape"]),
        helper.make_node("ReduceMax", ["if_shape"], ["if_longest"], keepdims=0),
        helper.make_node("Constant", [], ["if_limit"], value_int=9),
        helper.make_node("Greater", ["if_longest", "if_limit"], ["if_longer"]),
        helper.make_node("If", ["if_longer"], ["if_sum"], then_branch=inner, else_branch=other),
    ]
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info("if_sum", FLOAT, None))
    return Case(model, count=6)


def _read_elsewhere(r: Random) -> Case:
    """A weight is used by other operators, too: in a sum, as a table, transposed."""
    _, model = _layer(r)
    tensor = r.choice(_initialisers(model, 8))
    model.graph.node.append(
        helper.make_node(r.choice(["Neg", "Exp", "Identity", "Shape"]), [tensor.name], ["elsewhere"])
    )
    element = 7 if model.graph.node[-1].op_type == "Shape" else FLOAT
    model.graph.output.append(helper.make_tensor_value_info("elsewhere", element, None))
    return Case(model, count=6)


def _made_by_nodes(r: Random) -> Case:
    """Weights as Constant nodes, or behind an Identity, a Cast, a Transpose, a Reshape."""
    _, model = _layer(r)
    for number, tensor in enumerate(r.sample(_initialisers(model), 3)):
        copy, made = onnx.TensorProto(), f"made_{number}"
        copy.CopyFrom(tensor)
        model.graph.initializer.remove(tensor)
        if r.random() < 0.4:
            node = helper.make_node("Constant", [], [copy.name], value=copy)
        else:
            source = copy.name
            copy.name = made
            model.graph.initializer.append(copy)
            node = helper.make_node(*r.choice([("Identity", [made], [source]), ("Dropout", [made], [source])]))
        model.graph.node.insert(0, node)
    return Case(model, count=6)


def _sparse(r: Random) -> Case:
    """A sparse initialiser in a weight's place."""
    _, model = _layer(r)
    tensor = r.choice([t for t in _initialisers(model, 64) if len(t.dims) == 2])
    values = np.zeros(list(tensor.dims), np.float32).ravel()
    places = np.sort(np.random.default_rng(1).choice(values.size, 20, replace=False)).astype(np.int64)
    dims = list(tensor.dims)
    name = tensor.name
    model.graph.initializer.remove(tensor)
    data = onnx.numpy_helper.from_array(np.linspace(-1, 1, 20).astype(np.float32), name)
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(data, onnx.numpy_helper.from_array(places, f"{name}_places"), dims)
    )
    return Case(model, count=6)


def _odd_data(r: Random) -> Case:
    """Weights with infinities, NaN, zeros, denormals, or that are all the same."""
    _, model = _layer(r)
    tensor = r.choice(_initialisers(model, 8))
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[r.randrange(values.size)] = r.choice([np.inf, np.nan, -np.inf, 1e-42, 1e30, 0.0])
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return Case(model, count=6)


def _float_data(r: Random) -> Case:
    """Values in float_data and int64_data in place of raw bytes."""
    _, model = _layer(r)
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, list(tensor.dims), values.ravel().tolist()))
    return Case(model, count=4)


def _shared(r: Random) -> Case:
    """Two weights of the same shape are one."""
    _, model = _layer(r)
    tensors = _initialisers(model, 8)
    first = r.choice(tensors)
    same = [t for t in tensors if list(t.dims) == list(first.dims) and t.name != first.name]
    second = r.choice(same) if same else first
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == second.name:
                node.input[index] = first.name
    return Case(model, count=6)
