"""An If that always takes one branch: the branch's nodes take its place.

DeBERTa's code, exported with older versions of transformers, asks in each layer whether Q and K are of one length.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import numpy as np
import onnx_graphsurgeon as gs

from .elements import Elements
from .elements.expr import truth
from .elements.poly import ZERO, Poly
from .nodes import DEFAULT_DOMAINS, NoMatch, producer
from .order import read_by_bodies


def take(graph: gs.Graph, elements: Elements, outer: Collection[str]) -> bool:
    """Puts branches in their Ifs' places where the condition follows from sizes; whether there are any.

    `outer` are the names of the graph's own tensors: a branch computes its others itself. The nodes are in topological
    order, and stay so. `elements` must not have been asked for what an If computes.
    """
    if not any(node.op == "If" for node in graph.nodes):
        return False
    taken, nodes, conditions = set(outer), [], []
    for node in graph.nodes:
        branch, made = _always(node, elements), [node]
        if branch is not None:
            conditions += node.inputs
            made = _opened(node, branch, outer, taken)
        nodes += made
        elements.infer(made)  # one after the other: what is asked for from far behind is not followed all the way
    if conditions:
        graph.nodes[:] = nodes
        _drop_unused(graph, conditions)
        _read_sizes_of_inputs(graph, elements, taken)
    return bool(conditions)


def _always(node: gs.Node, elements: Elements) -> gs.Graph | None:
    """The branch that the node takes whatever the inputs are."""
    if node.op != "If" or node.domain not in DEFAULT_DOMAINS or len(node.inputs) != 1:
        return None
    condition = node.inputs[0]
    try:
        decided = truth(elements.at(condition, tuple(ZERO for _ in elements.shape(condition))))
    except NoMatch:
        return None
    branch = None if decided is None else node.attrs.get("then_branch" if decided else "else_branch")
    if branch is None or len(branch.outputs) != len(node.outputs):
        return None
    # Bodies in bodies name what is around them, which would be renamed here.
    nested = any(isinstance(value, gs.Graph) for inner in branch.nodes for value in inner.attrs.values())
    return None if nested else branch


def _opened(node: gs.Node, branch: gs.Graph, outer: Collection[str], taken: set[str]) -> list[gs.Node]:
    """The branch's nodes under names that nothing else has, then an Identity for each of the If's results."""
    own = {id(t): t for inner in branch.nodes for t in (*inner.inputs, *inner.outputs)}
    own |= {id(t): t for t in branch.outputs}
    stem = node.outputs[0].name
    for tensor in own.values():
        if tensor.name and tensor.name not in outer:
            tensor.name = _new(f"{stem}/{tensor.name}", taken)
    made = list(branch.nodes)
    for inner in made:
        inner.name = _new(f"{stem}/{inner.name}", taken)
    results = list(node.outputs)
    for other in node.attrs.values():
        if other is not branch:
            _let_go(other)
    node.inputs.clear()
    node.outputs.clear()
    for inside, result in zip(branch.outputs, results, strict=True):
        made.append(gs.Node("Identity", _new(f"{stem}/{result.name}", taken), {}, [inside], [result]))
    return made


def _let_go(body: gs.Graph) -> None:
    """What a branch that is never taken reads has a reader less."""
    for inner in body.nodes:
        inner.inputs.clear()
        for nested in inner.attrs.values():
            if isinstance(nested, gs.Graph):
                _let_go(nested)


def _drop_unused(graph: gs.Graph, tensors: list[gs.Tensor]) -> None:
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


def _read_sizes_of_inputs(graph: gs.Graph, elements: Elements, taken: set[str]) -> None:
    """Who reads one size of a computed tensor reads that of a graph input which has the same.

    The code that asks for the length of K reads it off K, which then could not go with an attention that is fused.
    """
    known = {id(t) for t in graph.inputs}
    sizes: dict[Poly, tuple[gs.Tensor, int]] = {}
    for tensor in graph.inputs:
        with contextlib.suppress(NoMatch):
            for axis, size in enumerate(elements.shape(tensor)):
                sizes.setdefault(size, (tensor, axis))
    shapes: dict[int, gs.Variable] = {}
    unused = []
    for node in [n for n in graph.nodes if n.op == "Shape" and n.domain in DEFAULT_DOMAINS and not n.attrs]:
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
                made = gs.Variable(_new(f"{tensor.name}/shape", taken), np.dtype(np.int64))
                graph.nodes.insert(0, gs.Node("Shape", _new(f"{tensor.name}/Shape", taken), {}, [tensor], [made]))
                shapes[id(tensor)] = made
            reader.inputs[0] = shapes[id(tensor)]
            for place, end in ((1, 0), (2, 1))[: 2 if reader.op == "Slice" else 1]:
                name = _new(f"{reader.name}/{place}", taken)
                like = elements.constant(reader.inputs[place])
                reader.inputs[place] = gs.Constant(name, np.full_like(like, axis + end))
        unused.append(node.outputs[0])
    _drop_unused(graph, unused)


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


def _new(base: str, taken: set[str]) -> str:
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(name)
    return name
