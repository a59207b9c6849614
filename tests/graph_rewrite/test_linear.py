"""Linear layers in every spelling, seen through the op that they are fused into."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused, normalised, refused

FORMS = ("matmul_add", "add_matmul", "matmul", "gemm", "gemm_transposed", "gemm_without_bias")


def with_gelu(form: str, shape: tuple[int | str, ...] = ("B", 16)) -> Builder:
    b = Builder()
    x = b.input("x", shape)
    b.output(b.gelu(b.linear(x, 16, 24, form)))
    return b


@pytest.mark.parametrize("form", FORMS)
def test_every_spelling(form: str) -> None:
    result = fused(with_gelu(form).model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    (node,) = (node for node in result.model.graph.node if node.op_type == "FusedGemmGelu")
    weight = next(t for t in result.model.graph.initializer if t.name == node.input[1])
    assert list(weight.dims) == [24, 16]


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("shape", [(16,), (1, 16), ("B", "S", 16), (2, 3, "S", 16)])
def test_any_rank(form: str, shape: tuple[int | str, ...]) -> None:
    assert fused(with_gelu(form, shape).model()).fused == {"FusedGemmGelu": 1}


def test_weight_from_constant_node() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    value = numpy_helper.from_array(b.random.standard_normal((16, 24)).astype(np.float32) / 4)
    product = b.op("MatMul", x, b.op("Constant", value=value))
    bias = b.op("Constant", value=numpy_helper.from_array(np.ones(24, np.float32)))
    b.output(b.gelu(b.op("Add", product, bias)))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 1}


def test_shared_weight_is_transposed_once() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    weight, bias = b.weight(16, 16, name="weight"), b.weight(16, name="bias")
    y = b.gelu(b.linear(x, 16, 16, weight=weight, bias=bias))
    b.output(b.gelu(b.linear(y, 16, 16, weight=weight, bias=bias)))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 2}
    nodes = [node for node in result.model.graph.node if node.op_type == "FusedGemmGelu"]
    assert list(nodes[0].input[1:]) == list(nodes[1].input[1:])
    assert sum(len(t.dims) == 2 for t in result.model.graph.initializer) == 1


def test_weight_also_used_untransposed() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    weight = b.weight(16, 16)
    b.output(b.gelu(b.linear(x, 16, 16, weight=weight)), b.op("Sub", b.op("Tanh", x), b.op("ReduceMax", weight)))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


def transposed_weight(b: Builder, x: str, perm: list[int] | None = None, op: str = "MatMul") -> str:
    options = {} if perm is None else {"perm": perm}
    weight = b.op("Transpose", b.weight(24, 16, name="weight"), **options)
    return b.op("Add", b.op("MatMul", x, weight), b.weight(24)) if op == "MatMul" else b.op(op, x, weight, b.weight(24))


@pytest.mark.parametrize("perm", [None, [1, 0]])
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_weight_transposed_by_a_node(perm: list[int] | None, op: str) -> None:
    """As exporters write it that fold no constants; the op takes the weight as it is stored."""
    b = Builder()
    b.output(b.gelu(transposed_weight(b, b.input("x", ("B", 16)), perm, op)))
    result = fused(b.model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    (node,) = (node for node in result.model.graph.node if node.op_type == "FusedGemmGelu")
    assert node.input[1] == "weight"
    assert not any(node.op_type == "Transpose" for node in result.model.graph.node)


def test_gemm_of_a_weight_transposed_twice() -> None:
    b = Builder()
    weight = b.op("Transpose", b.weight(16, 24), perm=[1, 0])
    b.output(b.gelu(b.op("Gemm", b.input("x", ("B", 16)), weight, b.weight(24), transB=1)))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


def test_transposed_by_nobody() -> None:
    """A Transpose that keeps its axes is no transposed weight."""
    b = Builder()
    weight = b.op("Transpose", b.weight(16, 24), perm=[0, 1])
    b.output(b.gelu(b.op("MatMul", b.input("x", ("B", 16)), weight, name="the_product")))
    assert not fused(b.model()).fused
    assert "expected a constant matrix" in normalised(b.model())[1]["the_product"]


def flattened(b: Builder, form: str, back: str = "inferred") -> str:
    """[B, S, 16] to [B*S, 16], a product of two axes, and back."""
    x = b.input("x", ("B", "S", 16))
    y = b.linear(b.op("Reshape", x, b.const([-1, 16])), 16, 24, form)
    sizes = {name: b.op("Gather", b.op("Shape", x), b.const([i]), axis=0) for i, name in enumerate("BS")}
    order = {"inferred": "BS", "exchanged": "SB"}[back]
    return b.op("Reshape", y, b.op("Concat", *(sizes[name] for name in order), b.const([24]), axis=0))


@pytest.mark.parametrize("form", [*FORMS])
def test_flattened_to_two_axes(form: str) -> None:
    b = Builder()
    b.output(b.gelu(flattened(b, form)))
    result = fused(b.model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    (node,) = (node for node in result.model.graph.node if node.op_type == "FusedGemmGelu")
    assert node.input[0] == "x"


def test_flattened_and_not_brought_back_as_it_was() -> None:
    """[S, B, 24] holds the same numbers in the same order, under other axes: the Reshapes stay."""
    b = Builder()
    b.output(b.gelu(flattened(b, "gemm", "exchanged")))
    assert not fused(b.model(), sizes={"B": 2, "S": 3}).fused


def near_miss(kind: str) -> tuple[Builder, str]:
    b = Builder()
    x = b.input("x", ("B", 16))
    name = "the_product"
    if kind == "weight is an input":
        b.op("MatMul", x, b.input("w", (16, 24)), name=name)
        return b, "expected a constant matrix"
    if kind == "constant on the left":
        b.op("MatMul", b.weight(3, 16), b.op("Transpose", x, perm=[1, 0]), name=name)
        return b, "expected a constant matrix"
    if kind == "weight of three axes":
        b.op("MatMul", x, b.weight(2, 16, 24), name=name)
        return b, "expected a constant matrix"
    if kind == "weight is a vector":
        b.op("MatMul", x, b.weight(16), name=name)
        return b, "expected a constant matrix"
    if kind == "both constant":
        b.op("MatMul", b.weight(3, 16), b.weight(16, 24), name=name)
        return b, "both operands are constants"
    if kind == "gemm weight is an input":
        b.op("Gemm", x, b.input("w", (16, 24)), name=name)
        return b, "expected a constant matrix"
    if kind == "gemm alpha":
        b.op("Gemm", x, b.weight(16, 24), b.weight(24), alpha=0.5, name=name)
    elif kind == "gemm beta":
        b.op("Gemm", x, b.weight(16, 24), b.weight(24), beta=2.0, name=name)
    elif kind == "gemm transA":
        b.op("Gemm", b.op("Transpose", x, perm=[1, 0]), b.weight(16, 24), b.weight(24), transA=1, name=name)
    elif kind == "gemm bias is an input":
        b.op("Gemm", x, b.weight(16, 24), b.input("c", (24,)), name=name)
        return b, "expected a constant vector of 24"
    elif kind == "gemm bias of one":
        b.op("Gemm", x, b.weight(16, 24), b.weight(1), name=name)
        return b, "expected a constant vector of 24"
    elif kind == "gemm bias matrix":
        b.op("Gemm", x, b.weight(16, 24), b.weight(1, 24), name=name)
        return b, "expected a constant vector of 24"
    return b, f"{kind.split()[1]} is "


NEAR_MISSES = [
    "weight is an input", "constant on the left", "weight of three axes", "weight is a vector", "both constant",
    "gemm weight is an input", "gemm alpha", "gemm beta", "gemm transA", "gemm bias is an input", "gemm bias of one",
    "gemm bias matrix",
]  # fmt: skip


@pytest.mark.parametrize("kind", NEAR_MISSES)
def test_near_misses(kind: str) -> None:
    b, reason = near_miss(kind)
    y = b.nodes[-1].output[0]
    b.output(b.gelu(y))
    model = b.model()
    counts, reasons = normalised(model)
    assert "Linear" not in counts
    assert reason in reasons["the_product"]
    assert not fused(model).fused


@pytest.mark.parametrize("shape", [(1,), (1, 24), (5, 24), (1, 1, 24), ()])
def test_bias_of_wrong_shape_is_no_bias(shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input("x", (5, 16))
    y = b.op("Add", b.linear(x, 16, 24, "matmul"), b.weight(*shape))
    b.output(b.gelu(y))
    counts, _ = normalised(b.model())
    assert counts["Linear"] == 1
    refused(b.model(), "Add", "FusedGemmGelu")


def test_product_used_twice_keeps_bias_out() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    product = b.linear(x, 16, 24, "matmul")
    biased = b.op("Add", product, b.weight(24))
    b.output(b.gelu(biased), b.op("Neg", product))
    refused(b.model(), "Add", "FusedGemmGelu")


@pytest.mark.parametrize("exposed", ["product", "biased"])
def test_exposed_as_graph_output(exposed: str) -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    product = b.linear(x, 16, 24, "matmul")
    biased = b.op("Add", product, b.weight(24))
    b.output(b.gelu(biased), {"product": product, "biased": biased}[exposed])
    refused(b.model(), "Add" if exposed == "product" else "is an output of the graph", "FusedGemmGelu")


def test_product_plus_itself() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    product = b.linear(x, 16, 24, "matmul")
    b.output(b.gelu(b.op("Add", product, product)))
    refused(b.model(), "Add", "FusedGemmGelu")


def test_two_constant_biases() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    b.output(b.gelu(b.op("Add", b.linear(x, 16, 24), b.weight(24))))
    refused(b.model(), "Add", "FusedGemmGelu")


def test_weight_that_a_feed_may_override() -> None:
    """An initialiser that is also a graph input is only a default: fusion must not bake it in."""
    b = Builder()
    x = b.input("x", ("B", 16))
    weight = b.weight(16, 24, name="weight")
    b.output(b.gelu(b.linear(x, 16, 24, weight=weight)))
    b.input("weight", (16, 24))
    y = b.gelu(b.linear(x, 16, 24))  # something is fused, the rest is written anew
    b.output(y)
    model = b.model()
    result = fuse(model)
    assert result.fused == {"FusedGemmGelu": 1}
    for feed in ({}, {"weight": np.full((16, 24), 0.1, np.float32)}):
        assert_agree(model, result.model, {"x": feeds(model)["x"]} | feed, 1e-5)


@pytest.mark.parametrize("shape", [("R", "S", 8), ("B", "T", 8), (None, None, 8), (1, "S", 8), ("B", 1, 8)])
def test_residual_whose_shape_may_be_another(shape: tuple) -> None:
    """Two names may be one size; that they are does not follow from the graph."""
    b = Builder()
    x, residual = b.input("x", ("B", "S", 8)), b.input("residual", shape)
    b.output(b.layer_norm(b.op("Add", b.linear(x, 8, 8), residual), 8))
    result = fuse(b.model())
    assert result.fused == {} and "ops do not broadcast" in str(result.misses[0])


def test_residual_of_unnamed_axes_through_a_layer() -> None:
    """What a layer makes of x has x's rows, however they are called."""
    b = Builder()
    x = b.input("x", (None, None, 8))
    y = b.layer_norm(b.op("Add", b.linear(x, 8, 8), x), 8)
    z = b.linear(b.gelu(b.linear(y, 8, 24)), 24, 8)
    b.output(b.layer_norm(b.op("Add", z, y), 8))
    assert fuse(b.model()).fused == {"FusedGemmLayerNorm": 2, "FusedGemmGelu": 1}
