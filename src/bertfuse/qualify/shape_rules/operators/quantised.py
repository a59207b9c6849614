"""QuantizeLinear and its kin, and the losses."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..draw import Draw
from .registry import draws


def _scales(d: Draw, name: str, attrs: dict) -> list[int]:
    """The shape of the scales: for the tensor, for an axis, or for blocks along one. Sets axis and block_size."""
    shape = list(d.shape(name))
    roll = d.r.random()
    if roll < 0.5 or not shape:
        return [] if roll < 0.35 else [1] if d.opset < 21 else []
    axis = d.axis(len(shape))
    attrs["axis"] = axis
    if roll < 0.8 or d.opset < 21 or not shape[axis]:
        return [shape[axis]]
    block = d.r.choice((1, 2, shape[axis]))
    attrs["block_size"] = block
    shape[axis] = -(-shape[axis] // block)
    return shape


@draws("QuantizeLinear")
def quantize_linear(d: Draw, op: str) -> None:
    attrs: dict = {}
    name = d.tensor((np.float32,), (0, 4))
    scale = _scales(d, name, attrs)
    inputs = [name, d.given(np.full(scale, 0.5, np.float32))]
    if d.chance(0.6):
        inputs.append(d.given(np.full(scale, 1, d.r.choice((np.uint8, np.int8)))))
    elif d.opset >= 21 and d.chance(0.5):
        attrs["output_dtype"] = d.r.choice((TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16))
    d.node(op, inputs, **attrs)


@draws("DequantizeLinear")
def dequantize_linear(d: Draw, op: str) -> None:
    attrs: dict = {}
    name = d.tensor((np.uint8, np.int8), (0, 4))
    scale = _scales(d, name, attrs)
    inputs = [name, d.given(np.full(scale, 0.5, np.float32))]
    if d.chance(0.6):
        inputs.append(d.given(np.full(scale, 1, d.dtype(name))))
    d.node(op, inputs, **attrs)


@draws("DynamicQuantizeLinear")
def dynamic_quantize_linear(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((np.float32,), (0, 4), lambda v: v.size > 0)], outputs=3)


@draws("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,), (2, 4), lambda v: v.size > 0)
    shape = d.shape(name)
    labels = d.input(np.zeros([shape[0], *shape[2:]], np.int64), None, lambda rng, sizes: np.zeros(sizes, np.int64))
    inputs = [name, labels] + ([d.new([shape[1]])] if d.chance(0.3) else [])
    outputs = d.r.choice((1, 2)) if op == "SoftmaxCrossEntropyLoss" else 1
    d.node(op, inputs, outputs=outputs, reduction=d.maybe(d.r.choice(("none", "mean", "sum"))),
           ignore_index=d.maybe(1, 0.3))  # fmt: skip
