"""Who reads only the shape of a tensor can read it off another one: then the tensor itself may go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

if TYPE_CHECKING:
    from .graph import FusionGraph


def donor(shape: gs.Node, others: Sequence[gs.Tensor]) -> gs.Tensor | None:
    """The first of `others` that has the shape which this Shape node asks for, or all of it but the last number."""
    dims = shape.inputs[0].shape
    if shape.op != "Shape" or not dims or None in dims:
        return None
    whole = not shape.attrs.get("start") and "end" not in shape.attrs
    for other in others:
        known = None if other.shape is None or other.is_empty() else list(other.shape)
        if known == list(dims) or (whole and known == list(dims[:-1]) and isinstance(dims[-1], int)):
            return other
    return None


def forward(graph: FusionGraph, shape: gs.Node, others: Sequence[gs.Tensor]) -> bool:
    """Let the Shape node read its donor. False where there is none."""
    tensor, given = shape.inputs[0], donor(shape, others)
    if given is None:
        return False
    if len(given.shape) == len(tensor.shape):
        shape.inputs[0] = given
        return True
    # [B, S] of ids in place of [B, S, H] of their rows.
    leading = graph.variable(f"{given.name}_shape", np.int64, [len(given.shape)])
    graph.add_node("Shape", [given], [leading])
    last = graph.constant(f"{tensor.name}_size", np.array(tensor.shape[-1:], np.int64))
    outputs = list(shape.outputs)
    shape.outputs.clear()
    shape.inputs.clear()
    graph.add_node("Concat", [leading, last], outputs, axis=0)
    return True
