"""What looks like BERT's attention and is not: refused, with the reason, and computing what it did."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.attentions import HIDDEN, MASKS, Attention, attend, unsqueezed
from tests.graph_rewrite.graphs import Builder, fused, refused

S = 6


def start(length: int | str = "S") -> tuple[Builder, str, str]:
    b = Builder()
    return b, b.input("x", ("B", length, HIDDEN)), b.ids("attention_mask", ("B", length))


def causal(b: Builder, x: str, mask: str) -> str:
    return b.op("Add", MASKS["where"](b, mask), b.const(np.triu(np.full((S, S), -10000.0), 1)))


def dynamic_causal(b: Builder, x: str, mask: str) -> str:
    length = b.op("Squeeze", b.op("Gather", b.op("Shape", mask), b.const([1]), axis=0), b.const([0]))
    places = b.op("Range", b.const(0), length, b.const(1))
    later = b.op("Less", b.op("Unsqueeze", places, b.const([1])), b.op("Unsqueeze", places, b.const([0])))
    return b.op("Add", MASKS["where"](b, mask), b.op("Where", later, b.const(-10000.0), b.const(0.0)))


def windowed(b: Builder, x: str, mask: str, width: float = 128, filled: bool = False) -> str:
    """Only keys within `width` places are visible: the same as a key mask for short sequences."""
    length = b.op("Squeeze", b.op("Gather", b.op("Shape", mask), b.const([1]), axis=0), b.const([0]))
    places = b.op("Range", b.const(0), length, b.const(1))
    apart = b.op("Sub", b.op("Unsqueeze", places, b.const([1])), b.op("Unsqueeze", places, b.const([0])))
    if filled:
        limit = b.op("ConstantOfShape", b.const([1]), value=numpy_helper.from_array(np.array([width])))
    else:
        limit = b.const(width)
    if isinstance(width, float):
        apart = b.op("Cast", apart, to=1)
    near = b.op("LessOrEqual", b.op("Abs", apart), limit)
    return b.op("Add", MASKS["where"](b, mask), b.op("Where", near, b.const(0.0), b.const(-10000.0)))


def table_of_bools(b: Builder, x: str, mask: str) -> str:
    """The first 20 keys alone, out of a table of 40."""
    length = b.op("Gather", b.op("Shape", mask), b.const([1]), axis=0)
    first = b.op("Slice", b.const(np.arange(40)[None] < 20, dtype=bool), b.const([0]), length, b.const([1]))
    return b.op("Add", MASKS["where -inf"](b, mask), b.op("Where", first, b.const(0.0), b.const(-np.inf)))


MASK_NEAR_MISSES = {
    "causal table": (causal, "more than a key mask", S),
    "causal table of one length": (causal, "more than a key mask", "S"),
    "causal by length": (dynamic_causal, "more than a key mask", "S"),
    "windowed": (windowed, "more than a key mask", "S"),
    "windowed beyond any probe": (lambda b, x, m: windowed(b, x, m, 2500), "more than a key mask", "S"),
    "windowed by a float": (lambda b, x, m: windowed(b, x, m, 2500.0), "more than a key mask", "S"),
    "windowed by an attribute": (lambda b, x, m: windowed(b, x, m, 2500, True), "more than a key mask", "S"),
    "a table of bools": (table_of_bools, "more than a key mask", "S"),
    "too weak": (
        lambda b, x, m: b.op("Mul", b.op("Sub", b.const(1.0), b.op("Cast", unsqueezed(b, m), to=1)), b.const(-3.0)),
        "more than a key mask", "S",
    ),
    "hides queries": (
        lambda b, x, m: b.op("Where", b.op("Cast", b.op("Unsqueeze", m, b.const([1, 3])), to=9), b.const(0.0),
                             b.const(-10000.0)),
        "more than a key mask", "S",
    ),
    "favours visible keys": (
        lambda b, x, m: b.op("Where", b.op("Cast", unsqueezed(b, m), to=9), b.const(1.0), b.const(-10000.0)),
        "more than a key mask", "S",
    ),
    "float input": (lambda b, x, m: b.input("additive", ("B", 1, 1, "S")), "expected a [B, S] mask of keys", "S"),
    "a learned bias": (lambda b, x, m: b.weight(1, 4, S, S), "expected a [B, S] mask of keys", S),
    "a large learned bias": (lambda b, x, m: b.weight(1, 4, 160, 160), "expected a [B, S] mask of keys", 160),
    "made of x": (
        lambda b, x, m: b.op("Unsqueeze", b.op("ReduceMax", x, axes=[2], keepdims=0), b.const([1, 2])),
        "more than a key mask", "S",
    ),
}  # fmt: skip


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("name", list(MASK_NEAR_MISSES))
def test_masks(name: str, level: str) -> None:
    make, reason, length = MASK_NEAR_MISSES[name]
    b, x, mask = start(length)
    b.output(attend(b, x, Attention(parts={"mask": make(b, x, mask)}), mask), b.op("Neg", b.op("Cast", mask, to=1)))
    op = "FusedAttention" if level == "full" else "AddQKVBias"
    refused(b.model(), reason, op, level, sizes={"S": S})


def test_two_masks() -> None:
    b, x, mask = start()
    twice = MASKS["where"](b, mask)
    spec = Attention(parts={"after_mask": lambda scores: b.op("Add", scores, twice)})
    b.output(attend(b, x, spec, mask))
    refused(b.model(), "a second mask", "FusedAttention")


@pytest.mark.parametrize("hidden", [0.0, -5.0, 10000.0])
def test_selects_by_a_number_that_does_not_hide(hidden: float) -> None:
    b, x, mask = start()
    b.output(attend(b, x, Attention(mask="select", parts={"hidden": hidden}), mask))
    refused(b.model(), f"selects between the scores and {hidden}", "FusedAttention")


@pytest.mark.parametrize("mask", ["select", "where"])
def test_mask_scaled_down_after(mask: str) -> None:
    """-10000 times 1e-4 hides nothing."""
    b, x, m = start()
    small = {"after_mask": lambda scores: b.op("Mul", scores, b.const(1e-4)), "hidden": -1e5}
    spec = Attention(mask=mask, parts=small)
    b.output(attend(b, x, spec, m))
    refused(b.model(), "", "FusedAttention")


PART_NEAR_MISSES = {
    "Q unsplit order": ({"q_perm": (0, 1, 2, 3)}, "Q arrives as"),
    "K not transposed": ({"k_perm": (0, 2, 1, 3)}, "K arrives as"),
    "heads merged in another order": ({"merge_perm": (0, 2, 3, 1)}, "expected them merged to [B, S, H]"),
    "heads not brought back": (
        {"merge_perm": (0, 1, 2, 3), "merge_shape": [0, 4, HIDDEN]},
        "expected them merged to [B, S, H]",
    ),
}


@pytest.mark.parametrize("name", list(PART_NEAR_MISSES))
def test_layouts(name: str) -> None:
    parts, reason = PART_NEAR_MISSES[name]
    b = Builder()
    x = b.input("x", (2, 4, HIDDEN))  # length 4, heads 4, head size 4: every wrong order is valid
    b.output(attend(b, x, Attention(mask="none", parts=parts)))
    refused(b.model(), reason, "FusedAttention")


def cut_off(b: Builder, tensor: str, axis: int, start: int, end: int) -> str:
    return b.op("Slice", tensor, b.const([start]), b.const([end]), b.const([axis]))


@pytest.mark.parametrize(("start", "end"), [(0, 64), (-64, 1 << 40)])
def test_keys_cut_to_a_length(start: int, end: int) -> None:
    """All of a short sequence, part of a long one."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    parts = {n: cut_off(b, b.linear(x, HIDDEN, HIDDEN), 1, start, end) for n in "kv"}
    b.output(attend(b, x, Attention(mask="none", parts=parts)))
    refused(b.model(), "expected bounds within the axis", "FusedAttention", sizes={"S": 100})


