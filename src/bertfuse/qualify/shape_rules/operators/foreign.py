"""Operators of other domains, many with the names of standard ones: com.microsoft's, ai.onnx.ml's, local functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import scopes
from ..draw import Draw

_MICROSOFT, _ML = "com.microsoft", "ai.onnx.ml"
_NAMES = (
    "Shape", "Size", "Reshape", "Mul", "Add", "Sub", "Transpose", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze",
    "Expand", "Identity", "Cast", "MatMul", "Softmax", "Where", "Range", "ConstantOfShape", "ReduceSum", "Custom",
)  # fmt: skip


def local_function(d: Draw) -> None:
    """A call of a function of the model: a new one, mostly by the name of a standard operator."""
    inputs = [d.tensor((np.float32, np.int64), (0, 3)) for _ in range(d.r.choice((1, 1, 2)))]
    name = d.r.choice(_NAMES) + ("" if d.chance(0.8) else str(len(d.plan.functions)))
    domain = d.r.choice(("my", "my", "pkg.torch", "custom.ops"))
    if any((f.domain, f.name) == (domain, name) for f in d.plan.functions):
        name += str(len(d.plan.functions))
    name, attrs = scopes.function(d, inputs, name, domain, d.chance(0.3))
    made = d.node(name, inputs, domain=domain, **attrs)
    if d.chance(0.3):  # once more, of something else
        others = [d.tensor((d.dtype(given),), d.rank(given), old=0.3) for given in inputs]
        d.node(name, others, domain=domain, **attrs)
    if d.chance(0.5):
        d.node("Shape", [made])


def _microsoft(d: Draw, op: str, inputs: list[str], outputs: int = 1, **attrs: object) -> None:
    d.plan.domains[_MICROSOFT] = 1
    made = d.node(op, inputs, outputs=outputs, domain=_MICROSOFT, **attrs)
    if d.chance(0.4):
        d.node("Shape", [made if outputs == 1 else made[0]])


def _attention(d: Draw) -> None:
    batch, length, heads, width = d.size(), d.size(), d.r.choice((1, 2)), d.r.choice((2, 4))
    hidden = heads * width
    inputs = [d.new([batch, length, hidden]), d.new([hidden, 3 * hidden]), d.new([3 * hidden])]
    _microsoft(d, "Attention", inputs, num_heads=heads)


def _gather_nd(d: Draw) -> None:
    name = d.tensor((np.float32,), (2, 3), lambda v: v.size > 0)
    depth = d.r.randint(1, d.rank(name))
    _microsoft(d, "GatherND", [name, d.given(np.zeros([d.r.choice((1, 2)), depth], np.int64))])


def _fused_matmul(d: Draw) -> None:
    m, k, n, batch = d.size(), d.size(), d.size(), d.size()
    first, second = d.r.randrange(2), d.r.randrange(2)
    inputs = [d.new([batch, k, m] if first else [batch, m, k]), d.new([batch, n, k] if second else [batch, k, n])]
    _microsoft(d, d.r.choice(("FusedMatMul", "TransposeMatMul")), inputs, transA=first, transB=second)


def _range(d: Draw) -> None:
    _microsoft(d, "Range", [d.given(np.array(n, np.int64)) for n in (0, d.r.randint(1, 7), d.r.choice((1, 2)))])


def _pad(d: Draw) -> None:
    name = d.tensor((np.float32,), (1, 3))
    amounts = np.array([d.r.randrange(3) for _ in range(2 * d.rank(name))], np.int64)
    _microsoft(d, "Pad", [name, d.given(amounts)])


def _others(d: Draw) -> None:
    op = d.r.choice(("Gelu", "QuickGelu", "Trilu", "BiasGelu", "ExpandDims", "SkipLayerNormalization", "Inverse",
                     "UnfoldTensor", "Unique"))  # fmt: skip
    if op == "Unique":
        _microsoft(d, op, [d.tensor((np.float32,), 1)], outputs=3)
        return
    name = d.tensor((np.float32,), (2, 3))
    if op == "BiasGelu":
        _microsoft(d, op, [name, d.new(d.shape(name)[-1:])])
    elif op == "ExpandDims":
        _microsoft(d, op, [name, d.given(np.array(d.r.choice((0, 1, -1)), np.int32))])
    elif op == "SkipLayerNormalization":
        name = d.tensor((np.float32,), 3)
        _microsoft(d, op, [name, d.new(d.shape(name)), d.new(d.shape(name)[-1:])])
    elif op == "UnfoldTensor":
        _microsoft(d, op, [name], size=1, dim=0)
    else:
        _microsoft(d, op, [name])


def _machine_learning(d: Draw) -> None:
    d.plan.domains[_ML] = 3
    way = d.r.choice(("ArrayFeatureExtractor", "Binarizer", "OneHotEncoder", "Normalizer", "Scaler"))
    name = d.tensor((np.float32,), 2)
    width = d.shape(name)[1]
    if way == "ArrayFeatureExtractor":
        made = d.node(way, [name, d.given(np.zeros(d.r.choice((1, 2)), np.int64))], domain=_ML)
    elif way == "Binarizer":
        made = d.node(way, [name], domain=_ML, threshold=0.1)
    elif way == "OneHotEncoder":
        made = d.node(way, [d.tensor((np.int64,), (1, 2))], domain=_ML, cats_int64s=[0, 1, 2])
    elif way == "Normalizer":
        made = d.node(way, [name], domain=_ML, norm="L2")
    else:
        made = d.node(way, [name], domain=_ML, offset=[0.0] * width, scale=[1.0] * width)
    d.node("Shape", [made])


FOREIGN: dict[str, Callable[[Draw], None]] = {
    "a local function": local_function,
    "com.microsoft::Attention": _attention,
    "com.microsoft::GatherND": _gather_nd,
    "com.microsoft::FusedMatMul": _fused_matmul,
    "com.microsoft::Range": _range,
    "com.microsoft::Pad": _pad,
    "com.microsoft's": _others,
    "ai.onnx.ml's": _machine_learning,
}
