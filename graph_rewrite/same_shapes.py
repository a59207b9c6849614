"""Inputs that were taken to be of one shape are made to be: those of which the file says no sizes, and packed ones."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from .graph import FusionGraph


def check(graph: FusionGraph) -> None:
    """Let the run end where ids and masks without names for their axes differ in shape.

    One of them, R, is reshaped to the shape of each other one, X, and back: Reshape(Expand(Reshape(R, X), R), R). Where
    both have one shape nothing changes. Where they hold other numbers of elements the first Reshape fails, and where
    only the order of sizes differs, the last, on every device: shapes are checked before anything is computed.
    """
    groups: dict[tuple, list[gs.Tensor]] = {}
    for tensor in graph.gs.inputs:
        if tensor.shape and graph.unnamed_axes.issuperset(tensor.shape):
            groups.setdefault(tuple(tensor.shape), []).append(tensor)
    for tensors in groups.values():
        read = next((t for t in tensors if any(n.op not in ("Shape", "Size") for n in t.outputs)), None)
        if read is not None and len(tensors) > 1:
            _reshape_through(graph, read, [t for t in tensors if t is not read])
            graph.finish()


def _reshape_through(graph: FusionGraph, read: gs.Tensor, others: list[gs.Tensor]) -> None:
    users = [n for n in read.outputs if n.op not in ("Shape", "Size") and graph.is_live(n)]

    def shape_of(tensor: gs.Tensor) -> gs.Tensor:
        made = graph.variable(f"{tensor.name}_shape", np.int64, [2])
        graph.add_node("Shape", [tensor], [made])
        return made

    own, current = shape_of(read), read
    for other in others:
        for op, shape in (("Reshape", shape_of(other)), ("Expand", own), ("Reshape", own)):
            made = graph.variable(f"{read.name}_as_{other.name}", read.dtype, read.shape)
            graph.add_node(op, [current, shape], [made])
            current = made
    for user in users:
        for index, tensor in enumerate(user.inputs):
            if tensor is read:
                user.inputs[index] = current


def hold(graph: FusionGraph, tensor: gs.Tensor, like: gs.Tensor) -> gs.Tensor:
    """`tensor` [B, S]; the run ends where `like` has another shape.

    Reshape(Reshape(tensor, [0, S]), [B, 0]): 0 leaves an axis as it is, so that the other one must be what it is in
    `like`. No kernel runs for it on a device. The axes' names promise as much, but a runtime takes a mask [1, S] beside
    ids [B, S], and the original broadcasts it.
    """
    shape = graph.variable(f"{like.name}_shape", np.int64, [2])
    graph.add_node("Shape", [like], [shape])
    for kept in ([0, 1], [1, 0]):
        wanted = graph.variable(f"{like.name}_axis", np.int64, [2])
        graph.add_node("Mul", [shape, graph.constant("axis_kept", np.array(kept, np.int64))], [wanted])
        made = graph.variable(f"{tensor.name}_of_one_shape_with_{like.name}", tensor.dtype, tensor.shape)
        graph.add_node("Reshape", [tensor, wanted], [made])
        tensor = made
    return tensor
