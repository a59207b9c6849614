"""The Attention operator of opset 23, as torch.export writes scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graph_rewrite.attentions import HEADS, HIDDEN, MASKS, SIZE, attribute, heads_of, unsqueezed
from tests.graph_rewrite.graphs import Builder, fused, refused

BY_HEAD = (0, 2, 1, 3)


def attention(
    b: Builder, x: str, mask: str = "", by_head: bool = True, q: str = "", extra: Any = (), **attrs: Any
) -> str:
    """softmax(q kᵀ / 2 + mask) v by one node; `by_head` says whether the heads are apart before it."""
    q, k, v = (q if n == "q" and q else b.linear(x, HIDDEN, HIDDEN) for n in "qkv")
    if not by_head:
        return b.op("Attention", q, k, v, mask, *extra, q_num_heads=HEADS, kv_num_heads=HEADS, **attrs)
    y = b.op("Attention", *(heads_of(b, t, BY_HEAD) for t in (q, k, v)), mask, *extra, **attrs)
    return b.op("Reshape", b.op("Transpose", y, perm=list(BY_HEAD)), b.const([0, 0, HIDDEN]))


def spread(b: Builder, mask: str, x: str) -> str:
    """[B, 1, 1, S] to [B, 1, S, S]: ONNX Runtime's kernel does not broadcast queries."""
    batch, length = (b.op("Gather", b.op("Shape", x), b.const([i]), axis=0) for i in (0, 1))
    return b.op("Expand", mask, b.op("Concat", batch, b.const([1]), length, length, axis=0))


def started() -> tuple[Builder, str]:
    b = Builder(opset=23)
    return b, b.input("x", ("B", "S", HIDDEN))


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", ["none", "bool", "where", "where -inf", "dtype-min"])
def test_forms(mask: str, scale: float | None, by_head: bool, level: str) -> None:
    b, x = started()
    given = "" if mask == "none" else b.ids("attention_mask")
    if mask == "bool":
        given = spread(b, b.op("Cast", unsqueezed(b, given), to=9), x)
    elif mask != "none":
        given = spread(b, MASKS[mask](b, given), x)
    b.output(attention(b, x, given, by_head, **({} if scale is None else {"scale": scale})))
    result = fused(b.model(), level)
    op = "FusedAttention" if level == "full" else "AddQKVBias"
    assert result.fused == result.expected == {op: 1}
    if level == "full":
        assert attribute(result.model, op, "scale") == pytest.approx(scale or 1 / np.sqrt(SIZE))
        assert attribute(result.model, op, "num_heads") == HEADS


def test_no_mask_that_hides_anything() -> None:
    """torch.export makes up a mask of ones where none is given."""
    b, x = started()
    ones = b.op("Expand", b.const(True, dtype=bool), b.op("Gather", b.op("Shape", x), b.const([0, 1]), axis=0))
    b.output(attention(b, x, spread(b, unsqueezed(b, ones), x)))
    result = fused(b.model())
    assert result.fused == {"FusedAttention": 1}
    (node,) = (n for n in result.model.graph.node if n.op_type == "FusedAttention")
    assert len(node.input) == 2


def test_causal() -> None:
    b, x = started()
    b.output(attention(b, x, is_causal=1))
    refused(b.model(), "is_causal is 1, expected 0", "FusedAttention")


def test_capped_scores() -> None:
    b, x = started()
    b.output(attention(b, x, softcap=2.0))
    refused(b.model(), "softcap is 2.0, expected 0.0", "FusedAttention")


def test_causal_mask() -> None:
    b = Builder(opset=23)
    x = b.input("x", ("B", 5, HIDDEN))
    b.output(attention(b, x, b.const(np.tril(np.ones((5, 5), bool)), dtype=bool)))
    refused(b.model(), "expected a [B, S] mask of keys", "FusedAttention", sizes={"S": 5})


def test_past_keys() -> None:
    b, x = started()
    past = [b.input(f"past_{n}", ("B", HEADS, "T", SIZE)) for n in "kv"]
    b.output(attention(b, x, extra=past))
    refused(b.model(), "takes past keys", "FusedAttention", sizes={"T": 2})


@pytest.mark.parametrize("by_head", [True, False])
def test_scores_given_out(by_head: bool) -> None:
    b, x = started()
    y = attention(b, x, by_head=by_head)
    (node,) = (n for n in b.nodes if n.op_type == "Attention")
    node.output.extend(["", "", "scores"])
    b.output(y, "scores")
    refused(b.model(), "gives more than the context", "FusedAttention")


def test_queries_not_projected() -> None:
    b, x = started()
    b.output(attention(b, x, q=b.op("Tanh", x)))
    refused(b.model(), "expected a projection with constant weight", "FusedAttention")


def test_fewer_heads_of_keys() -> None:
    """Grouped queries: two heads of Q for each of K and V."""
    b, x = started()
    q = heads_of(b, b.linear(x, HIDDEN, HIDDEN), BY_HEAD)
    k, v = (
        b.op(
            "Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN // 2), b.const([0, 0, 2, SIZE])), perm=list(BY_HEAD)
        )
        for _ in "kv"
    )
    y = b.op("Transpose", b.op("Attention", q, k, v), perm=list(BY_HEAD))
    b.output(b.op("Reshape", y, b.const([0, 0, HIDDEN])))
    refused(b.model(), "K arrives as", "FusedAttention")


def test_outputs_that_nothing_uses() -> None:
    """Present keys and values have names, and no reader: what is fused gives one output."""
    b, x = started()
    b.output(attention(b, x))
    (node,) = (n for n in b.nodes if n.op_type == "Attention")
    node.output.extend(["keys", "values", "scores"])
    assert fused(b.model()).fused == {"FusedAttention": 1}
