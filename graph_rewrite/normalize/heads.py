"""Following the heads: which of batch, sequence, heads and head size each axis holds after Reshape and Transpose."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ..nodes import NoMatch, producer, scalar
from ..shapes import Dim, product

# An axis is a tuple of atoms, outermost first; a tensor's layout is a list of axes.
BATCH, SEQUENCE, HEADS, SIZE = "batch", "sequence", "heads", "size"
PROJECTED = [(BATCH,), (SEQUENCE,), (HEADS, SIZE)]
BY_HEAD = [(BATCH,), (HEADS,), (SEQUENCE,), (SIZE,)]
BY_HEAD_TRANSPOSED = [(BATCH,), (HEADS,), (SIZE,), (SEQUENCE,)]
MERGED_BY_HEAD = [(BATCH, HEADS), (SEQUENCE,), (SIZE,)]
MERGED_BY_HEAD_TRANSPOSED = [(BATCH, HEADS), (SIZE,), (SEQUENCE,)]
_VIEWS = ("Reshape", "Transpose")


@dataclass
class View:
    """`base` seen through `nodes` (views and scalings, first to last), with the scalings multiplied into `scale`."""

    base: gs.Tensor
    nodes: list[gs.Node]
    scale: float


def trace(tensor: gs.Tensor) -> View:
    """Walk up through Reshape, Transpose and multiplication by a scalar."""
    nodes, scale = [], 1.0
    while (node := producer(tensor)) is not None:
        if node.op in _VIEWS:
            tensor, nodes = node.inputs[0], [node, *nodes]
        elif (step := scaling(node)) is not None:
            tensor, scale, nodes = step[0], scale * step[1], [node, *nodes]
        else:
            break
    return View(tensor, nodes, scale)


def scaling(node: gs.Node) -> tuple[gs.Tensor, float] | None:
    """(x, factor) when the node multiplies x by a constant scalar or divides it by one."""
    if node.op == "Mul":
        for x, factor in (node.inputs, node.inputs[::-1]):
            if (value := scalar(factor)) is not None:
                return x, value
    if node.op == "Div" and (value := scalar(node.inputs[1])):
        return node.inputs[0], 1.0 / value
    return None


def layout(start: list[tuple[str, ...]], sizes: dict[str, Dim], nodes: list[gs.Node]) -> list[tuple[str, ...]]:
    """The layout after `nodes`, starting from `start`. Raises NoMatch at a Reshape that cuts across atoms."""
    axes = list(start)
    for node in nodes:
        if node.op == "Transpose":
            perm = node.attrs.get("perm", list(range(len(axes)))[::-1])
            axes = [axes[i] for i in perm]
        elif node.op == "Reshape":
            axes = _regroup([atom for axis in axes for atom in axis], sizes, node)
    return axes


def _regroup(atoms: list[str], sizes: dict[str, Dim], node: gs.Node) -> list[tuple[str, ...]]:
    shape = node.outputs[0].shape
    if shape is None:
        raise NoMatch(node, "its output's shape cannot be inferred", "export with named dynamic axes")
    axes, rest = [], list(atoms)
    for index, dim in enumerate(shape):
        remaining = len(shape) - index - 1
        wanted = product([dim])
        for count in range(1, len(rest) - remaining + 1):
            group = rest[:count]
            last = remaining == 0 and count == len(rest)
            if product([sizes[atom] for atom in group]) == wanted or (wanted is None and last):
                axes.append(tuple(group))
                rest = rest[count:]
                break
        else:
            have = " x ".join(f"{atom} {sizes[atom]}" for atom in atoms)
            raise NoMatch(node, f"reshapes {have} to {shape}", wanted="a shape that keeps the heads apart")
    if rest:
        raise NoMatch(node, f"reshapes to {shape}, which leaves out {', '.join(rest)}", wanted="every axis kept")
    return axes


def describe(axes: list[tuple[str, ...]]) -> str:
    return "[" + ", ".join("*".join(axis) for axis in axes) + "]"
