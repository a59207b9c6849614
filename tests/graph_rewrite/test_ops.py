"""Each fused op: found in every form, refused with a reason, and mixed forms side by side in one model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.attentions import HIDDEN, MASKS, Attention, attend
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused, refused

N = 24
SHAPE = ("B", "S")


def functions(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """The forms that the model carries, each once, and no call without its function."""
    found = [(f.name, f.overload) for f in model.functions]
    assert len(set(found)) == len(found)
    assert {(n.op_type, n.overload) for n in model.graph.node if n.domain == "bertfuse"} == set(found)
    return set(found)


# ---- FusedGemmLayerNorm


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("form", ["matmul_add", "add_matmul", "matmul"])
def test_gemm_layer_norm(swap: bool, form: str) -> None:
    b = Builder()
    y, residual = b.linear(b.input("x", (*SHAPE, 16)), 16, N, form), b.input("residual", (*SHAPE, N))
    b.output(b.layer_norm(b.op("Add", *((residual, y) if swap else (y, residual))), N))
    result = fused(b.model())
    assert result.fused == result.expected == {"FusedGemmLayerNorm": 1}
    assert "residual" in result.model.graph.node[-1].input[3]


def test_the_residual_is_the_input_itself() -> None:
    b = Builder()
    x = b.input("x", (*SHAPE, N))
    b.output(b.layer_norm(b.op("Add", b.linear(x, N, N), x), N))
    assert fused(b.model()).fused == {"FusedGemmLayerNorm": 1}


def test_sum_of_two_projections() -> None:
    b = Builder()
    x = b.input("x", (*SHAPE, N))
    b.output(b.layer_norm(b.op("Add", b.linear(x, N, N), b.linear(x, N, N)), N))
    assert fused(b.model()).fused == {"FusedGemmLayerNorm": 1}


@pytest.mark.parametrize("swap", [False, True])
def test_of_two_projections_one_is_needed_elsewhere(swap: bool) -> None:
    b = Builder()
    x = b.input("x", (*SHAPE, N))
    shared, own = b.linear(x, N, N), b.linear(x, N, N)
    b.output(b.layer_norm(b.op("Add", *((shared, own) if swap else (own, shared))), N), b.op("Neg", shared))
    assert fused(b.model()).fused == {"FusedGemmLayerNorm": 1}


BROADCAST = [(N,), (1, N), (1, 1, N), (1, "S", N), ("B", 1, N), (2, 5, 1), (1,), (1, 1, 1, N)]


@pytest.mark.parametrize("shape", BROADCAST)
@pytest.mark.parametrize("op", ["FusedGemmLayerNorm", "FusedGemmGeluLayerNorm"])
def test_a_residual_that_is_broadcast(shape: tuple[int | str, ...], op: str) -> None:
    b = Builder()
    y = b.linear(b.input("x", (*SHAPE, 16)), 16, N)
    y = b.gelu(y) if op == "FusedGemmGeluLayerNorm" else y
    b.output(b.layer_norm(b.op("Add", y, b.input("residual", shape)), N))
    refused(b.model(), "", op)


def test_x_that_is_broadcast_to_the_residual() -> None:
    b = Builder()
    y = b.linear(b.input("x", (1, "S", 16)), 16, N)
    b.output(b.layer_norm(b.op("Add", y, b.input("residual", ("B", "S", N))), N))
    refused(b.model(), "broadcast", "FusedGemmLayerNorm")


@pytest.mark.parametrize("tensor", ["product", "sum"])
@pytest.mark.parametrize("how", ["exposed", "used"])
def test_gemm_layer_norm_needed_elsewhere(tensor: str, how: str) -> None:
    b = Builder()
    y = b.linear(b.input("x", (*SHAPE, 16)), 16, N)
    total = b.op("Add", y, b.input("residual", (*SHAPE, N)))
    inside = {"product": y, "sum": total}[tensor]
    b.output(b.layer_norm(total, N), inside if how == "exposed" else b.op("Neg", inside))
    if tensor == "sum":
        assert fused(b.model()).fused == {"FusedGemmResidualNorm": 1}
    else:
        refused(b.model(), "needed elsewhere", "FusedGemmLayerNorm")


def _rms_norm(b: Builder, x: str, epsilon: float = 1e-6, columns: int = N) -> str:
    root = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", x, x)), b.const(epsilon)))
    return b.op("Mul", b.op("Div", x, root), b.weight(columns))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("form", ["matmul_add", "matmul"])
@pytest.mark.parametrize("behind", ["rms", "layer"])
def test_norms_on_both_sides_of_a_block(behind: str, form: str, swap: bool) -> None:
    """As in Gemma 3: a block's product is normalised before it is added to what the block began with."""
    b = Builder()
    y, residual = b.linear(b.input("x", (*SHAPE, 16)), 16, N, form), b.input("residual", (*SHAPE, N))
    y = _rms_norm(b, y)
    total = b.op("Add", *((residual, y) if swap else (y, residual)))
    normalised = b.layer_norm(total, N, epsilon=1e-6) if behind == "layer" else _rms_norm(b, total)
    b.output(normalised, b.op("Neg", total))
    result = fused(b.model())
    assert result.fused == {"FusedGemmResidualNorm": 1}
    (node,) = (n for n in result.model.graph.node if n.op_type == "FusedGemmResidualNorm")
    assert len(node.input) == 8 and not [n for n in result.model.graph.node if n.op_type == "ReduceMean"]


