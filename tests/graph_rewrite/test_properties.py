"""Random small graphs around each pattern: whatever is done to them, fused and unfused agree, or there is a reason."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.graph_rewrite.attentions import HIDDEN, MASKS, Attention, attend
from tests.graph_rewrite.graphs import Builder, fused
from tests.graph_rewrite.test_embedding import lookup, range_positions, sliced_positions
from tests.graph_rewrite.test_gelu import erf_gelu, tanh_gelu
from tests.graph_rewrite.test_layer_norm import N, spelled_out

_SETTINGS = settings(
    deadline=None,
    max_examples=40,
    derandomize=True,  # the same graphs on every machine: what fails here fails there
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=False,
)

COMMUTATIVE = ("Add", "Mul")
# Not 0.5: half of 2, the power in a variance, makes that a mean of rounding errors, which differ between any two runs.
FACTORS = (0.0, -1.0, 0.7, 0.99, 1.01, 2.0, np.inf)


@dataclass
class Mutation:
    """`apply` makes the changed model; `broken` says that one of its constants is another."""

    apply: Callable[[Builder], onnx.ModelProto]
    broken: bool


@st.composite
def mutations(draw: st.DrawFn) -> Mutation:
    """Something that changes a graph's looks, and maybe one of its constants: then it computes something else."""
    seed = draw(st.integers(0, 1 << 20))
    readers = draw(st.lists(st.integers(0, 200), max_size=2))
    exposed = draw(st.lists(st.integers(0, 200), max_size=1))
    identities = draw(st.lists(st.integers(0, 200), max_size=2))
    dead, share, rename, reorder = (draw(st.booleans()) for _ in range(4))
    broken = draw(st.none() | st.tuples(st.integers(0, 200), st.sampled_from(FACTORS)))

    def apply(b: Builder) -> onnx.ModelProto:
        rng = random.Random(seed)
        if broken is not None:
            _break_constant(b, *broken)
        outputs = [o.name for o in b.outputs]
        interior = [n.output[0] for n in b.nodes if n.op_type not in ("Shape", "Range", "Constant")]
        for index in identities:
            _insert_identity(b, interior[index % len(interior)], outputs)
        for node in b.nodes:
            if node.op_type in COMMUTATIVE and rng.random() < 0.5:
                node.input[:] = [node.input[1], node.input[0]]
        extra = [b.op("Identity", interior[index % len(interior)]) for index in readers]
        extra = [b.op("Shape", name) for name in extra]  # any type: only its shape is asked for
        for name in extra:
            b.output(name, element=onnx.TensorProto.INT64)
        floats = [n.output[0] for n in b.nodes if n.op_type in ("MatMul", "Add", "Mul", "Div", "Softmax", "Erf")]
        for name in {floats[index % len(floats)] for index in exposed} - set(outputs):
            if _is_float(b, name):
                b.output(name)
        if dead:
            b.op("Neg", floats[rng.randrange(len(floats))])
        if share:
            _share_constants(b)
        if rename:
            _rename(b, rng)
        if reorder:
            _reorder(b, rng)
        return b.model()

    return Mutation(apply, broken is not None)


def _is_float(b: Builder, name: str) -> bool:
    graph = onnx.helper.make_graph(b.nodes, "types", b.inputs, b.outputs, b.initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", b.opset)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    return any(v.name == name and v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for v in inferred)


def _insert_identity(b: Builder, tensor: str, outputs: list[str]) -> None:
    place = next(i for i, node in enumerate(b.nodes) if tensor in node.output) + 1
    users = [node for node in b.nodes[place:] if tensor in node.input]
    if tensor in outputs or not users:
        return
    made = b.op("Identity", tensor)
    b.nodes.insert(place, b.nodes.pop())
    for node in users:
        node.input[:] = [made if name == tensor else name for name in node.input]


def _break_constant(b: Builder, index: int, factor: float) -> None:
    """Multiply a float initialiser, mostly one with a single element: those are what patterns look at."""
    floats = [t for t in b.initializers if t.data_type == onnx.TensorProto.FLOAT]
    scalars = [t for t in floats if np.prod(t.dims) == 1]
    chosen = scalars if scalars and (index % 4 or np.isinf(factor)) else floats
    tensor = chosen[index % len(chosen)]
    if np.isinf(factor) and not scalars:
        return  # infinite weights: a model that computes nothing but NaN
    with np.errstate(invalid="ignore"):
        values = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values, np.float32), tensor.name))


