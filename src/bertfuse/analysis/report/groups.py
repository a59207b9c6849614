"""Which layer each node of a graph belongs to, before and after fusion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from bertfuse.graph_rewrite import Part
from bertfuse.graph_rewrite.spec import DOMAIN


@dataclass
class Item:
    """A node: its type, name, first output and the tensors it reads; `op` is the fused op it is, or went into.

    `missed` says that a match broke here, `gone` that the fused graph does without it and no op has it.
    """

    kind: str
    name: str
    output: str
    inputs: list[str]
    outputs: list[str]
    op: str = ""
    missed: bool = False
    gone: bool = False
    layer: int | None = None


@dataclass
class Side:
    """One of the two graphs, in the order of its nodes, with its inputs and outputs."""

    items: list[Item]
    inputs: list[str]
    outputs: list[str]
    by_layer: dict[int, list[Item]] = field(default_factory=dict)


def sides(original: onnx.ModelProto, fused: onnx.ModelProto, parts: list[Part], layers: int) -> tuple[Side, Side]:
    """Both graphs with every node in a layer: 0 before the first, layers + 1 after the last.

    Layers of nodes that no part speaks of follow from what reads them: what several layers read belongs to none.
    """
    before, after = _side(original), _side(fused)
    into = {output: part for part in parts for output in part.replaced}
    made = {part.output: part for part in parts if part.output}
    # Packed rows are another tensor, but the node keeps its name.
    named = {f"{part.op}_{part.output}": part for part in made.values()}
    anchors = {part.anchor: part for part in parts}
    broken = {part.miss.node for part in parts if part.miss}
    for item in before.items:
        part = into.get(item.output)
        if part is not None:
            item.op, item.layer = part.op, part.layer
        elif item.name in anchors:
            item.layer = anchors[item.name].layer
        item.missed = item.name in broken
    _spread(before, layers)
    known = {item.output: item.layer for item in before.items if not item.op}
    for item in after.items:
        part = made.get(item.output) or named.get(item.name) if item.op else None
        item.layer = part.layer if part is not None else known.get(item.output)
        item.missed = item.name in broken and not item.op
    _spread(after, layers)
    kept = {name for item in after.items for name in item.outputs}
    for item in before.items:
        item.gone = not item.op and item.output not in kept
    return before, after


def _side(model: onnx.ModelProto) -> Side:
    graph = model.graph
    initial = {tensor.name for tensor in graph.initializer}
    items = []
    for node in graph.node:
        if node.op_type == "Constant" or not node.output:
            continue
        name = node.name or f"{node.op_type}->{node.output[0]}"
        op = node.op_type if node.domain == DOMAIN else ""
        reads = [name for name in _reads(node) if name and name not in initial]
        items.append(Item(node.op_type, name, node.output[0], reads, list(node.output), op))
    inputs = [value.name for value in graph.input if value.name not in initial]
    return Side(items, inputs, [value.name for value in graph.output])


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _reads(inner)


def _spread(side: Side, layers: int) -> None:
    """Give the items without a layer one, and fill `by_layer`."""
    reached: dict[str, int] = {}  # tensor -> the last layer above it
    for item in side.items:
        least = max((reached.get(name, 0) for name in item.inputs), default=0)
        reached.update(dict.fromkeys(item.outputs, least if item.layer is None else item.layer))
    readers: dict[str, set[int]] = {}
    for item in reversed(side.items):
        if item.layer is None:
            item.layer = _layer(item, readers, reached, layers)
        for name in item.inputs:
            readers.setdefault(name, set()).add(item.layer)
    for item in side.items:
        side.by_layer.setdefault(item.layer or 0, []).append(item)


def _layer(item: Item, readers: Mapping[str, set[int]], reached: Mapping[str, int], layers: int) -> int:
    users = set().union(*(readers.get(name, set()) for name in item.outputs))
    start = reached[item.outputs[0]]
    if not users:
        return layers + 1 if layers and start >= layers else start
    return 0 if len(users) > 1 and start == 0 else min(users)
