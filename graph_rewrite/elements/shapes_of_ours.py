"""The shapes that our own ops give, by their descriptions. Their bodies broadcast a residual, so that y is as large.

Of the dialect's nodes a product has a rule, for graphs of which sizes are assumed; of others it holds what followed
from the nodes that they took the place of.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..nodes import DIALECT
from ..ops import OPS
from ..spec import DOMAIN
from . import poly
from .engine import Elements
from .poly import Poly
from .shape_table import rule


@rule(f"{DIALECT}::Linear")
def _of_linear(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return [*elements.shape(node.inputs[0])[:-1], elements.shape(node.inputs[1])[0]]


@rule(*(f"{DOMAIN}::{name}" for name in OPS))
def _of_ours(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    spec = OPS[node.op]
    leading: list[list[Poly]] = []
    sizes: dict[str, Poly] = {}
    for tensor_spec, tensor in zip(spec.inputs, node.inputs, strict=False):
        if tensor.is_empty():
            continue
        shape = elements.shape(tensor)
        if tensor_spec.leading:
            leading.append(shape[: len(shape) - len(tensor_spec.trailing)])
        for axis, size in zip(tensor_spec.trailing[::-1], shape[::-1], strict=False):
            if axis.is_plain and not axis.is_attribute:
                sizes.setdefault(axis.symbol, size)
            elif size.constant is not None and not axis.is_attribute:
                sizes.setdefault(axis.symbol, poly.number(axis.symbol_size(size.constant, node.attrs)))
    given = (*spec.outputs, *spec.quantized_outputs)[output]
    found = elements.broadcast(leading, node) if given.leading else []
    for axis in given.trailing:
        size = sizes.get(axis.symbol)
        if size is not None and size.constant is not None and not axis.is_attribute:
            size = poly.number(axis.size({axis.symbol: size.constant}, node.attrs))
        elif not axis.is_plain:
            size = None
        found.append(elements.unknown() if size is None else size)
    return found