def _reorder(b: Builder, rng: random.Random) -> None:
    """Another order in which every node still comes after what it reads."""
    made = {name for node in b.nodes for name in node.output}
    waiting, order, done = list(b.nodes), [], set()
    while waiting:
        ready = [n for n in waiting if all(name in done or name not in made for name in n.input)]
        node = rng.choice(ready)
        waiting = [n for n in waiting if n is not node]
        order.append(node)
        done.update(node.output)
    b.nodes = order


def _share_constants(b: Builder) -> None:
    """Equal initialisers become one."""
    first: dict[bytes, str] = {}
    names: dict[str, str] = {}
    for tensor in b.initializers:
        key = bytes(str((tensor.data_type, list(tensor.dims))), "ascii") + tensor.raw_data
        names[tensor.name] = first.setdefault(key, tensor.name)
    b.initializers = [t for t in b.initializers if names[t.name] == t.name]
    for node in b.nodes:
        node.input[:] = [names.get(name, name) for name in node.input]


def _rename(b: Builder, rng: random.Random) -> None:
    """Names say nothing: tensors and nodes are called by shuffled numbers, nodes partly not at all."""
    kept = {v.name for v in (*b.inputs, *b.outputs)}
    tensors = [n for node in b.nodes for n in node.output] + [t.name for t in b.initializers]
    tensors = [name for name in dict.fromkeys(tensors) if name and name not in kept]
    numbers = list(range(len(tensors)))
    rng.shuffle(numbers)
    names = {name: f"{number}" for name, number in zip(tensors, numbers, strict=True)}
    for tensor in b.initializers:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in b.nodes:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        node.name = "" if rng.random() < 0.5 else f"n{rng.randrange(1 << 30)}"


def holds(mutate: Mutation, b: Builder, op: str, level: str = "full", sizes: dict[str, int] | None = None) -> None:
    """`fused` checks agreement, validity and the accounts; here: the op is there, or a miss says why not.

    ONNX Runtime's optimizer takes LayerNorms with any power in their variance for right ones, and refuses to run those
    with a negative epsilon: broken models are run without it.
    """
    result = fused(mutate.apply(b), level, sizes, tol=1e-4, optimise=not mutate.broken)
    # A LayerNorm whose sum is read elsewhere, too, is that of a pre-norm block.
    found = {op, "FusedGemmResidualNorm"} if op == "FusedGemmLayerNorm" else {op}
    assert found & set(result.fused) or any(miss.op == op for miss in result.misses), result


sizes = st.fixed_dictionaries({"B": st.integers(1, 3), "S": st.integers(1, 9)})
opsets = st.sampled_from([13, 17, 18, 21])


@_SETTINGS
@given(mutations(), sizes, opsets, st.integers(1, 40), st.integers(1, 40), st.data())
def test_gemm_gelu(mutate, size, opset, k, n, data) -> None:
    b = Builder(opset)
    form = data.draw(st.sampled_from(["matmul_add", "add_matmul", "matmul", "gemm", "gemm_transposed"]))
    y = b.linear(b.input("x", ("B", k) if form.startswith("gemm") else ("B", "S", k)), k, n, form)
    if data.draw(st.booleans()):
        y = erf_gelu(b, y, data.draw(st.sampled_from(["div", "mul", "mul_sqrt", "neg"])), "(x f) / 2", False)
    else:
        y = tanh_gelu(b, y, data.draw(st.sampled_from(["pow", "mul"])), "(x / 2) f", data.draw(st.booleans()))
    b.output(y)
    holds(mutate, b, "FusedGemmGelu", sizes=size)


