"""Graphs that no exporter writes, but ONNX allows: fused into the same function, or refused, never a crash."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from bertfuse.errors import BertfuseError, FusionError
from bertfuse.graph_rewrite import explain, fuse
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import split
from bertfuse.graph_rewrite.nodes import NoMatch
from bertfuse.runtime.library import register
from tests.graph_rewrite.attentions import HIDDEN, Attention, attend
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused, refused, run
from tests.tiny_models import EXPORTERS, exported, inputs

WIDTH = 8


@pytest.mark.parametrize(
    ("build", "op"),
    [
        (lambda b, p: b.op("Add", p, p), "FusedGemmLayerNorm"),
        (lambda b, p: b.op("Add", b.gelu(p), p), "FusedGemmGeluLayerNorm"),
        (lambda b, p: b.op("Add", b.gelu(p), b.gelu(p)), "FusedGemmGeluLayerNorm"),
    ],
)
def test_projection_that_is_its_own_residual(build, op: str) -> None:
    b = Builder()
    p = b.linear(b.input("x", ("B", "S", WIDTH)), WIDTH, WIDTH)
    b.output(b.layer_norm(build(b, p), WIDTH))
    refused(b.model(), "", op)


def body(nodes: list[onnx.NodeProto], output: str, initializer: tuple = ()) -> onnx.GraphProto:
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    return helper.make_graph(nodes, f"body_{output}", [], outputs, list(initializer))


@pytest.mark.parametrize("width", [WIDTH, 160])  # 160: a matrix that is kept beside the graph
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_bodies_read_what_fusion_uses(width: int, nested: bool, chosen: bool) -> None:
    """A weight, an input and an intermediate tensor of a fused layer, read in the branches of an If as well."""
    b = Builder()
    x, condition = b.input("x", ("B", "S", width)), b.input("condition", (), bool)
    weight, only_inside = b.weight(width, width), b.weight(width, width)
    y = b.layer_norm(b.op("Add", b.linear(x, width, width, weight=weight), x), width)
    own = helper.make_tensor("own", TensorProto.FLOAT, [1], [2.0])
    then = body(
        [helper.make_node("MatMul", [y, weight], ["t1"]), helper.make_node("Mul", ["t1", "own"], ["then_y"])],
        "then_y",
        (own,),
    )
    other = body(
        [helper.make_node("MatMul", [x, only_inside], ["e1"]), helper.make_node("Add", ["e1", y], ["else_y"])], "else_y"
    )
    if nested:
        inner = helper.make_node("If", ["condition"], ["nested_y"], then_branch=then, else_branch=body(
            [helper.make_node("Neg", [weight], ["n1"]), helper.make_node("MatMul", [x, "n1"], ["n2"])], "n2"
        ))  # fmt: skip
        then = body([inner], "nested_y")
    b.output(b.op("If", condition, then_branch=then, else_branch=other), shape=("B", "S", width))
    model = b.model()
    result = fuse(model)
    assert result.fused == {"FusedGemmLayerNorm": 1}
    onnx.checker.check_model(result.model, full_check=True)
    feed = feeds(model) | {"condition": np.array(chosen)}
    assert_agree(model, result.model, feed, 1e-5)


def test_loop_that_reads_a_projection(seed: int = 0) -> None:
    b = Builder(seed=seed)
    x = b.input("x", ("B", "S", WIDTH))
    p = b.linear(x, WIDTH, WIDTH)
    y = b.layer_norm(b.op("Add", p, x), WIDTH)
    looped = _looped(b, y, 3, helper.make_node("Add", ["carried", p], ["next"]))
    b.output(looped, shape=("B", "S", WIDTH))
    refused(b.model(), "is an output of the graph", "FusedGemmLayerNorm")


def _looped(b: Builder, x: str, turns: int, node: onnx.NodeProto) -> str:
    """x after some turns of the node, from "carried" to "next": only a declaration can tell the result's rank."""
    step = helper.make_graph(
        [node, helper.make_node("Identity", ["go"], ["going"])],
        "step",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    return b.op("Loop", b.const(turns), b.const(True, dtype=bool), x, body=step)


@pytest.mark.parametrize("between", [0, 1])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [None, "fp16"])
def test_scan_over_what_a_loop_gives(between: int, nested: bool, dtype: str | None) -> None:
    """ONNX Runtime runs it only where it knows the rank."""
    b = Builder()
    x = b.input("x", ("B", "S", WIDTH))
    y = b.layer_norm(b.op("Add", b.linear(x, WIDTH, WIDTH), x), WIDTH)
    looped = _looped(b, x, 1, helper.make_node("Identity", ["carried"], ["next"]))
    scanned = b.op("Abs", looped) if between else looped
    each = helper.make_graph(
        [helper.make_node("Neg", ["row"], ["negative"])],
        "each",
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("negative", TensorProto.FLOAT, None)],
    )
    if nested:
        scan = helper.make_node("Scan", [scanned], ["z"], body=each, num_scan_inputs=1)
        bodies = {f"{name}_branch": body([scan], "z") for name in ("then", "else")}
        z = b.op("If", b.op("Gather", b.const([True], dtype=bool), b.const(0)), **bodies)
    else:
        z = b.op("Scan", scanned, body=each, num_scan_inputs=1)
    b.output(y, z, shape=("B", "S", WIDTH))
    model = b.model()
    model.graph.value_info.append(helper.make_tensor_value_info(looped, TensorProto.FLOAT, ("B", "S", WIDTH)))
    if dtype is None:
        assert fused(model).fused == {"FusedGemmLayerNorm": 1}
        return
    feed = feeds(model)
    for before, after in zip(run(model, feed), run(fuse(model, dtype=dtype).model, feed), strict=True):
        np.testing.assert_allclose(after.astype(np.float32), before, rtol=1e-2, atol=1e-2)