NO_SANDWICH = ("another epsilon", "exposed", "used", "product exposed", "product used", "of no product", "gamma of one")


@pytest.mark.parametrize("why", NO_SANDWICH)
def test_norms_on_both_sides_that_are_none(why: str) -> None:
    b = Builder()
    x, residual = b.input("x", (*SHAPE, N)), b.input("residual", (*SHAPE, N))
    product = x if why == "of no product" else b.linear(x, N, N)
    y = _rms_norm(b, product, 1e-3 if why == "another epsilon" else 1e-6, 1 if why == "gamma of one" else N)
    total = b.op("Add", y, residual)
    read = product if why.startswith("product") else y
    more = [read] if why.endswith("exposed") else [b.op("Neg", read)] if why.endswith("used") else []
    b.output(_rms_norm(b, total), b.op("Neg", total), *more)
    # Each norm is one of its own, but the one whose gamma is no row.
    alone = {"FusedRMSNorm": 1 if why == "gamma of one" else 2}
    result = fused(b.model())
    assert result.fused == alone and result.expected == {"FusedRMSNorm": 2}


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("columns", [1, N])
def test_of_two_products_one_is_normalised(columns: int, swap: bool) -> None:
    """That one with its norm where an op takes it, else the other."""
    b = Builder()
    x = b.input("x", (*SHAPE, N))
    parts = _rms_norm(b, b.linear(x, N, N), columns=columns), b.linear(x, N, N)
    total = b.op("Add", *(parts[::-1] if swap else parts))
    b.output(_rms_norm(b, total), b.op("Neg", total))
    result = fused(b.model())
    assert result.fused["FusedGemmResidualNorm"] == 1
    (node,) = (n for n in result.model.graph.node if n.op_type == "FusedGemmResidualNorm")
    assert (len(node.input) == 8) == (columns == N)


def test_layer_norm_before_the_projection() -> None:
    """Pre-LN: nothing is promised."""
    b = Builder()
    x = b.input("x", (*SHAPE, N))
    b.output(b.op("Add", x, b.linear(b.layer_norm(x, N), N, N)))
    result = fused(b.model())
    assert not result.fused and not result.expected


# ---- FusedGemmGelu and FusedGemmGeluLayerNorm


@pytest.mark.parametrize("residual", ["none", "left", "right"])
@pytest.mark.parametrize("opset", [13, 17, 20])
def test_gemm_gelu_layer_norm(residual: str, opset: int) -> None:
    b = Builder(opset)
    y = b.linear(b.input("x", (*SHAPE, 16)), 16, N)
    y = b.op("Gelu", y) if opset >= 20 else b.gelu(y)
    if residual != "none":
        other = b.input("residual", (*SHAPE, N))
        y = b.op("Add", *((other, y) if residual == "left" else (y, other)))
    b.output(b.layer_norm(y, N))
    result = fused(b.model())
    assert result.fused == result.expected == {"FusedGemmGeluLayerNorm": 1}


def test_gelu_needed_elsewhere_is_fused_as_far_as_it_goes() -> None:
    b = Builder()
    y = b.gelu(b.linear(b.input("x", (*SHAPE, 16)), 16, N))
    b.output(b.layer_norm(y, N), b.op("Neg", y))
    result = refused(b.model(), "needed elsewhere", "FusedGemmGeluLayerNorm")
    assert result.fused == {"FusedGemmGelu": 1}