def test_keys_split_by_length() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    parts = {n: b.op("Split", b.linear(x, HIDDEN, HIDDEN), b.const([64, 36]), outputs=2, axis=1)[0] for n in "kv"}
    b.output(attend(b, x, Attention(mask="none", parts=parts)))
    refused(b.model(), "expected parts of every length", "FusedAttention", sizes={"S": 100})


def test_context_cut_to_a_length() -> None:
    b = Builder()
    b.output(attend(b, b.input("x", ("B", "S", HIDDEN)), Attention(mask="none")))
    merging = [b.nodes.pop() for _ in range(2)][::-1]
    merging[0].input[0] = cut_off(b, merging[0].input[0], 2, 0, 64)
    b.nodes += merging
    refused(b.model(), "expected bounds within the axis", "FusedAttention", sizes={"S": 100})


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_cross_attention(which: str) -> None:
    b, x, mask = start()
    other = b.input("other", ("B", "S", HIDDEN))
    b.output(attend(b, x, Attention(parts={f"{which}_x": other}), mask))
    refused(b.model(), "projects", "FusedAttention")


def test_cross_attention_of_another_length() -> None:
    b = Builder()
    x, memory = b.input("x", ("B", "S", HIDDEN)), b.input("memory", ("B", "T", HIDDEN))
    b.output(attend(b, x, Attention(mask="none", parts={"k_x": memory, "v_x": memory})))
    refused(b.model(), "cross-attention is not fused", "FusedAttention")


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_no_projection(which: str) -> None:
    b, x, mask = start()
    b.output(attend(b, x, Attention(parts={which: b.op("Tanh", x)}), mask))
    refused(b.model(), "expected a projection with constant weight", "FusedAttention")


