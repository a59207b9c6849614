"""Attention in every spelling of exporters, at both levels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.attentions import HEADS, HIDDEN, MASKS, Attention, attend, attribute, model
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused, refused, run

SCALES = ("q", "k", "both", "scores_mul", "scores_div", "none")


@pytest.mark.parametrize("layout", ["eager", "sdpa"])
@pytest.mark.parametrize("scale", SCALES)
def test_scale_anywhere(scale: str, layout: str) -> None:
    result = fused(model(Attention(scale=scale, layout=layout)))
    assert result.fused == result.expected == {"FusedAttention": 1}
    assert attribute(result.model, "FusedAttention", "scale") == pytest.approx(1.0 if scale == "none" else 0.5)
    assert attribute(result.model, "FusedAttention", "num_heads") == HEADS


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("layout", ["eager", "sdpa"])
def test_scale_computed_from_the_shape(layout: str, opset: int) -> None:
    result = fused(model(Attention(scale="computed", layout=layout), opset))
    assert result.fused == result.expected == {"FusedAttention": 1}
    assert attribute(result.model, "FusedAttention", "scale") == pytest.approx(0.5)
    assert not any(n.op_type in ("Sqrt", "Slice") for n in result.model.graph.node)


def test_scale_computed_from_the_length() -> None:
    """A dynamic axis has no number: not a scale."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, x, Attention(mask="none", scale="computed", parts={"size_axis": -2})))
    refused(b.model(), "", "FusedAttention")


@pytest.mark.parametrize("expand", [False, True])
def test_scores_masked_as_distilbert_does(expand: bool) -> None:
    """masked_fill((mask == 0).view(B, 1, 1, S).expand_as(scores), -inf)."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    hidden = b.op("Equal", mask, b.const(0))
    batch, length = (b.op("Gather", b.op("Shape", mask), b.const([i]), axis=0) for i in (0, 1))
    hidden = b.op("Reshape", hidden, b.op("Concat", batch, b.const([1]), b.const([1]), length, axis=0))

    def select(scores: str) -> str:
        wanted = b.op("Expand", hidden, b.op("Shape", scores)) if expand else hidden
        return b.op("Where", wanted, b.const(-np.inf), scores)

    b.output(attend(b, x, Attention(mask="none", parts={"after_mask": select})))
    assert fused(b.model()).fused == {"FusedAttention": 1}


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("mask", [*MASKS, "select", "none"])
@pytest.mark.parametrize(("layout", "swap"), [("eager", False), ("sdpa", True)])
def test_masks(mask: str, layout: str, swap: bool, level: str) -> None:
    result = fused(model(Attention(mask=mask, layout=layout, swap=swap)), level)
    op = "FusedAttention" if level == "full" else "AddQKVBias"
    assert result.fused == result.expected == {op: 1}
    if level == "full":
        (node,) = (n for n in result.model.graph.node if n.op_type == op)
        # Of an arithmetic mask the keys of the greatest number are visible, and so it is looked at first.
        made = {"none": "", "select": "attention_mask", "where": "attention_mask", "where -inf": "attention_mask"}
        assert [*node.input, ""][2] == made.get(mask, [*node.input, ""][2])
        assert [*node.input, ""][2].startswith("attention_mask") == (mask != "none")


@pytest.mark.parametrize("mask_type", [np.int32, np.int64])
def test_type_of_mask(mask_type: type) -> None:
    assert fused(model(Attention(), mask_type=mask_type)).fused == {"FusedAttention": 1}


@pytest.mark.parametrize("level", ["full", "basic"])
def test_batches_and_heads_merged(level: str) -> None:
    """[B * heads, S, D] all the way."""
    result = fused(model(Attention(layout="merged", mask="none")), level)
    assert sum(result.fused.values()) == 1 and not result.misses


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("mask", ["subtract", "none"])
def test_scores_unmerged_between_the_products(level: str, mask: str) -> None:
    op = "FusedAttention" if level == "full" else "AddQKVBias"
    refused(model(Attention(layout="unmerged", mask=mask)), "changes the shape of the scores", op, level)


@pytest.mark.parametrize("mask", ["where -inf", "subtract"])
def test_nan_guard(mask: str) -> None:
    result = fused(model(Attention(mask=mask, guard=True, layout="sdpa")))
    assert result.fused == {"FusedAttention": 1}
    assert not any(n.op_type == "IsNaN" for n in result.model.graph.node)


@pytest.mark.parametrize("form", ["matmul_add", "add_matmul", "matmul"])
@pytest.mark.parametrize("level", ["full", "basic"])
def test_projections(form: str, level: str) -> None:
    result = fused(model(Attention(linear=form)), level)
    assert len(result.fused) == 1
    (product,) = (n for n in result.model.graph.node if n.op_type == "FusedGemm")
    weights = {t.name: list(t.dims) for t in result.model.graph.initializer}
    assert weights[product.input[1]] == [3 * HIDDEN, HIDDEN]


@pytest.mark.parametrize("opset", [13, 14, 17, 18, 20, 21])
@pytest.mark.parametrize("level", ["full", "basic"])
def test_opsets(opset: int, level: str) -> None:
    assert len(fused(model(Attention(), opset), level).fused) == 1


@pytest.mark.parametrize("level", ["full", "basic"])
def test_float16(level: str) -> None:
    assert len(fused(model(Attention(mask="dtype-min"), dtype=np.float16), level, tol=5e-3).fused) == 1


@pytest.mark.parametrize("level", ["full", "basic"])
def test_float16_with_softmax_in_float32(level: str) -> None:
    """Scores go up before the Softmax, weights come down after it."""
    parts = {
        "after_mask": lambda scores: b.op("Cast", scores, to=1),
        "after_softmax": lambda weights: b.op("Cast", weights, to=10),
    }
    b = Builder(dtype=np.float16)
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, x, Attention(mask="dtype-min", parts=parts), b.ids("attention_mask")))
    assert len(fused(b.model(), level, tol=5e-3).fused) == 1


def test_made_up_mask_of_ones() -> None:
    """Exporters without a mask input make one of ones, by length: it hides nothing."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    ones = b.op("ConstantOfShape", b.op("Slice", b.op("Shape", x), b.const([0]), b.const([2])),
                value=onnx.helper.make_tensor("value", 7, [1], [1]))  # fmt: skip
    b.output(attend(b, x, Attention(), ones))
    result = fused(b.model())
    assert result.fused == {"FusedAttention": 1}
    (node,) = (n for n in result.model.graph.node if n.op_type == "FusedAttention")
    assert len(node.input) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("level", ["full", "basic"])