def test_gelu_of_a_sum_is_no_epilogue() -> None:
    b = Builder()
    y = b.op("Add", b.linear(b.input("x", (*SHAPE, 16)), 16, N), b.input("other", (*SHAPE, N)))
    b.output(b.gelu(y))
    result = fused(b.model())
    assert not result.fused


def test_mixed_forms_in_one_model() -> None:
    """With and without residual, by erf and by tanh, biased and not: three overloads of one op."""
    b = Builder(20)
    x = b.input("x", (*SHAPE, N))
    y = b.layer_norm(b.op("Gelu", b.linear(x, N, N)), N)
    y = b.layer_norm(b.op("Gelu", b.linear(y, N, N, "matmul")), N)
    y = b.layer_norm(b.op("Add", b.op("Gelu", b.linear(y, N, N)), x), N)
    b.output(b.layer_norm(b.op("Gelu", b.linear(y, N, N), approximate="tanh"), N))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGeluLayerNorm": 4}
    assert len(functions(result.model)) == 3


def test_epsilons_are_attributes_of_one_function() -> None:
    b = Builder()
    y = b.input("x", (*SHAPE, N))
    for epsilon in (1e-12, 1e-5, 0.5):
        y = b.layer_norm(b.op("Add", b.linear(y, N, N), y), N, epsilon)
    b.output(y)
    result = fused(b.model())
    assert result.fused == {"FusedGemmLayerNorm": 3}
    assert functions(result.model) == {("FusedGemmLayerNorm", "")}


def test_everything_shared_by_two_layers() -> None:
    b = Builder()
    y = b.input("x", (*SHAPE, N))
    weight, bias, gamma, beta = b.weight(N, N), b.weight(N), b.weight(N), b.weight(N)
    for _ in range(3):
        total = b.op("Add", y, b.linear(y, N, N, weight=weight, bias=bias))
        y = b.layer_norm(total, N, gamma=gamma, beta=beta)
    b.output(y)
    result = fused(b.model())
    assert result.fused == {"FusedGemmLayerNorm": 3}
    assert len(result.model.graph.initializer) == 4
    assert len({tuple(n.input[1:3]) for n in result.model.graph.node}) == 1


def test_one_vector_as_bias_and_beta() -> None:
    b = Builder()
    x, both = b.input("x", (*SHAPE, N)), b.weight(N)
    b.output(b.layer_norm(b.op("Add", b.linear(x, N, N, bias=both), x), N, beta=both))
    assert fused(b.model()).fused == {"FusedGemmLayerNorm": 1}


def test_missing_biases_share_one_zero_vector() -> None:
    b = Builder()
    y = b.input("x", (*SHAPE, N))
    for _ in range(2):
        y = b.layer_norm(b.op("Add", b.linear(y, N, N, "matmul"), y), N)
    b.output(y)
    result = fused(b.model())
    assert result.fused == {"FusedGemmLayerNorm": 2}
    assert len({n.input[2] for n in result.model.graph.node}) == 1


# ---- a whole layer


