"""Q, K and V out of one projection, in every order, and heads in any arrangement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import numpy_helper

from tests.graph_rewrite.attentions import HEADS, HIDDEN, SIZE, Attention, attend
from tests.graph_rewrite.graphs import Builder, fused, refused

Parts = dict[str, str]


def split_first(b: Builder, qkv: str) -> Parts:
    """Three parts side by side, then heads."""
    sizes = [b.const([HIDDEN] * 3)] if b.opset < 18 else []
    options = {"num_outputs": 3} if b.opset >= 18 else {}
    return dict(zip("qkv", b.op("Split", qkv, *sizes, outputs=3, axis=-1, **options), strict=True))


def split_evenly(b: Builder, qkv: str) -> Parts:
    return dict(zip("qkv", b.op("Split", qkv, outputs=3, axis=2), strict=True))


def sliced(b: Builder, qkv: str) -> Parts:
    ends = [0, HIDDEN, 2 * HIDDEN, 1 << 40]
    return {
        name: b.op("Slice", qkv, b.const([ends[i]]), b.const([ends[i + 1]]), b.const([-1 if i else 2]))
        for i, name in enumerate("qkv")
    }


def _heads(b: Builder, qkv: str, shape: list[int], perm: list[int]) -> list[str]:
    """[B, S, 3H] to three of [B, heads, S, size], by a permutation that brings the three to the front."""
    turned = b.op("Transpose", b.op("Reshape", qkv, b.const(shape)), perm=perm)
    return [b.op("Gather", turned, b.const(i), axis=0) for i in range(3)]


def three_heads_size(b: Builder, qkv: str) -> Parts:
    """As timm's ViT."""
    made = _heads(b, qkv, [0, 0, 3, HEADS, SIZE], [2, 0, 3, 1, 4])
    return dict(zip(("q_heads", "k_heads", "v_heads"), made, strict=True))


def heads_three_size(b: Builder, qkv: str) -> Parts:
    """Each head's Q, K and V side by side."""
    made = _heads(b, qkv, [0, 0, HEADS, 3, SIZE], [3, 0, 2, 1, 4])
    return dict(zip(("q_heads", "k_heads", "v_heads"), made, strict=True))


def heads_size_three(b: Builder, qkv: str) -> Parts:
    made = _heads(b, qkv, [0, 0, HEADS, SIZE, 3], [4, 0, 2, 1, 3])
    return dict(zip(("q_heads", "k_heads", "v_heads"), made, strict=True))


def unbound(b: Builder, qkv: str) -> Parts:
    """torch.unbind over an axis of three: Split, then Squeeze."""
    options = {"num_outputs": 3} if b.opset >= 18 else {}
    parts = b.op("Split", b.op("Reshape", qkv, b.const([0, 0, 3, HIDDEN])), outputs=3, axis=2, **options)
    return {name: b.op("Squeeze", part, b.const([2])) for name, part in zip("qkv", parts, strict=True)}


PACKED = (split_first, split_evenly, sliced, three_heads_size, heads_three_size, heads_size_three, unbound)


def packed_weight(model) -> int:
    return sum(list(t.dims) == [3 * HIDDEN, HIDDEN] for t in model.graph.initializer)


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("linear", ["matmul_add", "matmul"])
@pytest.mark.parametrize("make", PACKED)
def test_packed(make: Callable[[Builder, str], Parts], linear: str, level: str) -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    parts = make(b, b.linear(x, HIDDEN, 3 * HIDDEN, linear))
    b.output(attend(b, x, Attention(parts=parts), b.ids("attention_mask")))
    result = fused(b.model(), level)
    assert result.fused == result.expected == {"FusedAttention" if level == "full" else "AddQKVBias": 1}
    assert packed_weight(result.model) == 1


@pytest.mark.parametrize("shape", [(2, 3), (3, "S"), ("B", 4), (1, 1)])
@pytest.mark.parametrize("make", [sliced, heads_three_size])
def test_static_shapes(make: Callable[[Builder, str], Parts], shape: tuple[int | str, int | str]) -> None:
    b = Builder(opset=18)
    x = b.input("x", (*shape, HIDDEN))
    b.output(attend(b, x, Attention(mask="none", parts=make(b, b.linear(x, HIDDEN, 3 * HIDDEN)))))
    assert fused(b.model()).fused == {"FusedAttention": 1}


def test_queries_alone_and_keys_with_values() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    both = b.linear(x, HIDDEN, 2 * HIDDEN)
    k, v = b.op("Split", both, b.const([HIDDEN, HIDDEN]), outputs=2, axis=-1)
    b.output(attend(b, x, Attention(mask="none", parts={"k": k, "v": v})))
    assert fused(b.model()).fused == {"FusedAttention": 1}