def test_a_row_that_hides_every_key(level: str, dtype: type) -> None:
    """Every query attends to all keys alike: one finite context for all of them, whatever the exporter's mask did."""
    before = model(Attention(mask="dtype-min"), dtype=dtype)
    feed = feeds(before)
    feed["attention_mask"][0] = 0
    (context,) = run(fuse(before, level=level).model, feed)
    assert np.isfinite(context).all()
    # ONNX Runtime's CPU provider adds float16 scores and mask in float32, where -65504 does not drown the scores.
    if level == "full" or dtype == np.float32:
        np.testing.assert_allclose(context[0], np.broadcast_to(context[0, :1], context[0].shape), atol=1e-3)
    if dtype == np.float32:
        assert_agree(before, fuse(before, level=level).model, feed, 2e-5)


def test_static_shapes_of_equal_sizes() -> None:
    """Batch, length, heads and head size all 4: only the order of views tells them apart."""
    b = Builder()
    x = b.input("x", (4, 4, HIDDEN))
    b.output(attend(b, x, Attention(), b.ids("attention_mask", (4, 4))))
    assert fused(b.model()).fused == {"FusedAttention": 1}


@pytest.mark.parametrize("shape", [(1, 1), (1, "S"), ("B", 1), (2, 7)])
def test_static_shapes(shape: tuple[int | str, int | str]) -> None:
    b = Builder()
    x = b.input("x", (*shape, HIDDEN))
    b.output(attend(b, x, Attention(), b.ids("attention_mask", shape)))
    assert fused(b.model()).fused == {"FusedAttention": 1}


def test_layers_share_weights_and_mask() -> None:
    """ALBERT runs one layer's weights again and again."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    additive = MASKS["where"](b, mask)
    projections = [(b.weight(HIDDEN, HIDDEN), b.weight(HIDDEN)) for _ in range(3)]
    for _ in range(2):
        parts = {n: b.linear(x, HIDDEN, HIDDEN, weight=w, bias=c) for n, (w, c) in zip("qkv", projections, strict=True)}
        x = attend(b, x, Attention(parts={"mask": additive, **parts}), mask)
    b.output(x)
    for level in ("full", "basic"):
        result = fused(b.model(), level)
        assert sum(result.fused.values()) == 2 and not result.misses


def test_with_and_without_mask_are_two_functions() -> None:
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    x = attend(b, x, Attention(), mask)
    x = attend(b, x, Attention(mask="none"))
    b.output(attend(b, x, Attention(), mask))
    result = fused(b.model())
    assert result.fused == {"FusedAttention": 3}
    assert sum(f.name == "FusedAttention" for f in result.model.functions) == 2
