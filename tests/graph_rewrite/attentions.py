"""Self-attention in the spellings of exporters, every part of it replaceable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.graph_rewrite.graphs import Builder

HIDDEN, HEADS = 16, 4
SIZE = HIDDEN // HEADS


@dataclass
class Attention:
    """How to spell attention over x [B, S, 16] with 4 heads of 4."""

    # "q", "k", "both", "scores_mul", "scores_div", "none"; "computed": both, by 1 / sqrt(sqrt(size of q's last axis)).
    scale: str = "scores_mul"
    # "eager"; "sdpa": K transposed back and forth; "merged": products of [B * heads, S, D]; "unmerged": with the heads
    # apart again at the Softmax.
    layout: str = "eager"
    mask: str = "subtract"  # a key of MASKS, or "none"
    linear: str = "matmul_add"
    guard: bool = False
    swap: bool = False
    factor: float = 0.5
    softmax_axis: int = -1
    # Replacements: projections "q", their inputs "q_x", heads [B, 4, S, 4] "q_heads", the additive "mask", and others.
    parts: dict[str, Any] = field(default_factory=dict)


def unsqueezed(b: Builder, mask: str) -> str:
    return b.op("Unsqueeze", mask, b.const([1, 2]))


def _subtract(b: Builder, mask: str, hidden: float) -> str:
    """(1 - mask[:, None, None, :]) * hidden."""
    numbers = b.op("Cast", unsqueezed(b, mask), to=element_type(b))
    return b.op("Mul", b.op("Sub", b.const(1.0), numbers), b.const(hidden))


def element_type(b: Builder) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(b.dtype)


def _where(b: Builder, mask: str, hidden: float) -> str:
    visible = b.op("Cast", unsqueezed(b, mask), to=9)
    return b.op("Where", visible, b.const(0.0), b.const(hidden))


def _expanded(b: Builder, mask: str, hidden: float) -> str:
    """[B, 1, S, S], as scaled_dot_product_attention is given."""
    batch, length = (b.op("Gather", b.op("Shape", mask), b.const([i]), axis=0) for i in (0, 1))
    shape = b.op("Concat", batch, b.const([1]), length, length, axis=0)
    inverted = b.op("Sub", b.const(1.0), b.op("Cast", b.op("Expand", unsqueezed(b, mask), shape), to=element_type(b)))
    return b.op("Where", b.op("Cast", inverted, to=9), b.const(hidden), inverted)


MASKS: dict[str, Callable[[Builder, str], str]] = {
    "subtract": lambda b, m: _subtract(b, m, -10000.0),
    "dtype-min": lambda b, m: _subtract(b, m, float(np.finfo(b.dtype).min)),
    "where": lambda b, m: _where(b, m, -10000.0),
    "where -inf": lambda b, m: _where(b, m, -np.inf),
    "expanded": lambda b, m: _expanded(b, m, float(np.finfo(b.dtype).min)),
    "reversed subtract": lambda b, m: b.op(
        "Mul", b.op("Sub", b.op("Cast", unsqueezed(b, m), to=element_type(b)), b.const(1.0)), b.const(10000.0)
    ),
}


def heads_of(b: Builder, x: str, perm: tuple[int, ...], swap_reshape: bool = False) -> str:
    shape = b.const([0, 0, SIZE, HEADS] if swap_reshape else [0, 0, HEADS, SIZE])
    return b.op("Transpose", b.op("Reshape", x, shape), perm=list(perm))


def attend(b: Builder, x: str, spec: Attention, mask: str | None = None) -> str:
    """The context [B, S, 16]; `mask` is the 0/1 tensor, needed unless spec.mask is "none"."""
    parts = spec.parts
    q, k, v = (
        parts.get(n) or parts.get(f"{n}_heads") or b.linear(parts.get(f"{n}_x", x), HIDDEN, HIDDEN, spec.linear)
        for n in "qkv"
    )
    q_perm = parts.get("q_perm", (0, 2, 1, 3))
    q = parts.get("q_heads") or heads_of(b, q, q_perm)
    if "k_heads" in parts:
        k = b.op("Transpose", parts["k_heads"], perm=[0, 1, 3, 2])
    elif spec.layout == "eager":
        k = heads_of(b, k, parts.get("k_perm", (0, 2, 3, 1)))
    else:
        k = b.op("Transpose", heads_of(b, k, (0, 2, 1, 3)), perm=[0, 1, 3, 2])
    v = parts.get("v_heads") or heads_of(b, v, parts.get("v_perm", (0, 2, 1, 3)))
    if spec.scale == "both":
        root = b.const(np.sqrt(spec.factor))
        q, k = b.op("Mul", q, root), b.op("Mul", root, k)
    elif spec.scale == "q":
        q = b.op("Mul", q, b.const(spec.factor))
    elif spec.scale == "k":
        k = b.op("Div", k, b.const(1 / spec.factor))
    if spec.scale == "computed":
        q, k = (b.op("Mul", t, computed_root(b, q, parts.get("size_axis", -1))) for t in (q, k))
    merged, unmerged = spec.layout in ("merged", "unmerged"), spec.layout == "unmerged"
    if merged:  # [B * heads, S, D]
        q, v = (b.op("Reshape", t, b.op("Concat", b.const([-1]), rest(b, t), axis=0)) for t in (q, v))
        k = b.op("Reshape", k, b.op("Concat", b.const([-1]), rest(b, k), axis=0))
    scores = b.op("MatMul", q, k)
    if unmerged:
        batch = b.op("Gather", b.op("Shape", x), b.const([0]), axis=0)
        length = b.op("Gather", b.op("Shape", x), b.const([1]), axis=0)
        scores = b.op("Reshape", scores, b.op("Concat", batch, b.const([HEADS]), length, length, axis=0))
    if spec.scale == "scores_mul":
        scores = b.op("Mul", *((b.const(spec.factor), scores) if spec.swap else (scores, b.const(spec.factor))))
    elif spec.scale == "scores_div":
        scores = b.op("Div", scores, b.const(1 / spec.factor))
    if spec.mask == "select":
        condition = b.op("Cast", unsqueezed(b, mask), to=9)
        scores = b.op("Where", condition, scores, b.const(parts.get("hidden", float(np.finfo(b.dtype).min))))
    elif spec.mask != "none":
        additive = parts.get("mask") or MASKS[spec.mask](b, mask)
        scores = b.op("Add", *((additive, scores) if spec.swap else (scores, additive)))
    if "after_mask" in parts:
        scores = parts["after_mask"](scores)
    weights = b.op("Softmax", scores, axis=spec.softmax_axis)
    if spec.guard:
        weights = b.op("Where", b.op("IsNaN", weights), b.const(0.0), weights)
    if "after_softmax" in parts:
        weights = parts["after_softmax"](weights)
    if unmerged:
        flat = b.op("Concat", b.const([-1]), rest(b, weights), axis=0)
        weights = b.op("Reshape", weights, flat)
    context = b.op("MatMul", *((v, weights) if parts.get("v_first") else (weights, v)))
    if merged:
        batch = b.op("Gather", b.op("Shape", x), b.const([0]), axis=0)
        length = b.op("Gather", b.op("Shape", x), b.const([1]), axis=0)
        context = b.op("Reshape", context, b.op("Concat", batch, b.const([HEADS]), length, b.const([SIZE]), axis=0))
    context = b.op("Transpose", context, perm=list(parts.get("merge_perm", (0, 2, 1, 3))))
    return b.op("Reshape", context, b.const(parts.get("merge_shape", [0, 0, HIDDEN])))


def computed_root(b: Builder, q: str, axis: int) -> str:
    """The root of 1 / sqrt(head size), from the shape of q: torch's exporter from 2.0 to 2.4."""
    size = b.op("Slice", b.op("Shape", q), b.const([axis]), b.const([axis + 1 or 1 << 62]))
    scale = b.op("Div", b.const([1.0]), b.op("Sqrt", b.op("Cast", size, to=element_type(b))))
    return b.op("Sqrt", scale)


def rest(b: Builder, tensor: str) -> str:
    """The last two sizes of a tensor."""
    return b.op("Slice", b.op("Shape", tensor), b.const([2]), b.const([4]))


def model(spec: Attention, opset: int = 17, dtype: Any = np.float32, mask_type: Any = np.int64):
    """x and attention_mask to the context."""
    b = Builder(opset, dtype)
    x = b.input("x", ("B", "S", HIDDEN))
    mask = None if spec.mask == "none" else b.ids("attention_mask", dtype=mask_type)
    b.output(attend(b, x, spec, mask))
    return b.model()


def attribute(proto: onnx.ModelProto, op: str, name: str) -> float:
    """An attribute of the first node of that type."""
    node = next(n for n in proto.graph.node if n.op_type == op)
    return onnx.helper.get_attribute_value(next(a for a in node.attribute if a.name == name))
