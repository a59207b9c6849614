"""Who reads only the shape of a tensor can read it off another one: then the tensor itself may go."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs


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
