"""Nodes that turn what an exporter has for a mask into the [B, S] integers that ops take: 0 hides a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from .nodes import NoMatch, data_type
from .proof.rule import Rule

if TYPE_CHECKING:
    from .graph import FusionGraph

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
    if rule.guarded:
        return _looked_up(make, tensor, rule)
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

    def add(self, op: str, inputs: list[gs.Tensor], dtype: Any, **attributes: int) -> gs.Tensor:
        made = self._graph.variable(f"{self._mask.name}_{op.lower()}", np.dtype(dtype), self._shape)
        self._graph.add_node(op, inputs, [made], **attributes)
        return made

    def cast(self, tensor: gs.Tensor, dtype: Any) -> gs.Tensor:
        return tensor if tensor.dtype == dtype else self.add("Cast", [tensor], dtype, to=data_type(np.dtype(dtype)))

    def constant(self, value: Any, dtype: Any) -> gs.Constant:
        return self._graph.constant(f"{self._mask.name}_value", np.array(value).astype(dtype))

    def squeezed(self) -> gs.Tensor:
        rank = len(self._mask.shape)
        axes = self._graph.constant(f"{self._mask.name}_axes", np.arange(1, rank - 1)) if rank > 2 else None
        return self._mask if axes is None else self.add("Squeeze", [self._mask, axes], self._mask.dtype)


def _looked_up(make: _Maker, tensor: gs.Tensor, rule: Rule) -> gs.Tensor:
    """The mask itself where it is 0 or 1, 0 where it is below.

    Above 1 the model lifts a key over all others, which no mask does: the Gather then reads beyond its table, and
    ends the run with a message.
    """
    dtype = tensor.dtype if tensor.dtype in _TAKEN else np.int64
    tensor = make.cast(tensor, dtype)
    if rule.low == 0:
        tensor = make.add("Sub", [make.constant(1, dtype), tensor], dtype)
    tensor = make.add("Max", [tensor, make.constant(0, dtype)], dtype)
    return make.add("Gather", [make.constant([0, 1], dtype), tensor], dtype, axis=0)


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
