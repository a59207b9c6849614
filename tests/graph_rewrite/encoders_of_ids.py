"""A small encoder over ids and a mask [B, S]: a row for each token, and their mean."""

from __future__ import annotations

import numpy as np
import onnx

from tests.graph_rewrite.attentions import HIDDEN, Attention, attend
from tests.graph_rewrite.graphs import Builder

VOCABULARY, PLACES = 50, 64


def encoder(
    axes: tuple[str | int, str | int] = ("B", "S"), token_types: bool = False, opset: int = 17
) -> onnx.ModelProto:
    """Inputs `ids`, `attention_mask` and maybe `token_type_ids`; outputs [B, S, 16] and [B, 16]."""
    b = Builder(opset)
    ids, mask = b.ids("ids", axes), b.ids("attention_mask", axes)
    x = b.op("Gather", b.weight(VOCABULARY, HIDDEN), ids, axis=0)
    if token_types:
        x = b.op("Add", x, b.op("Gather", b.weight(2, HIDDEN), b.ids("token_type_ids", axes), axis=0))
    length = b.op("Squeeze", b.op("Slice", b.op("Shape", ids), b.const([1]), b.const([2])), b.const([0]))
    places = b.op("Unsqueeze", b.op("Range", b.const(0), length, b.const(1)), b.const([0]))
    x = b.layer_norm(b.op("Add", x, b.op("Gather", b.weight(PLACES, HIDDEN), places, axis=0)), HIDDEN)
    context = b.linear(attend(b, x, Attention(mask="where"), mask), HIDDEN, HIDDEN)
    y = b.layer_norm(b.op("Add", context, x), HIDDEN)
    wide = b.gelu(b.linear(y, HIDDEN, 2 * HIDDEN))
    y = b.layer_norm(b.op("Add", b.linear(wide, 2 * HIDDEN, HIDDEN), y), HIDDEN)
    kept = b.op("Cast", b.op("Unsqueeze", mask, b.const([2])), to=onnx.TensorProto.FLOAT)
    count = b.op("Max", b.op("ReduceSum", kept, b.const([1]), keepdims=0), b.const(1e-9))
    b.output(y, b.op("Div", b.op("ReduceSum", b.op("Mul", y, kept), b.const([1]), keepdims=0), count))
    return b.model()


def rename(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    """The model, in which the tensor is called otherwise."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = new if name == old else name
    for value in (*model.graph.output, *model.graph.value_info, *model.graph.initializer):
        value.name = new if value.name == old else value.name
    return model


def ids_and_mask(batch: int, length: int, token_types: bool = False) -> dict[str, np.ndarray]:
    """Random ids, a mask of ones and maybe token types, each [batch, length]."""
    random = np.random.default_rng(0)
    feed = {
        "ids": random.integers(0, VOCABULARY, (batch, length)),
        "attention_mask": np.ones((batch, length), np.int64),
    }
    return feed | ({"token_type_ids": random.integers(0, 2, (batch, length))} if token_types else {})
