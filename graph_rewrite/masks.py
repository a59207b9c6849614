"""Nodes that turn what an exporter has for a mask into the [B, S] integers that ops take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_graphsurgeon as gs

if TYPE_CHECKING:
    from .graph import FusionGraph

_TAKEN = (np.int32, np.int64)


def integers(graph: FusionGraph, mask: gs.Tensor, inverted: bool) -> gs.Tensor:
    """`mask` [B, S] or [B, 1, 1, S] of any number type as [B, S] integers, 0 and 1 exchanged if it is `inverted`."""
    batch, length = mask.shape[0], mask.shape[-1]
    tensor = mask

    def add(op: str, inputs: list[gs.Tensor], dtype: np.dtype | type, shape: list, **attributes: int) -> gs.Tensor:
        made = graph.variable(f"{mask.name}_{op.lower()}", dtype, shape)
        graph.add_node(op, inputs, [made], **attributes)
        return made

    if len(mask.shape) > 2:
        axes = graph.constant(f"{mask.name}_axes", np.arange(1, len(mask.shape) - 1))
        tensor = add("Squeeze", [tensor, axes], mask.dtype, [batch, length])
    if inverted:
        if tensor.dtype != bool:
            tensor = add("Cast", [tensor], bool, tensor.shape, to=onnx.TensorProto.BOOL)
        tensor = add("Not", [tensor], bool, tensor.shape)
    if tensor.dtype not in _TAKEN:
        tensor = add("Cast", [tensor], np.int32, tensor.shape, to=onnx.TensorProto.INT32)
    return tensor
