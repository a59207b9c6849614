"""Rows of tables by ids and by places, and what an EmbedLayerNorm that took them reads."""

from __future__ import annotations

import numpy as np

from bertfuse.graph_rewrite import OPS, FusionResult
from tests.graph_rewrite.graphs import Builder

H, P = 16, 40


def sliced_positions(b: Builder, ids: str, longest: int = P) -> str:
    """The buffer 0, 1, ... of BertEmbeddings, cut to the length of ids: [1, S]."""
    length = b.op("Gather", b.op("Shape", ids), b.const([1]), axis=0)
    return b.op("Slice", b.const(np.arange(longest)[None]), b.const([0]), length, b.const([1]))


def range_positions(b: Builder, ids: str) -> str:
    length = b.op("Squeeze", b.op("Gather", b.op("Shape", ids), b.const([1]), axis=0), b.const([0]))
    return b.op("Range", b.const(0), length, b.const(1))


def inputs_of(result: FusionResult) -> dict[str, str]:
    """The inputs that the model's one EmbedLayerNorm has, by their names in the op."""
    (node,) = (n for n in result.model.graph.node if n.op_type == "EmbedLayerNorm")
    return {tensor.name: name for tensor, name in zip(OPS[node.op_type].inputs, node.input, strict=False) if name}


def lookup(b: Builder, rows: int, index: str, table: str = "") -> str:
    return b.op("Gather", table or b.weight(rows, H), index, axis=0)
