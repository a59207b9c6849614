"""Who reads only the shape of a tensor can read it off another one: then the tensor itself may go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from .elements import Elements
from .elements.poly import Poly
from .nodes import DEFAULT_DOMAINS, NoMatch, producer
from .order import read_by_bodies


def donor(shape: gs.Node, others: Sequence[gs.Tensor]) -> gs.Tensor | None:
    """The first of `others` that has the shape which this Shape node asks for, or all of it but the last number."""
    dims = shape.inputs[0].shape
    if shape.op != "Shape" or not dims or None in dims:
        return None
    whole = not shape.attrs.get("start") and "end" not in shape.attrs
    for other in others:
        known = None if other.shape is None or other.is_empty() else list(other.shape)
        if known == list(dims) or (whole and known == list(dims[:-1]) and isinstance(dims[-1], int)):
            return other
    return None


def drop_what_only_gives_sizes(graph: gs.Graph, elements: Elements, name: Callable[[str], str]) -> None:
    """Drops tensors of which only sizes are read, where an input of the graph has these.

    T5's code turns the heads of K twice: for the product, and to ask for their length.
    """
    kept = {id(t) for t in graph.outputs} | {id(t) for node in graph.nodes for t in read_by_bodies(node)}
    found = [node for node in graph.nodes if _is_shape(node) and not any(id(t) in kept for t in node.inputs)]
    read_sizes_of_inputs(graph, elements, name, [n for n in found if all(map(_is_shape, n.inputs[0].outputs))])


def read_sizes_of_inputs(
    graph: gs.Graph, elements: Elements, name: Callable[[str], str], asking: Sequence[gs.Node] | None = None
) -> None:
    """Who reads one size of a computed tensor reads that of a graph input which has the same.

    The code that asks for the length of K reads it off K, which then could not go with an attention that is fused.
    `asking` are the Shape nodes that may go; None: all of them.
    """
    known = {id(t) for t in graph.inputs}
    sizes: dict[Poly, tuple[gs.Tensor, int]] = {}
    for tensor in graph.inputs:
        with contextlib.suppress(NoMatch):
            for axis, size in enumerate(elements.shape(tensor)):
                sizes.setdefault(size, (tensor, axis))
    shapes: dict[int, gs.Node] = {}
    unused = []
    for node in list(filter(_is_shape, graph.nodes if asking is None else asking)):
        if id(node.inputs[0]) in known:
            continue
        for reader in list(node.outputs[0].outputs):
            index = _picked(reader, node.outputs[0], elements)
            try:
                given = None if index is None else sizes.get(elements.shape(node.inputs[0])[index])
            except (NoMatch, IndexError):
                continue
            if given is None:
                continue
            tensor, axis = given
            if id(tensor) not in shapes:
                made = gs.Variable(name(f"{tensor.name}/shape"), np.dtype(np.int64))
                shapes[id(tensor)] = gs.Node("Shape", name(f"{tensor.name}/Shape"), {}, [tensor], [made])
            reader.inputs[0] = shapes[id(tensor)].outputs[0]
            for place, end in ((1, 0), (2, 1))[: 2 if reader.op == "Slice" else 1]:
                number = np.full_like(elements.constant(reader.inputs[place]), axis + end)
                reader.inputs[place] = gs.Constant(name(f"{reader.name}/{place}"), number)
        unused.append(node.outputs[0])
    graph.nodes[:0] = shapes.values()
    elements.infer(shapes.values())
    drop_unused(graph, unused)


def _is_shape(node: gs.Node) -> bool:
    return node.op == "Shape" and node.domain in DEFAULT_DOMAINS and not node.attrs and len(node.inputs) == 1


def _picked(reader: gs.Node, shape: gs.Tensor, elements: Elements) -> int | None:
    """Which size of a shape, one alone, a Gather or a Slice reads."""
    if reader.domain not in DEFAULT_DOMAINS or not reader.inputs or reader.inputs[0] is not shape:
        return None
    if reader.op == "Gather" and reader.inputs[1] is not shape and not reader.attrs.get("axis"):
        index = elements.constant(reader.inputs[1])
        return int(index.item()) if index is not None and index.size == 1 else None
    if reader.op == "Slice":
        given = [elements.constant(t) for t in reader.inputs[1:]]
        numbers = [int(v.item()) for v in given if v is not None and v.size == 1]
        if len(numbers) == len(given) and numbers[2:] in ([], [0], [0, 1]):
            start, end = numbers[:2]
            return start if end == start + 1 and end != 0 else None
    return None


def drop_unused(graph: gs.Graph, tensors: list[gs.Tensor]) -> None:
    """Drops what computes the tensors where nothing else reads it: a size that only an If has asked for."""
    kept = {id(t) for t in graph.outputs} | {id(t) for node in graph.nodes for t in read_by_bodies(node)}
    dropped: set[int] = set()
    waiting = list(tensors)
    while waiting:
        node = producer(waiting.pop())
        if node is None or id(node) in dropped or any(t.outputs or id(t) in kept for t in node.outputs):
            continue
        dropped.add(id(node))
        waiting += node.inputs
        node.inputs.clear()
    graph.nodes[:] = [node for node in graph.nodes if id(node) not in dropped]