def test_attributes_that_the_graph_library_does_not_know() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", WIDTH))
    values = helper.make_tensor("values", TensorProto.FLOAT, [1], [3.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, [1], [2])
    sparse = b.op("Constant", sparse_value=helper.make_sparse_tensor(values, indices, [WIDTH]))
    b.output(b.gelu(b.linear(b.op("Add", x, sparse), WIDTH, WIDTH)))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


def test_sparse_initialisers_are_refused() -> None:
    b = Builder()
    b.output(b.gelu(b.linear(b.input("x", ("B", "S", WIDTH)), WIDTH, WIDTH, weight="sparse")))
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("places", TensorProto.INT64, [2], [3, 40])
    model = onnx.ModelProto()
    graph = helper.make_graph(b.nodes, "small", b.inputs, b.outputs, b.initializers)
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [WIDTH, WIDTH]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(FusionError, match="'sparse' is sparse"):
        fuse(model)


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_split_that_contradicts_itself(parts: int) -> None:
    """onnx's shape inference ends the process at one."""
    b = Builder(18)
    x = b.input("x", ("B", "S", WIDTH))
    y = b.gelu(b.linear(x, WIDTH, WIDTH))
    b.nodes.append(helper.make_node("Split", [y], ["first", "second"], name="halves", axis=2, num_outputs=2))
    b.output(b.op("Add", "first", "second"))
    model = b.model()
    split = next(node for node in model.graph.node if node.op_type == "Split")
    next(a for a in split.attribute if a.name == "num_outputs").i = parts
    with pytest.raises(FusionError, match=f"Split 'halves' has num_outputs {parts} and 2 outputs"):
        fuse(model)


@pytest.mark.parametrize("keepdims", [-1, 2])
def test_keepdims_that_is_neither_0_nor_1(keepdims: int) -> None:
    b = Builder(17)
    x = b.input("x", ("B", "S", WIDTH))
    b.output(b.op("ReduceMean", b.gelu(b.linear(x, WIDTH, WIDTH)), axes=[1], keepdims=0))
    model = b.model()
    reduce = next(node for node in model.graph.node if node.op_type == "ReduceMean")
    next(a for a in reduce.attribute if a.name == "keepdims").i = keepdims
    with pytest.raises(FusionError, match=f"ReduceMean .* has keepdims {keepdims}, not 0 or 1"):
        fuse(model)


@pytest.mark.parametrize("seen", [True, False])
def test_expand_by_a_shape_of_two_axes(seen: bool) -> None:
    """Where the axes are computed, ONNX's inference sees the fault only once they are folded."""
    b = Builder(17)
    y = b.gelu(b.linear(b.input("x", ("B", "S", WIDTH)), WIDTH, WIDTH))
    axes = b.const([0]) if seen else b.op("Min", b.const([0]), b.const([0]))
    shape = b.op("Unsqueeze", b.op("Shape", y), axes)
    b.output(b.op("Identity", y, name="output"), shape=("B", "S", WIDTH))
    model = b.model()
    model.graph.node[-1].CopyFrom(helper.make_node("Expand", [y, shape], [b.outputs[0].name], "by_two_axes"))
    with pytest.raises(FusionError, match=r"^the model is not valid .*: Expand 'by_two_axes': shape input must be 1D"):
        fuse(model)
    with pytest.raises(FusionError, match="by_two_axes"):
        explain(model)


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_no_row_and_no_token(exporter: str, level: str, library) -> None:
    path = exported("feature-extraction", exporter)
    model = onnx.load(path)
    result = fuse(model, level=level)
    assert result.complete
    for batch, sequence in ((0, 3), (0, 0), (2, 0), (1, 1)):
        feed = {name: array[:batch] for name, array in inputs(2, sequence).items()}
        try:
            wanted = run(model, feed)
        except Exception:
            continue
        for got, want in zip(run(result.model, feed, True), wanted, strict=True):
            assert got.shape == want.shape
        options = onnxruntime.SessionOptions()
        register(options)
        session = onnxruntime.InferenceSession(result.model.SerializeToString(), options)
        for got, want in zip(session.run(None, feed), wanted, strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype


@pytest.mark.parametrize("opset", [13, 14, 15, 17, 18])
@pytest.mark.parametrize("level", ["full", "basic"])
def test_attention_over_nothing(opset: int, level: str) -> None:
    b = Builder(opset)
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, x, Attention(), b.ids("attention_mask")))
    model = b.model()
    result = fused(model, level)
    assert len(result.fused) == 1
    for batch, sequence in ((0, 3), (0, 0), (2, 0)):
        assert_agree(model, result.model, feeds(model, {"B": batch, "S": sequence}), 0)