@_SETTINGS
@given(mutations(), sizes, opsets, st.booleans(), st.sampled_from(["pow", "mul"]), st.booleans())
def test_gemm_layer_norm(mutate, size, opset, twice, square, gelu) -> None:
    b = Builder(opset)
    y = b.linear(b.input("x", ("B", "S", 8)), 8, N)
    y = b.gelu(y) if gelu else y
    b.output(spelled_out(b, b.op("Add", y, b.input("residual", ("B", "S", N))), square, twice))
    holds(mutate, b, "FusedGemmGeluLayerNorm" if gelu else "FusedGemmLayerNorm", sizes=size)


@_SETTINGS
@given(mutations(), sizes, opsets, st.sampled_from(["full", "basic"]), st.data())
def test_attention(mutate, size, opset, level, data) -> None:
    spec = Attention(
        scale=data.draw(st.sampled_from(["q", "k", "both", "scores_mul", "scores_div", "none"])),
        layout=data.draw(st.sampled_from(["eager", "sdpa"])),
        mask=data.draw(st.sampled_from([*MASKS, "select", "none"])),
        linear=data.draw(st.sampled_from(["matmul_add", "add_matmul", "matmul"])),
        guard=data.draw(st.booleans()),
        factor=data.draw(st.floats(0.05, 2.0)),
    )
    b = Builder(opset)
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, x, spec, None if spec.mask == "none" else b.ids("attention_mask")))
    holds(mutate, b, "FusedAttention" if level == "full" else "AddQKVBias", level, size)


@_SETTINGS
@given(mutations(), sizes, opsets, st.sampled_from(["full", "basic"]), st.sampled_from([*MASKS, "select", "none"]))
def test_layer(mutate, size, opset, level, mask) -> None:
    """All of a layer: what is missed in one part leaves the others as they are."""
    b = Builder(opset)
    x = b.input("x", ("B", "S", HIDDEN))
    context = attend(b, x, Attention(mask=mask), None if mask == "none" else b.ids("attention_mask"))
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    inner = b.linear(erf_gelu(b, b.linear(y, HIDDEN, 2 * HIDDEN), "div", "(x f) / 2", False), 2 * HIDDEN, HIDDEN)
    b.output(b.layer_norm(b.op("Add", inner, y), HIDDEN))
    holds(mutate, b, "FusedGemmLayerNorm", level, size)


@_SETTINGS
@given(mutations(), sizes, opsets, st.booleans(), st.booleans(), st.integers(2, 60), st.integers(9, 60))
def test_embeddings(mutate, size, opset, types, by_range, words, positions) -> None:
    b = Builder(opset)
    ids = b.ids()
    y = lookup(b, words, ids)
    y = b.op("Add", y, lookup(b, 2, b.ids("token_type_ids"))) if types else y
    index = range_positions(b, ids) if by_range else sliced_positions(b, ids, positions)
    b.output(b.layer_norm(b.op("Add", y, lookup(b, positions, index)), HIDDEN))
    holds(mutate, b, "EmbedLayerNorm", sizes=size)


@_SETTINGS
@given(
    sizes, st.lists(st.sampled_from(["Add", "Mul", "Erf", "Tanh", "Div", "Softmax", "MatMul"]), max_size=12), st.data()
)
def test_random_operators(size, ops, data) -> None:
    """No pattern at all, or one by chance."""
    b = Builder()
    made = [b.input("x", ("B", "S", 8))]
    for op in ops:
        x = made[data.draw(st.integers(0, len(made) - 1))]
        other = data.draw(st.sampled_from([*made, "scalar", "vector"]))
        other = b.const({"scalar": 1.5, "vector": np.full(8, 0.7)}[other]) if other not in made else other
        if op == "MatMul":
            made.append(b.op("MatMul", x, b.weight(8, 8)))
        else:
            made.append(b.op(op, x) if op in ("Erf", "Tanh", "Softmax") else b.op(op, x, other))
            if op == "Div":
                made[-1] = b.op("Tanh", made[-1])  # keeps a quotient by almost nothing from growing without bound
    b.output(b.op("Identity", made[-1]))
    fused(b.model(), sizes=size, tol=1e-3)
