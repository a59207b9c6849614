"""What heads are made of: the projection or norm above them, and the nodes on the way."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..dialect.pattern import LINEAR, RMS_NORM
from ..nodes import DIALECT, NoMatch, producer

_MAX_NODES = 400
# What angles are made of belongs to all layers; a Shape is of no value.
_ENDS = ("Cos", "Sin", "Shape")


def base_of(tensor: gs.Tensor, what: str) -> tuple[gs.Tensor, list[gs.Node]]:
    """The projection or norm that the tensor is made of, and the nodes on the way."""
    found: dict[int, gs.Tensor] = {}
    order, stack, seen = [], [tensor], set()
    while stack:
        current = stack.pop()
        node = producer(current)
        if node is None or id(current) in seen or len(seen) > _MAX_NODES:
            continue
        seen.add(id(current))
        if node.domain == DIALECT and node.op in (LINEAR, RMS_NORM):
            found[id(current)] = current
        elif node.op not in _ENDS:
            order.append(node)
            stack.extend(node.inputs)
    if len(found) != 1:
        names = ", ".join(f"'{t.name}'" for t in found.values()) or "none"
        raise NoMatch(producer(tensor) or tensor.name, f"{what} comes from projections {names}", wanted="one")
    (base,) = found.values()
    above = {id(base)}
    for node in reversed(_sorted(order, base)):
        above.update(id(t) for t in node.outputs)
    return base, [node for node in order if any(id(t) in above for t in node.outputs)]


def _sorted(nodes: list[gs.Node], base: gs.Tensor) -> list[gs.Node]:
    """Of the nodes those that the base leads to, the last ones first."""
    wanted, left, found = {id(base)}, list(nodes), []
    while True:
        ready = [n for n in left if any(id(t) in wanted for t in n.inputs)]
        if not ready:
            return found[::-1]
        found += ready
        wanted.update(id(t) for n in ready for t in n.outputs)
        left = [n for n in left if not any(n is r for r in ready)]