UNARY = ("Erf", "Tanh", "Sqrt", "Neg", "Gelu", "Softmax", "Identity", "ReduceMean", "LayerNormalization", "Abs")
BINARY = ("Add", "Mul", "Sub", "Div", "MatMul", "Pow")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_graphs_of_the_operators_of_an_encoder(data: st.DataObject) -> None:
    """Whatever they are strung together to, the fused model computes the same, or there is a one-line error."""
    draw = data.draw
    opset = draw(st.sampled_from((13, 17, 20, 21)))
    b = Builder(opset, seed=draw(st.integers(0, 9)))
    width = draw(st.sampled_from((1, 2, 4)))
    rank = draw(st.integers(1, 4))
    axes = ("B", "S", width, width)[4 - rank :] if rank < 3 else ("B", "S", *(width,) * (rank - 2))
    tensors = [b.input("x", axes)]
    constants = [
        b.const(0.5),
        b.const(np.sqrt(2.0)),
        b.const(1.0),
        b.const([1.0]),
        b.weight(width),
        b.weight(width, width),
    ]
    constants += [b.const([[[1.0]]]), b.const(2.0), b.const(1e-5)]
    for _ in range(draw(st.integers(1, 14))):
        op = draw(st.sampled_from((*UNARY, *BINARY, "linear", "gelu", "layer_norm", "residual", "attend", "Reshape")))
        recent = st.sampled_from(tensors[-3:])
        x = draw(recent)
        if op in BINARY:
            y = draw(st.one_of(recent, st.sampled_from(constants)))
            made = b.op(op, *draw(st.sampled_from(((x, y), (y, x)))))
        elif op == "linear":
            made = b.linear(x, width, width, draw(st.sampled_from(("matmul_add", "matmul", "add_matmul"))))
        elif op == "gelu":
            made = b.gelu(x)
        elif op == "layer_norm":
            made = b.layer_norm(x, width)
        elif op == "residual":
            made = b.layer_norm(b.op("Add", b.linear(x, width, width), draw(recent)), width)
        elif op == "attend":
            q, k, v = (b.linear(x, width, width) for _ in range(3))
            scores = b.op("MatMul", q, b.op("Transpose", k, perm=draw(st.permutations(range(rank)))))
            made = b.op("MatMul", b.op("Softmax", scores, axis=draw(st.integers(-2, 1))), v)
        elif op == "Reshape":
            made = b.op("Reshape", x, b.const(draw(st.lists(st.sampled_from((-1, 0, 1, width)), max_size=4))))
        elif op == "ReduceMean":
            made = b.mean(x, draw(st.sampled_from(((-1,), (0,), (-1, 0)))))
        elif op == "LayerNormalization":
            made = b.op(op, x, draw(st.sampled_from(constants)), axis=draw(st.integers(-2, 2)))
        else:
            made = b.op(op, x)
        tensors.append(made)
    b.output(*draw(st.sets(st.sampled_from(tensors[1:]), min_size=1, max_size=3)))
    try:
        model = b.model()
    except onnx.shape_inference.InferenceError:
        return
    try:
        result = fuse(model)
    except BertfuseError as error:
        assert "\n" not in str(error)
        return
    if not result.fused:
        return
    for sizes in ({"B": 2, "S": 3}, {"B": 1, "S": width}):
        feed = feeds(model, sizes)
        try:
            wanted = run(model, feed)
        except Exception:
            continue
        got = run(result.model, feed)
        for a, c in zip(got, wanted, strict=True):
            assert a.shape == c.shape
            np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-3)


def test_a_failed_rewrite_takes_its_nodes_along_and_no_others() -> None:
    """Of what was added only what something reads stays; what fed it lives on where the model reads it, too."""
    b = Builder()
    x = b.input("x", ("B", 16))
    kept = b.op("Tanh", x)
    b.output(b.op("Neg", kept))
    graph = FusionGraph(*split(b.model()))
    tanh, neg = graph.gs.nodes
    (source,) = tanh.outputs

    def made(name: str, *inputs: gs.Tensor) -> gs.Variable:
        output = graph.variable(name, source.dtype, source.shape)
        graph.add_node("Abs", list(inputs), [output])
        return output

    read = []
    with pytest.raises(NoMatch), graph.transaction():
        made("two", made("one", source))
        read.append(made("read", source))
        neg.inputs[0] = read[0]
        raise NoMatch(tanh, "fails")
    assert [node.outputs[0].name for node in graph.gs.nodes if node.outputs] == [kept, neg.outputs[0].name, "read"]
    with graph.transaction():
        made("three", source)
    assert graph.gs.nodes[-1].outputs[0].name == "three"
