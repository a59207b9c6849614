"""Attention beyond BERT's, every part of it replaceable: rotations, windows, biases, groups of heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.graph_rewrite.graphs import Builder

HIDDEN = 24


@dataclass
class Variant:
    """How to spell attention over x [B, S, 24]."""

    heads: int = 4
    shared: int = 1  # heads of Q to one of K and V
    size: int = 8
    rotated: int = 8  # columns of each head
    base: float = 10000.0
    pairs: str = "halves"  # or "neighbours"
    left: int | None = None
    right: int | None = None
    masked: bool = True
    norm: bool = False
    divided: bool = False  # the place by numbers, instead of times frequencies
    stored: int = 0  # places in tables of cosines and sines; 0: these are computed
    # Replacements, called with what they replace: "angle", "rotated", "k_frequencies", "hidden", "bias", "normalised",
    # "q", "k" and "v" by head, "k_repeated", "v_repeated", "added" (a second mask), "scores", "weights".
    parts: dict[str, Callable[..., Any]] = field(default_factory=dict)


def distances(b: Builder, mask: str) -> str:
    """[S, S] of k - q."""
    length = b.op("Gather", b.op("Shape", mask), b.const(1), axis=0)
    places = b.op("Range", b.const(0), length, b.const(1))
    return b.op("Sub", b.op("Unsqueeze", places, b.const([0])), b.op("Unsqueeze", places, b.const([1])))


def within(b: Builder, distance: str, left: int | None, right: int | None) -> str | None:
    """[S, S] of conditions: the window in one of several spellings, drawn."""
    sides = []
    if left is not None and left == right and b.random.integers(2):
        return b.op("LessOrEqual", b.op("Abs", distance), b.const(left))
    if left is not None:
        spelled = b.random.integers(3)
        if spelled == 0:
            sides.append(b.op("GreaterOrEqual", distance, b.const(-left)))
        elif spelled == 1:
            sides.append(b.op("Not", b.op("Less", distance, b.const(-left))))
        else:
            sides.append(b.op("Greater", b.op("Add", distance, b.const(left + 1)), b.const(0)))
    if right is not None:
        sides.append(b.op("LessOrEqual", distance, b.const(right)))
    if not sides:
        return None
    return sides[0] if len(sides) == 1 else b.op("And", *sides)


def attend(b: Builder, variant: Variant, x: str = "x", mask: str = "mask") -> str:
    """The context [B, S, heads * size] of one attention."""
    v = variant
    widths = {"q": v.heads * v.size, "k": v.heads // v.shared * v.size, "v": v.heads // v.shared * v.size}
    by_head = {name: _by_head(b, x, name, width, v) for name, width in widths.items()}
    if v.rotated:
        shared = _frequencies(v)
        for name in "qk":
            frequencies = v.parts["k_frequencies"](shared) if name == "k" and "k_frequencies" in v.parts else shared
            by_head[name] = _rotated(b, by_head[name], mask, frequencies, v, name)
    for name in "kv":
        repeat = v.parts.get(f"{name}_repeated", _repeated)
        by_head[name] = repeat(b, by_head[name], mask, v)
    for name in "qkv":
        by_head[name] = v.parts[name](b, by_head[name]) if name in v.parts else by_head[name]
    scores = b.op("MatMul", by_head["q"], b.op("Transpose", by_head["k"], perm=[0, 1, 3, 2]))
    scores = b.op("Mul", scores, b.const(v.size**-0.5))
    if "bias" in v.parts:
        scores = b.op("Add", scores, v.parts["bias"](b, distances(b, mask)))
    seen = within(b, distances(b, mask), v.left, v.right)
    if v.masked:
        keys = b.op("Unsqueeze", b.op("Cast", mask, to=9), b.const([1, 2]))
        seen = keys if seen is None else b.op("And", keys, seen)
    if "hidden" in v.parts:
        seen = v.parts["hidden"](b, mask, seen)
    if seen is not None:
        scores = b.op("Add", scores, b.op("Where", seen, b.const(0.0), b.const(float(np.finfo(np.float32).min))))
    if "added" in v.parts:
        scores = b.op("Add", scores, v.parts["added"](b, mask))
    if "scores" in v.parts:
        scores = v.parts["scores"](b, mask, scores)
    weights = b.op("Softmax", scores, axis=-1)
    if "weights" in v.parts:
        weights = v.parts["weights"](b, mask, weights)
    context = b.op("Transpose", b.op("MatMul", weights, by_head["v"]), perm=[0, 2, 1, 3])
    return b.op("Reshape", context, b.const([0, 0, v.heads * v.size]))


def _by_head(b: Builder, x: str, name: str, width: int, v: Variant) -> str:
    split = b.op("Reshape", b.linear(x, HIDDEN, width, "matmul"), b.const([0, 0, width // v.size, v.size]))
    if v.norm and name in "qk" and "normalised" in v.parts:
        split = v.parts["normalised"](b, split, name, v)
    elif v.norm and name in "qk":
        mean = b.mean(b.op("Mul", split, split))
        inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", mean, b.const(1e-6))))
        split = b.op("Mul", b.op("Mul", split, inverse), b.const(1 + 0.2 * b.random.standard_normal(v.size)))
    return b.op("Transpose", split, perm=[0, 2, 1, 3])


def _frequencies(v: Variant) -> np.ndarray:
    return v.base ** (-np.arange(0, v.rotated, 2) / v.rotated)


def _rotated(b: Builder, x: str, mask: str, frequencies: np.ndarray, v: Variant, name: str) -> str:
    length = b.op("Gather", b.op("Shape", mask), b.const(1), axis=0)
    places = b.op("Cast", b.op("Range", b.const(0), length, b.const(1)), to=1)
    column = b.op("Unsqueeze", places, b.const([1]))
    if v.divided:
        angle = b.op("Div", column, b.const((1 / frequencies)[None].astype(np.float32)))
    else:
        angle = b.op("Mul", column, b.const(frequencies[None].astype(np.float32)))
    angle = v.parts["angle"](b, angle, column) if "angle" in v.parts else angle
    half = v.rotated // 2
    part = lambda start, end, step=1: b.op(  # noqa: E731
        "Slice", x, b.const([start]), b.const([end]), b.const([-1]), b.const([step])
    )
    if v.stored:
        angles = np.arange(v.stored)[:, None] * frequencies
        end = b.op("Unsqueeze", length, b.const([0]))
        cos, sin = (b.op("Slice", b.const(f(angles)), b.const([0]), end, b.const([0])) for f in (np.cos, np.sin))
    else:
        cos, sin = b.op("Cos", angle), b.op("Sin", angle)
    if v.pairs == "halves":
        first, second = part(0, half), part(half, v.rotated)
    else:
        first, second = part(0, v.rotated, 2), part(1, v.rotated, 2)
    turned = (
        v.parts["rotated"](b, first, second, cos, sin, name)
        if "rotated" in v.parts
        else turn(b, first, second, cos, sin)
    )
    if v.pairs == "halves":
        found = b.op("Concat", *turned, axis=-1)
    else:
        beside = b.op("Concat", *(b.op("Unsqueeze", t, b.const([-1])) for t in turned), axis=-1)
        found = b.op("Reshape", beside, b.const([0, 0, 0, v.rotated]))
    return found if v.rotated == v.size else b.op("Concat", found, part(v.rotated, v.size), axis=-1)


def turn(b: Builder, first: str, second: str, cos: str, sin: str) -> list[str]:
    """Both columns of a pair, rotated."""
    return [
        b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, sin)),
        b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, sin)),
    ]


def _repeated(b: Builder, x: str, mask: str, v: Variant) -> str:
    if v.shared == 1:
        return x
    sizes = [b.op("Slice", b.op("Shape", mask), b.const([i]), b.const([i + 1])) for i in range(2)]
    groups = b.const([v.heads // v.shared])
    shape = b.op("Concat", sizes[0], groups, b.const([v.shared]), sizes[1], b.const([v.size]), axis=0)
    spread = b.op("Expand", b.op("Unsqueeze", x, b.const([2])), shape)
    return b.op("Reshape", spread, b.const([0, v.heads, -1, v.size]))


def model(variant: Variant, seed: int, **options: Any) -> onnx.ModelProto:
    """The attention alone between x, mask and context."""
    b = Builder(seed=seed, **options)
    b.input("x", ("B", "S", HIDDEN))
    b.ids("mask")
    b.output(attend(b, variant))
    return b.model()
