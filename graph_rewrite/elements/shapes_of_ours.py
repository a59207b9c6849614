"""The shapes that our own ops give, by their descriptions. Their bodies broadcast a residual, so that y is as large."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..ops import ALL_OPS
from ..spec import DOMAIN
from . import poly
from .engine import Elements
from .poly import Poly
from .shape_table import rule


@rule(*(f"{DOMAIN}::{name}" for name in ALL_OPS))
def _of_ours(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    spec = ALL_OPS[node.op]
    leading: list[list[Poly]] = []
    sizes: dict[str, Poly] = {}
    for tensor_spec, tensor in zip(spec.inputs, node.inputs, strict=False):
        if tensor.is_empty():
            continue
        shape = elements.shape(tensor)
        if tensor_spec.leading:
            leading.append(shape[: len(shape) - len(tensor_spec.trailing)])
        for axis, size in zip(tensor_spec.trailing[::-1], shape[::-1], strict=False):
            if axis.multiplier == 1 and axis.offset == 0 and not axis.is_attribute:
                sizes.setdefault(axis.symbol, size)
            elif size.constant is not None and not axis.is_attribute:
                sizes.setdefault(axis.symbol, poly.number((size.constant - axis.offset) // axis.multiplier))
    given = spec.outputs[output]
    found = elements.broadcast(leading, node) if given.leading else []
    for axis in given.trailing:
        plain = axis.divisor is None and axis.offset == 0 and axis.multiplier == 1
        found.append(sizes.get(axis.symbol, elements.unknown()) if plain else elements.unknown())
    return found
