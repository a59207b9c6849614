"""What a model promises is counted by other means than fusion matches: a spelling that it misses is told."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnxruntime import quantization

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.attentions import HEADS, HIDDEN, SIZE, heads_of
from tests.graph_rewrite.graphs import Builder, fused, refused
from tests.tiny_models import exported


def layer_norm(b: Builder, x: str, exponent: float, form: str) -> str:
    centred = b.op("Sub", x, b.mean(x))
    total = b.op("Add", b.mean(b.op("Mul", centred, centred)), b.const(1e-5))
    deviation = b.op("Pow", total, b.const(exponent))
    normal = b.op(form, *((centred, deviation) if form != "swapped" else (deviation, centred)))
    return b.op("Add", b.op("Mul", normal, b.weight(HIDDEN)), b.weight(HIDDEN))


@pytest.mark.parametrize("opset", [14, 18])
def test_deviation_as_a_power(opset: int) -> None:
    b = Builder(opset)
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(layer_norm(b, b.op("Add", b.linear(x, HIDDEN, HIDDEN), x), 0.5, "Div"))
    assert fused(b.model()).fused == {"FusedGemmLayerNorm": 1}


@pytest.mark.parametrize(("exponent", "form"), [(-0.5, "Mul"), (-0.5, "Div")])
def test_one_over_the_deviation_is_expected(exponent: float, form: str) -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(layer_norm(b, b.op("Add", b.linear(x, HIDDEN, HIDDEN), x), exponent, form))
    refused(b.model(), "", "FusedGemmLayerNorm")


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("level", ["full", "basic"])
def test_sinks(level: str, centred: bool) -> None:
    """One more score for each head, whose weight no value gets."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    q, k, v = (heads_of(b, b.linear(x, HIDDEN, HIDDEN), perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    scores = b.op("Mul", b.op("MatMul", q, k), b.const(0.5))
    rows = b.op("Gather", b.op("Shape", x), b.const([0, 1]), axis=0)
    shape = b.op("Concat", b.op("Slice", rows, b.const([0]), b.const([1])), b.const([HEADS]),
                 b.op("Slice", rows, b.const([1]), b.const([2])), b.const([1]), axis=0)  # fmt: skip
    sinks = b.op("Expand", b.const(b.random.standard_normal((1, HEADS, 1, 1))), shape)
    together = b.op("Concat", scores, sinks, axis=-1)
    if centred:
        together = b.op("Sub", together, b.op("ReduceMax", together, axes=[-1], keepdims=1))
    weights = b.op("Slice", b.op("Softmax", together, axis=-1), b.const([0]), b.const([-1]), b.const([-1]))
    context = b.op("Transpose", b.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    b.output(b.op("Reshape", context, b.const([0, 0, HEADS * SIZE])))
    refused(b.model(), "sinks", "FusedAttention" if level == "full" else "AddQKVBias", level)


@pytest.mark.parametrize("form", ["dynamic", "QDQ", "QOperator"])
def test_quantised_models_say_so(form: str, tmp_path) -> None:
    source, target = exported("feature-extraction", "torchscript", "eager"), tmp_path / "int8.onnx"
    if form == "dynamic":
        quantization.quantize_dynamic(source, target)
    else:
        quantization.quantize_static(source, target, Feeds(), getattr(quantization.QuantFormat, form))
    result = fuse(onnx.load(target))
    missed = [str(miss) for miss in result.misses]
    assert result.expected["FusedAttention"] == 2 and result.expected["FusedGemmLayerNorm"] == 4, result.expected
    assert result.expected["FusedGemmGelu"] == 2
    told = [text for text in missed if "int8 quantised" in text]
    assert len(told) >= len(missed) - 1, missed  # the embeddings may be quantised or not
    if not result.fused:  # there are layers, and what is wrong with them has been said
        assert result.messages[-1] == "nothing matched, left as it is"


class Feeds(quantization.CalibrationDataReader):
    def __init__(self) -> None:
        from tests.tiny_models import inputs

        self._left = [inputs(2, 9, seed) for seed in range(2)]

    def get_next(self):
        return self._left.pop() if self._left else None


def test_quantised_attention_of_onnx_runtime() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN), np.uint8)
    scale, zero = b.const(0.1), b.const(128, dtype=np.uint8)
    weight = b.const(np.zeros((HIDDEN, 3 * HIDDEN)), dtype=np.int8)
    b.output(
        b.op("QAttention", x, weight, b.weight(3 * HIDDEN), scale, b.const(0.1), "", zero, b.const(0, dtype=np.int8),
             num_heads=HEADS, domain="com.microsoft"), shape=("B", "S", HIDDEN)
    )  # fmt: skip
    refused(b.model(), "int8 quantised (QAttention)", "FusedAttention")


def test_the_same_model_in_floats_says_nothing_of_it() -> None:
    assert fuse(onnx.load(exported("feature-extraction", "torchscript", "eager"))).misses == []