def layer(b: Builder, x: str, mask: str, spec: Attention) -> str:
    context = attend(b, x, spec, mask)
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    inner = b.gelu(b.linear(y, HIDDEN, 32))
    return b.layer_norm(b.op("Add", y, b.linear(inner, 32, HIDDEN)), HIDDEN)


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_layers(level: str, opset: int, dtype: type) -> None:
    b = Builder(opset, dtype)
    x, mask = b.input("x", (*SHAPE, HIDDEN)), b.ids("attention_mask")
    additive = MASKS["dtype-min"](b, mask)
    for scale, order in (("q", False), ("scores_div", True)):
        x = layer(b, x, mask, Attention(scale=scale, swap=order, parts={"mask": additive}))
    b.output(x)
    result = fused(b.model(), level, tol=2e-2 if dtype == np.float16 else 1e-4)
    attention = "FusedAttention" if level == "full" else "AddQKVBias"
    assert result.fused == result.expected == {attention: 2, "FusedGemmLayerNorm": 4, "FusedGemmGelu": 2}
    assert result.misses == []
    functions(result.model)
    if level == "full":
        assert len(result.model.graph.node) == 2 * 5 + 4  # and ReduceMax, Max, Equal and Cast: the greatest shows a key


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_conversion_of_layers(dtype: str) -> None:
    b = Builder()
    x, mask = b.input("x", (*SHAPE, HIDDEN)), b.ids("attention_mask")
    b.output(layer(b, x, mask, Attention(mask="where")))
    model = b.model()
    result = fuse(model, dtype=dtype)
    assert sum(result.fused.values()) == 4
    onnx.checker.check_model(result.model, full_check=True)
    element = {"fp32": 1, "fp16": 10, "bf16": 16}[dtype]
    floats = [v for v in (*result.model.graph.input, *result.model.graph.output) if v.name != "attention_mask"]
    assert {v.type.tensor_type.elem_type for v in floats} == {element}
    assert {t.data_type for t in result.model.graph.initializer} == {element}
    if dtype == "fp32":
        assert_agree(model, result.model, feeds(model), 1e-4)


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize(("width", "form"), [(HIDDEN, "matmul_add"), (HIDDEN, "matmul")])
def test_layers_in_bfloat16(level: str, width: int, form: str) -> None:
    """ONNX Runtime has no bfloat16 on the CPU: here the graph is checked, the bodies are run in their own tests."""
    b = Builder(dtype=ml_dtypes.bfloat16)
    x, mask = b.input("x", (*SHAPE, width)), b.ids("attention_mask")
    b.output(layer(b, x, mask, Attention(mask="where", linear=form)))
    model = b.model()
    result = fuse(model, level=level)
    attention = "FusedAttention" if level == "full" else "AddQKVBias"
    assert result.misses == []
    assert result.fused == {attention: 1, "FusedGemmLayerNorm": 2, "FusedGemmGelu": 1}
    onnx.checker.check_model(result.model, full_check=True)
    before = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for tensor in result.model.graph.initializer:
        assert tensor.data_type in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.INT64)
        if tensor.name in before:
            assert onnx.numpy_helper.to_array(tensor).tobytes() == before[tensor.name].tobytes()


def test_large_weights_in_bfloat16() -> None:
    b = Builder(dtype=ml_dtypes.bfloat16)
    b.output(b.gelu(b.linear(b.input("x", (*SHAPE, 256)), 256, 256, "matmul", b.weight(256, 256, name="weight"))))
    model = b.model()
    result = fuse(model)
    assert result.fused == {"FusedGemmGelu": 1}
    onnx.checker.check_model(result.model, full_check=True)
    weight = next(t for t in result.model.graph.initializer if t.dims[0] == 256 and len(t.dims) == 2)
    want = onnx.numpy_helper.to_array(model.graph.initializer[0]).T
    assert onnx.numpy_helper.to_array(weight).tobytes() == want.tobytes()


def test_a_broken_layer_between_whole_ones() -> None:
    """One near-miss costs itself alone, and says so."""
    b = Builder()
    x, mask = b.input("x", (*SHAPE, HIDDEN)), b.ids("attention_mask")
    x = layer(b, x, mask, Attention())
    x = layer(b, x, mask, Attention(parts={"v_x": b.op("Tanh", x)}))
    b.output(layer(b, x, mask, Attention()))
    result = fused(b.model(), tol=1e-4)
    assert result.fused == {"FusedAttention": 2, "FusedGemmLayerNorm": 6, "FusedGemmGelu": 3}
    (miss,) = result.misses
    assert miss.op == "FusedAttention" and "V projects" in miss.reason


@pytest.mark.parametrize("read", ["once", "twice"])
def test_a_norm_that_is_left_is_one_that_the_runtime_fuses(read: str) -> None:
    """Of a model of which only what BERT has is fused, where an inverse root is multiplied with."""
    b = Builder(opset=18)
    x = b.input("x", (*SHAPE, N))
    mean = b.op("ReduceMean", b.op("Pow", x, b.const(2.0)), b.const(np.array([-1])), keepdims=1)
    inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", mean, b.const(1e-6))))
    y = b.op("Mul", b.op("Mul", x, inverse), b.weight(N))
    b.output(b.gelu(b.linear(y, N, N)), *([b.op("Neg", inverse)] if read == "twice" else []))
    result = fused(b.model(), level="basic", optimise=False)
    ops = {node.op_type for node in result.model.graph.node}
    assert result.fused and ("Div" in ops, "Reciprocal" in ops) == (read == "once", read == "twice")
    options = onnxruntime.SessionOptions()
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(result.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimised = {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}
    assert ("SimplifiedLayerNormalization" in optimised) == (read == "once")