def test_more_columns_than_attention_takes() -> None:
    """A projection with something else beside Q, K and V, which nobody uses."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    parts = split_first(b, b.op("Slice", b.linear(x, HIDDEN, 4 * HIDDEN), b.const([8]), b.const([56]), b.const([2])))
    b.output(attend(b, x, Attention(mask="none", parts=parts)))
    assert fused(b.model()).fused == {"FusedAttention": 1}


def test_heads_in_another_order() -> None:
    """[B, S, size, heads] for Q, K and V alike: other columns are a head, the context is merged as V's are."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))

    def by_head(name: str) -> str:
        apart = b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.const([0, 0, SIZE, HEADS]))
        return b.op("Transpose", apart, perm=[0, 3, 1, 2])

    b.output(attend(b, x, Attention(mask="none", parts={f"{n}_heads": by_head(n) for n in "qkv"})))
    assert fused(b.model()).fused == {"FusedAttention": 1}


NEAR_MISSES = {
    "Q and K the same": lambda b, qkv: split_first(b, qkv) | {"k": split_first(b, qkv)["q"]},
    "overlapping": lambda b, qkv: {
        n: b.op("Slice", qkv, b.const([8 * i]), b.const([8 * i + HIDDEN]), b.const([2])) for i, n in enumerate("qkv")
    },
}


@pytest.mark.parametrize("name", list(NEAR_MISSES))
def test_shared_columns(name: str) -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    qkv = b.linear(x, HIDDEN, 3 * HIDDEN)
    b.output(attend(b, x, Attention(mask="none", parts=NEAR_MISSES[name](b, qkv))))
    refused(b.model(), "expected three projections", "FusedAttention")


def test_split_along_the_sequence() -> None:
    b = Builder()
    x = b.input("x", ("B", 12, HIDDEN))
    parts = b.op("Split", b.linear(x, HIDDEN, HIDDEN), b.const([4, 4, 4]), outputs=3, axis=1)
    b.output(attend(b, x, Attention(mask="none", parts=dict(zip("qkv", parts, strict=True)))))
    refused(b.model(), "arrives as", "FusedAttention")


def test_batch_and_sequence_exchanged() -> None:
    """[S, B, H], as in fairseq: what looks like a batch is the sequence."""
    b = Builder()
    x = b.input("x", (3, 3, HIDDEN))

    def by_head() -> str:
        return b.op(
            "Transpose", b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.const([0, 0, HEADS, SIZE])), perm=[1, 2, 0, 3]
        )

    b.output(attend(b, x, Attention(mask="none", parts={f"{n}_heads": by_head() for n in "qkv"})))
    refused(b.model(), "arrives as", "FusedAttention")


@pytest.mark.parametrize("used", ["used", "exposed"])
def test_projection_needed_elsewhere(used: str) -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    qkv = b.linear(x, HIDDEN, 3 * HIDDEN)
    y = attend(b, x, Attention(mask="none", parts=split_first(b, qkv)))
    b.output(y, qkv if used == "exposed" else b.op("Neg", qkv))
    refused(b.model(), "needed elsewhere", "FusedAttention")


def test_rotated_queries_are_named() -> None:
    """x cos + turned(x) sin between projection and product."""
    b = Builder()
    x = b.input("x", ("B", 5, HIDDEN))
    cos, sin = b.weight(5, HIDDEN), b.weight(5, HIDDEN)
    q = b.linear(x, HIDDEN, HIDDEN)
    turned = b.op("Concat", b.op("Neg", b.op("Slice", q, b.const([8]), b.const([16]), b.const([2]))),
                  b.op("Slice", q, b.const([0]), b.const([8]), b.const([2])), axis=-1)  # fmt: skip
    rotated = b.op("Add", b.op("Mul", q, cos), b.op("Mul", turned, sin))
    b.output(attend(b, x, Attention(mask="none", parts={"q": rotated})))
    refused(b.model(), "rotary position embeddings", "FusedAttention")


def test_columns_in_numbers() -> None:
    """The packed weight holds Q's, K's and V's columns in the op's order, whatever the exporter's."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    weight = b.const(np.arange(HIDDEN * 3 * HIDDEN).reshape(HIDDEN, -1) / 1e4, "weight")
    parts = heads_three_size(b, b.linear(x, HIDDEN, 3 * HIDDEN, "matmul", weight=weight))
    b.output(attend(b, x, Attention(mask="none", parts=parts)))
    model = fused(b.model()).model
    packed = next(t for t in model.graph.initializer if list(t.dims) == [3 * HIDDEN, HIDDEN])
    wanted = np.arange(HIDDEN * 3 * HIDDEN).reshape(HIDDEN, HEADS, 3, SIZE).transpose(2, 1, 3, 0).reshape(-1, HIDDEN)
    np.testing.assert_allclose(numpy_helper.to_array(packed), wanted / 1e4, rtol=1e-6)
