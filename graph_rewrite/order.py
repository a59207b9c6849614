"""What a node reads, its bodies with it, and nodes in topological order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import onnx_graphsurgeon as gs

from .nodes import producer


def topological(nodes: list[gs.Node]) -> list[gs.Node]:
    """The nodes with each behind those that it reads from, otherwise in the order given."""
    index = {id(node): i for i, node in enumerate(nodes)}
    missing, users = {}, {}
    for node in nodes:
        needed = {id(p) for t in inputs_of(node) if (p := producer(t)) is not None and id(p) in index}
        missing[id(node)] = len(needed)
        for need in needed:
            users.setdefault(need, []).append(node)
    ready = [index[id(node)] for node in nodes if not missing[id(node)]]
    heapq.heapify(ready)
    order = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for user in users.get(id(node), ()):
            missing[id(user)] -= 1
            if not missing[id(user)]:
                heapq.heappush(ready, index[id(user)])
    return order


def inputs_of(node: gs.Node) -> Iterable[gs.Tensor]:
    """The tensors a node reads, those of its subgraphs among them."""
    yield from node.inputs
    yield from read_by_bodies(node)


def read_by_bodies(node: gs.Node) -> Iterable[gs.Tensor]:
    """The tensors that the node's subgraphs read, inner and outer ones."""
    for value in node.attrs.values():
        if isinstance(value, gs.Graph):
            yield from value.outputs
            for inner in value.nodes:
                yield from inputs_of(inner)


def names_in_bodies(node: gs.Node) -> Iterable[str]:
    """Names of tensors in the node's subgraphs: the outer graph may not have them, too."""
    for value in node.attrs.values():
        if isinstance(value, gs.Graph):
            yield from value.tensors()
            for inner in value.nodes:
                yield from names_in_bodies(inner)
