"""Nodes that turn what an exporter has for a mask into the [B, S] integers that ops take: 0 hides a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import FusionGraph
from ..nodes import NoMatch, data_type
from ..shapes import Dim
from .rule import Rule

_TAKEN = (np.int32, np.int64)
# Types that ONNX Runtime does not compare everywhere, and ones that hold all of their values.
_COMPARED = {
    "int8": np.int32, "uint8": np.int32, "int16": np.int32, "uint16": np.int32, "uint32": np.int64,
    "float16": np.float32, "bfloat16": np.float32,
}  # fmt: skip


def visible(graph: FusionGraph, mask: gs.Tensor, rule: Rule) -> gs.Tensor:
    """[B, S] integers, not 0 where `rule` shows the key of `mask` [B, S] or [B, 1, 1, S]."""
    make = _Maker(graph, mask)
    tensor = make.squeezed()
    if rule.lifting:
        return _greatest(make, tensor, rule)
    if rule.is_ops and tensor.dtype in _TAKEN:
        return tensor
    if rule.is_ops or rule.is_opposite:
        shown = make.cast(tensor, bool)
        shown = make.add("Not", [shown], bool) if rule.is_opposite else shown
    else:
        shown = _compared(make, tensor, rule)
    return make.cast(shown, np.int32)


class _Maker:
    """Adds nodes whose names begin with the mask's."""

    def __init__(self, graph: FusionGraph, mask: gs.Tensor) -> None:
        self._graph, self._mask = graph, mask
        self._shape = [mask.shape[0], mask.shape[-1]]

    def add(
        self, op: str, inputs: list[gs.Tensor], dtype: Any, shape: list[Dim] | None = None, **attributes: Any
    ) -> gs.Tensor:
        made = self._graph.variable(f"{self._mask.name}_{op.lower()}", np.dtype(dtype), shape or self._shape)
        self._graph.add_node(op, inputs, [made], **attributes)
        return made

    def cast(self, tensor: gs.Tensor, dtype: Any) -> gs.Tensor:
        return tensor if tensor.dtype == dtype else self.add("Cast", [tensor], dtype, to=data_type(np.dtype(dtype)))

    def constant(self, value: Any, dtype: Any) -> gs.Constant:
        return self._graph.constant(f"{self._mask.name}_value", np.array(value).astype(dtype))

    def reduced(self, op: str, tensor: gs.Tensor) -> gs.Tensor:
        """[B, 1] of [B, S]; axes are an attribute up to opset 17."""
        shape = [self._shape[0], 1]
        if self._graph.opset < 18:
            return self.add(op, [tensor], tensor.dtype, shape, axes=[1], keepdims=1)
        return self.add(op, [tensor, self.constant([1], np.int64)], tensor.dtype, shape, keepdims=1)

    def squeezed(self) -> gs.Tensor:
        rank = len(self._mask.shape)
        axes = self._graph.constant(f"{self._mask.name}_axes", np.arange(1, rank - 1)) if rank > 2 else None
        return self._mask if axes is None else self.add("Squeeze", [self._mask, axes], self._mask.dtype)


def _greatest(make: _Maker, tensor: gs.Tensor, rule: Rule) -> gs.Tensor:
    """Whether a key has the greatest number of its text (the least, where 0 shows a key), but at least 1 (at most 0).

    Each 1 more lifts a key by thousands over all others, and takes their weight: of 0, 1 and 2 only 2 is visible.
    """
    dtype = tensor.dtype if tensor.dtype in _TAKEN else np.int64
    tensor = make.cast(tensor, dtype)
    upwards = rule.low == 1
    reduce, limit = ("ReduceMax", "Max") if upwards else ("ReduceMin", "Min")
    greatest = make.reduced(reduce, tensor)
    greatest = make.add(limit, [greatest, make.constant(1 if upwards else 0, dtype)], dtype, shape=greatest.shape)
    return make.cast(make.add("Equal", [tensor, greatest], bool), np.int32)


def _compared(make: _Maker, tensor: gs.Tensor, rule: Rule) -> gs.Tensor:
    given = np.dtype(tensor.dtype)
    if given == np.uint64:
        raise NoMatch(tensor.name, f"'{tensor.name}' is uint64", wanted="a mask that is not 0 where it shows a key")
    dtype = np.dtype(_COMPARED.get(given.name, given))
    tensor = make.cast(tensor, dtype)
    low, high = make.constant(rule.low, dtype), make.constant(rule.high, dtype)
    if rule.low == rule.high:
        shown = make.add("Equal", [tensor, low], bool)
    else:
        bounds = []
        if rule.low != _least(given):
            bounds.append(make.add("GreaterOrEqual", [tensor, low], bool))
        if rule.high != -_least(given) - (given.kind in "iu"):
            bounds.append(make.add("LessOrEqual", [tensor, high], bool))
        shown = bounds[0] if len(bounds) == 1 else make.add("And", bounds, bool)
    return make.add("Not", [shown], bool) if rule.outside else shown


def _least(dtype: np.dtype) -> float | int:
    return int(np.iinfo(dtype).min) if dtype.kind in "iu" else -np.inf
