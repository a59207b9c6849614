"""An If that always takes one branch: the branch's nodes take its place.

DeBERTa's code, exported with older versions of transformers, asks in each layer whether Q and K are of one length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_graphsurgeon as gs

from .elements import Elements
from .elements.expr import truth
from .elements.poly import ZERO
from .nodes import DEFAULT_DOMAINS, NoMatch
from .shape_uses import drop_unused, read_sizes_of_inputs


def take(graph: gs.Graph, elements: Elements, outer: Collection[str], name: Callable[[str], str]) -> bool:
    """Puts branches in their Ifs' places where the condition follows from sizes; whether there are any.

    `outer` are the names of the graph's own tensors: a branch computes its others itself, and they get names by `name`.
    The nodes are in topological order, and stay so. `elements` must not have been asked for what an If computes.
    """
    if not any(node.op == "If" for node in graph.nodes):
        return False
    nodes, conditions = [], []
    for node in graph.nodes:
        branch, made = _always(node, elements), [node]
        if branch is not None:
            conditions += node.inputs
            made = _opened(node, branch, outer, name)
        nodes += made
        elements.infer(made)  # one after the other: what is asked for from far behind is not followed all the way
    if conditions:
        graph.nodes[:] = nodes
        drop_unused(graph, conditions)
        read_sizes_of_inputs(graph, elements, name)
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


def _opened(node: gs.Node, branch: gs.Graph, outer: Collection[str], name: Callable[[str], str]) -> list[gs.Node]:
    """The branch's nodes under names that nothing else has, then an Identity for each of the If's results."""
    own = {id(t): t for inner in branch.nodes for t in (*inner.inputs, *inner.outputs)}
    own |= {id(t): t for t in branch.outputs}
    stem = node.outputs[0].name
    for tensor in own.values():
        if tensor.name and tensor.name not in outer:
            tensor.name = name(f"{stem}/{tensor.name}")
    made = list(branch.nodes)
    for inner in made:
        inner.name = name(f"{stem}/{inner.name}")
    results = list(node.outputs)
    for other in node.attrs.values():
        if other is not branch:
            _let_go(other)
    node.inputs.clear()
    node.outputs.clear()
    for inside, result in zip(branch.outputs, results, strict=True):
        if not result.is_empty():
            made.append(gs.Node("Identity", name(f"{stem}/{result.name}"), {}, [inside], [result]))
    return made


def _let_go(body: gs.Graph) -> None:
    """What a branch that is never taken reads has a reader less."""
    for inner in body.nodes:
        inner.inputs.clear()
        for nested in inner.attrs.values():
            if isinstance(nested, gs.Graph):
                _let_go(nested)