def test_weight_is_an_input() -> None:
    b, x, mask = start()
    v = b.op("MatMul", x, b.input("weight", (HIDDEN, HIDDEN)))
    b.output(attend(b, x, Attention(parts={"v": v}), mask))
    refused(b.model(), "V comes from 'matmul_1', expected a projection with constant weight", "FusedAttention")


def test_one_projection_for_keys_and_values() -> None:
    b, x, mask = start()
    shared = b.linear(x, HIDDEN, HIDDEN)
    b.output(attend(b, x, Attention(parts={"k": shared, "v": shared}), mask))
    refused(b.model(), "expected three projections", "FusedAttention")


def test_values_of_another_width() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    v = b.op("Transpose", b.op("Reshape", b.linear(x, HIDDEN, 32), b.const([0, 0, 4, 8])), perm=[0, 2, 1, 3])
    b.output(attend(b, x, Attention(mask="none", parts={"v_heads": v, "merge_shape": [0, 0, 32]})))
    refused(b.model(), "V has heads x size (4, 8), expected (4, 4)", "FusedAttention")


@pytest.mark.parametrize("axis", [1, 2, -2])
def test_softmax_over_another_axis(axis: int) -> None:
    b = Builder()
    x = b.input("x", (2, 5, HIDDEN))
    b.output(attend(b, x, Attention(mask="none", softmax_axis=axis)))
    refused(b.model(), f"Softmax over axis {axis}", "FusedAttention")


@pytest.mark.parametrize("op", ["MatMul", "Add", "Softmax", "Transpose", "Reshape", "Mul"])
@pytest.mark.parametrize("how", ["exposed", "used"])
@pytest.mark.parametrize("level", ["full", "basic"])
def test_interior_needed_elsewhere(op: str, how: str, level: str) -> None:
    b, x, mask = start()
    y = attend(b, x, Attention(), mask)
    # Of Mul the one of the scores: that of the mask may be needed by whom it likes.
    tensor = [n.output[0] for n in b.nodes if n.op_type == op and n.output[0] != y][0 if op == "Mul" else -1]
    b.output(y, tensor if how == "exposed" else b.op("Neg", tensor))
    refused(b.model(), "", "FusedAttention" if level == "full" else "AddQKVBias", level)


@pytest.mark.parametrize("factor", [-0.5, 2e4])
def test_scale_out_of_range(factor: float) -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, x, Attention(mask="none", scale="scores_mul", factor=factor)))
    refused(b.model(), "scale", "FusedAttention")


def test_dropout_that_trains() -> None:
    b, x, mask = start()
    drop = lambda w: b.op("Dropout", w, b.const(0.0), b.const(True, dtype=bool))  # noqa: E731
    b.output(attend(b, x, Attention(parts={"after_softmax": drop}), mask))
    refused(b.model(), "expected one product with V", "FusedAttention")


def test_values_scaled() -> None:
    b, x, mask = start()
    v = b.op("Mul", b.linear(x, HIDDEN, HIDDEN), b.const(2.0))
    b.output(attend(b, x, Attention(parts={"v": v}), mask))
    refused(b.model(), "V is scaled", "FusedAttention")


def test_a_softmax_of_a_classifier_promises_nothing() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(b.op("Softmax", b.linear(x, HIDDEN, 3), axis=-1))
    result = fused(b.model())
    assert not result.expected and not result.fused


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("scale", [float(np.finfo(np.float32).min), 3e4, 1e-30, -2e4])
def test_scale_that_leaves_the_range(scale: float, level: str) -> None:
    """(q s) kᵀ is infinite where s (q kᵀ) is not, or the other way round."""
    b, x, m = start()
    b.output(attend(b, x, Attention(scale="q", factor=scale, mask="where"), m))
    result = fuse(b.model(), level=level)
    assert result.fused == {} and "scales Q by" in str(result.misses[0])
