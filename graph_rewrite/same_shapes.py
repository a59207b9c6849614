"""Axes of inputs that share a name are of one size: where no op compares them, nodes of the fused model do."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from .elements import Elements
from .elements.poly import Poly
from .graph import FusionGraph
from .nodes import NoMatch
from .passes import rows
from .spec import DOMAIN

# What kernels and bodies compare: the axes [B, S] of these inputs with those of the first.
COMPARED = {
    "EmbedLayerNorm": ("ids", "token_type_ids", "position_ids"),
    "FusedAttention": ("qkv", "mask"),
    "FusedAttentionVariant": ("qkv", "mask"),
}

_Axis = tuple[gs.Tensor, int]


def check(graph: FusionGraph) -> None:
    """Let the run end where axes of inputs that share a name are of different sizes.

    A runtime compares sizes that are declared as numbers, and no names: it takes a mask [1, S] beside ids [B, S], and
    the original broadcasts it. Whatever fusion believes of sizes rests on the names. What ops compare is not compared
    again; the rest takes a Reshape for each axis, for which no kernel runs on a device.
    """
    named: dict[str, list[_Axis]] = {}
    for tensor in graph.gs.inputs:
        for axis, dim in enumerate(tensor.shape or ()):
            if isinstance(dim, str):
                named.setdefault(dim, []).append((tensor, axis))
    shared = [axes for axes in named.values() if len(axes) > 1]
    if not shared:
        return
    sizes, nodes = _Sizes(graph), _Comparison(graph)
    for axes in shared:
        first, *others = sizes.groups(axes)
        for group in others:
            nodes.add(group[0], first[0])
    nodes.finish()


class _Sizes:
    """Which axes of inputs are of one size wherever a run does not end with an error, whatever they are called."""

    def __init__(self, graph: FusionGraph) -> None:
        self._elements = Elements(graph.gs.inputs, graph.constants, graph.elements.nonempty, believe_names=False)
        self._leaders: dict[Poly, Poly] = {}
        seen = set()
        for node in graph.gs.nodes:
            first, *others = COMPARED.get(node.op, ("",)) if node.domain == DOMAIN else ("",)
            for tensor in [rows.get_input(node, name) for name in others]:
                if tensor is not None and id(tensor) not in seen:  # the first layer's mask is that of all
                    seen.add(id(tensor))
                    with contextlib.suppress(NoMatch):
                        self._compared(rows.get_input(node, first), tensor)

    def _compared(self, first: gs.Tensor, tensor: gs.Tensor) -> None:
        for one, other in zip(self._elements.shape(first)[:2], self._elements.shape(tensor), strict=True):
            self._leaders[self._leader(one)] = self._leader(other)

    def _leader(self, size: Poly) -> Poly:
        while (above := self._leaders.get(size, size)) != size:
            size = above
        return size

    def groups(self, axes: list[_Axis]) -> list[list[_Axis]]:
        """The axes, those of one size together."""
        found: dict[Poly, list[_Axis]] = {}
        for tensor, axis in axes:
            found.setdefault(self._leader(self._elements.shape(tensor)[axis]), []).append((tensor, axis))
        return list(found.values())


class _Comparison:
    """Nodes that end a run: Reshape(x, [0, S]), of which 0 leaves an axis as it is, fails unless x is S long."""

    def __init__(self, graph: FusionGraph) -> None:
        self._graph, self._users = graph, rows.consumers(graph)
        self._shapes: dict[int, gs.Tensor] = {}
        self._made: dict[int, tuple[gs.Tensor, gs.Tensor]] = {}

    def add(self, one: _Axis, other: _Axis) -> None:
        """Compare the sizes of two axes; where no node reads either tensor there is nothing to be wrong."""
        for (tensor, axis), like in ((one, other), (other, one)):
            if id(tensor) in self._users:
                name = f"{tensor.name}_of_one_size_with_{like[0].name}"
                current = self._made.get(id(tensor), (tensor, tensor))[1]
                made = self._node("Reshape", [current, self._wanted(axis, len(tensor.shape), *like)], name, tensor)
                self._made[id(tensor)] = tensor, made
                return

    def finish(self) -> None:
        """Let whoever read a tensor read what was compared."""
        for tensor, made in self._made.values():
            for user in self._users[id(tensor)]:
                rows.retarget(user, tensor, made)
        self._graph.finish()

    def _wanted(self, axis: int, rank: int, like: gs.Tensor, of: int) -> gs.Tensor:
        """[0, ..., the size of axis `of`, ..., 0]. Of a Concat ONNX Runtime's optimizer would make a shape with -1."""
        if id(like) not in self._shapes:
            self._shapes[id(like)] = self._node("Shape", [like], f"{like.name}_shape")
        size = self._shapes[id(like)]
        if (of, len(like.shape)) != (axis, rank):
            index = self._graph.constant("axis", np.full(rank, of, np.int64))
            size = self._node("Gather", [size, index], f"{like.name}_size")
        kept = self._graph.constant("axis_kept", np.eye(1, rank, axis, dtype=np.int64)[0])
        return self._node("Mul", [size, kept], f"{like.name}_axis")

    def _node(self, op: str, inputs: list[gs.Tensor], name: str, like: Any = None) -> gs.Tensor:
        dtype, shape = (np.int64, None) if like is None else (like.dtype, like.shape)
        made = self._graph.variable(name, dtype, shape)
        self._graph.add_node(op, inputs, [made])
        return made
