"""Disentangled attention: any spelling of it is proven and written, and what is nearly it refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.graphs import Builder, run
from tests.graph_rewrite.variants import HIDDEN

OP = "FusedAttentionVariant"


@dataclass
class Disentangled:
    """How to spell it over x [B, S, 24]."""

    heads: int = 3
    size: int = 4
    span: int = 5  # of positions to either side that have a row of their own
    buckets: bool = True  # the logarithm of farther ones, up to `farthest`
    farthest: int = 20
    merged: bool = True  # batch and heads in one axis
    cut: bool = False  # the table is cut to the length of the text
    late_bias: bool = False  # Q's and V's are added to heads
    of_queries: bool = True
    of_keys: bool = True
    # Replacements, called with what they replace: "row_of_q", "row_of_k", "pairs", "vectors", "keys", "scale".
    parts: dict[str, Callable[..., Any]] = field(default_factory=dict)


def _length(b: Builder) -> str:
    return b.op("Gather", b.op("Shape", "mask"), b.const(1), axis=0)


def _rows(b: Builder, v: Disentangled) -> str:
    """[S, S] of where query - key lies in the table, from its middle on."""
    places = b.op("Range", b.const(0), _length(b), b.const(1))
    distance = b.op("Sub", b.op("Unsqueeze", places, b.const([1])), b.op("Unsqueeze", places, b.const([0])))
    if not v.buckets:
        return distance
    middle = v.span // 2
    far = b.op("Cast", b.op("Max", b.op("Abs", distance), b.const(max(1, middle))), to=1)
    ratio = b.op("Div", b.op("Log", b.op("Div", far, b.const(float(max(1, middle))))), b.const(np.log(v.farthest)))
    log = b.op("Add", b.op("Ceil", b.op("Mul", ratio, b.const(float(v.span - middle)))), b.const(float(middle)))
    sign = b.op("Cast", b.op("Sign", distance), to=1)
    near = b.op("LessOrEqual", b.op("Abs", distance), b.const(middle))
    return b.op("Cast", b.op("Where", near, b.op("Cast", distance, to=1), b.op("Mul", log, sign)), to=7)


def _by_head(b: Builder, x: str, v: Disentangled, texts: str | None = None) -> str:
    """[B, heads, S, size] of [B, S, heads * size], or [B * heads, S, size]; of one text repeated for `texts`."""
    split = b.op("Transpose", b.op("Reshape", x, b.const([0, 0, v.heads, v.size])), perm=[0, 2, 1, 3])
    if not v.merged:
        return split
    shape = b.op("Concat", b.const([-1]), b.op("Slice", b.op("Shape", x), b.const([1]), b.const([2])),
                 b.const([v.size]), axis=0)  # fmt: skip
    whole = b.op("Reshape", split, shape)
    if texts is None:
        return whole
    return b.op("Tile", whole, b.op("Concat", texts, b.const([1]), b.const([1]), axis=0))


def _heads(b: Builder, v: Disentangled) -> dict[str, str]:
    found, width = {}, v.heads * v.size
    for name in "qkv":
        late = v.late_bias and name in "qv"
        heads = _by_head(b, b.linear("x", HIDDEN, width, "matmul" if late else "matmul_add"), v)
        if late:
            shape = (1, v.heads, 1, v.size)
            heads = b.op("Add", heads, b.const(0.3 * b.random.standard_normal(shape)))
        found[name] = heads
    return found


def _summand(b: Builder, v: Disentangled, x: str, table: str, row: str, span: str, of_keys: bool) -> str:
    """Heads times all positions, looked up by `row` [S, S]."""
    texts = b.op("Slice", b.op("Shape", "mask"), b.const([0]), b.const([1]))
    vectors = _by_head(b, b.linear(table, HIDDEN, v.heads * v.size, "matmul_add"), v, texts)
    vectors = v.parts["vectors"](b, vectors) if "vectors" in v.parts else vectors
    axes = [0, 2, 1] if v.merged else [0, 1, 3, 2]
    products = b.op("MatMul", x, b.op("Transpose", vectors, perm=axes))
    last = b.op("Sub", b.op("Mul", span, b.const(2)), b.const(1))
    index = b.op("Max", b.op("Min", b.op("Add", row, span), last), b.const(0))
    shape = b.op("Slice", b.op("Shape", x), b.const([0]), b.const([2 if v.merged else 3]))
    length = b.op("Unsqueeze", _length(b), b.const([0]))
    found = b.op("GatherElements", products, b.op("Expand", index, b.op("Concat", shape, length, axis=0)), axis=-1)
    return b.op("Transpose", found, perm=axes) if of_keys else found


def model(v: Disentangled, seed: int) -> onnx.ModelProto:
    b = Builder(seed=seed)
    b.input("x", ("B", "S", HIDDEN))
    b.ids("mask")
    table = b.const(b.random.standard_normal((2 * v.span, HIDDEN)))
    span = b.const(v.span)
    if v.cut:
        span = b.op("Min", span, _length(b))
        ends = [b.op("Unsqueeze", b.op(op, b.const(v.span), span), b.const([0])) for op in ("Sub", "Add")]
        table = b.op("Slice", table, *ends, b.const([0]))
    table = b.op("Unsqueeze", table, b.const([0]))
    by = _heads(b, v)
    scale = b.const((3 * v.size) ** -0.5)
    axes = [0, 2, 1] if v.merged else [0, 1, 3, 2]
    scores = b.op("MatMul", b.op("Mul", by["q"], scale), b.op("Transpose", by["k"], perm=axes))
    rows, added = _rows(b, v), []
    if v.of_queries:
        row = v.parts["row_of_q"](b, rows) if "row_of_q" in v.parts else rows
        added.append(_summand(b, v, by["q"], table, row, span, False))
    if v.of_keys:
        row = b.op("Neg", rows)
        row = v.parts["row_of_k"](b, row) if "row_of_k" in v.parts else row
        keys = v.parts["keys"](b, by) if "keys" in v.parts else by["k"]
        added.append(_summand(b, v, keys, table, row, span, True))
    added = [b.op("Mul", part, scale) for part in added]
    scores = b.op("Add", scores, added[0] if len(added) == 1 else b.op("Add", *added))
    length = b.op("Unsqueeze", _length(b), b.const([0]))
    if v.merged:
        apart = b.op("Concat", b.const([-1, v.heads]), length, length, axis=0)
        scores = b.op("Reshape", scores, apart)
    pair = [b.op("Unsqueeze", "mask", b.const(axes)) for axes in ([1, 2], [1, 3])]
    seen = v.parts["pairs"](b, *pair) if "pairs" in v.parts else b.op("Cast", b.op("Mul", *pair), to=9)
    scores = b.op("Where", b.op("Not", seen), b.const(float(np.finfo(np.float32).min)), scores)
    weights = b.op("Softmax", scores, axis=-1)
    if v.merged:
        weights = b.op("Reshape", weights, b.op("Concat", b.const([-1]), length, length, axis=0))
    context = b.op("MatMul", weights, by["v"])
    if v.merged:
        whole = b.op("Concat", b.const([-1, v.heads]), length, b.const([v.size]), axis=0)
        context = b.op("Reshape", context, whole)
    context = b.op("Transpose", context, perm=[0, 2, 1, 3])
    b.output(b.op("Reshape", context, b.const([0, 0, v.heads * v.size])))
    return b.model()


def drawn(random: np.random.Generator) -> Disentangled:
    merged, both = bool(random.integers(2)), int(random.integers(3))
    return Disentangled(
        heads=int(random.integers(2, 5)),
        size=int(random.choice([2, 4, 8])),
        span=int(random.integers(3, 12)),
        buckets=bool(random.integers(2)),
        farthest=int(random.integers(5, 40)),
        merged=merged,
        cut=bool(random.integers(2)),
        late_bias=not merged and bool(random.integers(2)),
        of_queries=both != 1,
        of_keys=both != 2,
    )


def _feed(random: np.random.Generator, batch: int, length: int) -> dict[str, np.ndarray]:
    mask = random.integers(0, 2, (batch, length)) * random.choice([1, 2, -1, 7], (batch, length))
    mask[0] = 1
    return {"x": random.standard_normal((batch, length, HIDDEN)).astype(np.float32), "mask": mask}


@pytest.mark.parametrize("number", range(8))
def test_any_spelling(number: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    variant = drawn(random)
    if variant.buckets:
        variant.cut = False  # rows by logarithms are of the whole table
    print(variant)
    before = model(variant, seed)
    result = fuse(before)
    assert result.fused.get(OP) == 1, [str(miss) for miss in result.misses]
    onnx.checker.check_model(result.model, full_check=True)
    for batch, length in ((1, 1), (2, int(random.integers(2, 9))), (3, int(random.integers(9, 40)))):
        feed = _feed(random, batch, length)
        for a, b in zip(run(before, feed), run(result.model, feed), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def _shifted(b: Builder, rows: str) -> str:
    """Rows of places, not of their distance."""
    places = b.op("Range", b.const(0), _length(b), b.const(1))
    return b.op("Add", rows, b.op("Mod", places, b.const(2)))


def _squared(b: Builder, rows: str) -> str:
    places = b.op("Range", b.const(0), _length(b), b.const(1))
    return b.op("Mul", rows, b.op("Min", places, b.const(1)))


def _either(b: Builder, keys: str, queries: str) -> str:
    return b.op("Cast", b.op("Add", b.op("Abs", keys), b.op("Abs", queries)), to=9)


def _large(b: Builder, keys: str, queries: str) -> str:
    """Only a product of more than 1 shows a pair: of two tokens that are 1 each none."""
    return b.op("Greater", b.op("Mul", keys, queries), b.const(1))


def _other_masks(b: Builder, keys: str, queries: str) -> str:
    return b.op("Cast", b.op("Mul", keys, b.op("Add", queries, b.const(1))), to=9)


NEAR_MISSES: dict[str, dict[str, Callable[..., Any]]] = {
    "rows by place": {"row_of_q": _shifted},
    "rows by a place of zero": {"row_of_k": _squared},
    "either token": {"pairs": _either},
    "large products": {"pairs": _large},
    "two masks": {"pairs": _other_masks},
    "values in place of keys": {"keys": lambda b, by: by["v"]},
    "vectors by the length": {"vectors": lambda b, x: b.op("Mul", x, b.op("Cast", _length(b), to=1))},
    "vectors by their number": {"vectors": lambda b, x: b.op("CumSum", x, b.const(-2))},
}


@pytest.mark.parametrize("parts", NEAR_MISSES.values(), ids=NEAR_MISSES)
@pytest.mark.parametrize("merged", [False, True])
def test_near_misses_are_refused(parts: dict[str, Callable[..., Any]], merged: bool) -> None:
    result = fuse(model(Disentangled(merged=merged, parts=parts), 3))
    assert OP not in result.fused
    assert any(miss.op == "FusedAttention" and miss.reason for miss in result.misses)
