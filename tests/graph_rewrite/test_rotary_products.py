"""Rotations of Q and K move from attention into the product, and stay where something lies between or reads it, too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from bertfuse import InferenceSession
from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import split
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.passes import rotary_products
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.measuring.differences import TOLERANCES
from tests.graph_rewrite.graphs import Builder
from tests.graph_rewrite.variants import HIDDEN, Variant, model

ATTENTION, PRODUCT, ROTARY = "FusedAttentionVariant", "FusedGemm", "FusedGemmRotary"


def inputs_of(found: onnx.ModelProto, op: str) -> list[set[str]]:
    """Names of the inputs that each node of an op has."""
    names = [tensor.name for tensor in OPS[op].inputs]
    nodes = [node for node in found.graph.node if node.op_type == op]
    return [{name for name, given in zip(names, node.input, strict=False) if given} for node in nodes]


def report(result: FusionResult) -> list[str]:
    return [text for one in result.passes if one.name == rotary_products.NAME for text in (*one.done, *one.left)]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., onnx.ModelProto]:
    """Fuses a model as before there was this pass: attention rotates."""

    def fused(before: onnx.ModelProto, **options: object) -> onnx.ModelProto:
        with monkeypatch.context() as patch:
            patch.setattr(rotary_products, "move", lambda graph: None)
            return fuse(before, **options).model

    return fused


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("rotated", [4, 8])
@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("dtype", [None, "fp16", "bf16"])
def test_a_product_rotates(pairs: str, rotated: int, shared: int, dtype: str | None, kept: Callable) -> None:
    before = model(Variant(pairs=pairs, rotated=rotated, shared=shared, left=5), 0)
    result, old = fuse(before, dtype=dtype), kept(before, dtype=dtype)
    assert result.fused == {ATTENTION: 1} and report(result) == ["1 products rotate Q and K"]
    (product,), (attention,) = inputs_of(result.model, ROTARY), inputs_of(result.model, ATTENTION)
    assert {"cos", "sin"} <= product and "places" not in product and attention == {"qkv", "mask"}
    assert {"cos", "sin"} <= inputs_of(old, ATTENTION)[0] and not inputs_of(old, ROTARY)
    onnx.checker.check_model(result.model, full_check=True)
    random = np.random.default_rng(0)
    float_type = np.float16 if dtype == "fp16" else np.float32
    feed = {"x": random.standard_normal((2, 9, HIDDEN)).astype(float_type), "mask": np.ones((2, 9), np.int64)}
    feed["mask"][1, 6:] = 0
    atol, rtol = TOLERANCES["float32" if dtype is None else "float16" if dtype == "fp16" else "bfloat16"]
    if dtype == "bf16":  # which NumPy does not feed
        return
    for library in ("never", "always"):
        found, wanted = (
            InferenceSession(m.SerializeToString(), library=library).run(None, feed) for m in (result.model, old)
        )
        np.testing.assert_allclose(found[0], wanted[0], atol=atol, rtol=rtol)


def test_what_lies_between_keeps_rotations_in_attention() -> None:
    result = fuse(model(Variant(norm=True), 0))
    assert {"cos", "sin", "q_gamma"} <= inputs_of(result.model, ATTENTION)[0] and not inputs_of(result.model, ROTARY)
    (text,) = report(result)
    assert "heads are normalised before" in text


def test_without_rotations_nothing_is_said() -> None:
    result = fuse(model(Variant(rotated=0, left=3), 0))
    assert result.fused == {ATTENTION: 1} and not report(result)


def _read_elsewhere(found: onnx.ModelProto, product: onnx.NodeProto) -> None:
    found.graph.output.append(onnx.helper.make_tensor_value_info(product.output[0], 1, ["B", "S", 96]))


def _read_twice(found: onnx.ModelProto, product: onnx.NodeProto) -> None:
    found.graph.node.append(onnx.helper.make_node("Abs", [product.output[0]], ["twice"]))
    found.graph.output.append(onnx.helper.make_tensor_value_info("twice", 1, ["B", "S", 96]))


def _activated(found: onnx.ModelProto, product: onnx.NodeProto) -> None:
    product.attribute.append(onnx.helper.make_attribute("activation", "gelu"))


def _biased(found: onnx.ModelProto, product: onnx.NodeProto) -> None:
    attention = next(node for node in found.graph.node if node.op_type == ATTENTION)
    found.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(96, np.float32), "ones"))
    product.input.append("ones")
    attention.input[1] = "ones"


def _made_by_another(found: onnx.ModelProto, product: onnx.NodeProto) -> None:
    attention = next(node for node in found.graph.node if node.op_type == ATTENTION)
    found.graph.node.append(onnx.helper.make_node("Neg", [product.output[0]], ["other"]))
    attention.input[0] = "other"


REFUSED = {
    "an output of the model": (_read_elsewhere, "is read elsewhere, too"),
    "two readers": (_read_twice, "is read elsewhere, too"),
    "an activation": (_activated, "an activation lies between"),
    "two biases": (_biased, "two biases are added"),
    "another operator": (_made_by_another, "made by no FusedGemm"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_rotations_stay(what: str, kept: Callable) -> None:
    change, reason = REFUSED[what]
    found = kept(model(Variant(), 0), functions=False)
    change(found, next(node for node in found.graph.node if node.op_type == PRODUCT))
    graph = FusionGraph(*split(found))
    for node in graph.gs.nodes:
        node.op = node.op.removeprefix(f"{DOMAIN}::")
    (left,) = rotary_products.move(graph).left
    assert reason in left
    assert not [node for node in graph.gs.nodes if node.op == ROTARY]


def _embedded(variant: Variant) -> onnx.ModelProto:
    """Ids, their rows of a table, the attention."""
    from tests.graph_rewrite.variants import attend

    b = Builder(seed=0)
    b.ids("ids"), b.ids("mask")
    b.output(attend(b, variant, x=b.op("Gather", b.weight(30, HIDDEN), "ids")))
    return b.model()


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_packed_rows_are_told_their_places(padding: str, window: int | None, kept: Callable) -> None:
    """Once for all products; attention counts places only for its window."""
    before = _embedded(Variant(left=window))
    result, old = fuse(before, padding=padding), kept(before, padding=padding)
    (product,), (attention,) = inputs_of(result.model, ROTARY), inputs_of(result.model, ATTENTION)
    assert product >= {"cos", "sin", "places"} and ("row_count" in product) == (padding == "remove")
    assert "cu_seqlens" in attention and not {"cos", "sin", "bias"} & attention
    assert ("token_index" in attention) == (window is not None and padding == "remove")
    onnx.checker.check_model(result.model, full_check=True)
    random = np.random.default_rng(1)
    ids = random.integers(0, 30, (3, 11))
    mask = (random.random(ids.shape) < 0.6).astype(np.int64)  # with gaps, and padding on the left
    mask[2] = 0
    feed = {"ids": ids, "mask": mask}
    if padding == "ragged":
        lengths = mask.sum(axis=1)
        feed = {"ids": ids[mask != 0], "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32)}
        feed["max_seqlen"] = np.zeros(lengths.max(), np.int32)
    atol, rtol = TOLERANCES["float32"]
    for library in ("never", "always"):
        found, wanted = (
            InferenceSession(m.SerializeToString(), library=library).run(None, feed) for m in (result.model, old)
        )
        np.testing.assert_allclose(found[0], wanted[0], atol=atol, rtol=rtol)
