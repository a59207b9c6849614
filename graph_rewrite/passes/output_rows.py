"""Rows that no output needs are not computed.

Where only the first row of each sequence leaves the last layer (pooling by the first token, sequence classification),
the choice of rows moves up through everything row-wise, to right behind the last attention: projection and feed-forward
network then run for those rows alone.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..graph import FusionGraph
from ..nodes import node_name, producer
from ..result import PassReport
from ..spec import DOMAIN, NODE_MARKERS
from . import rows

NAME = "rows that outputs need"


def select(graph: FusionGraph) -> PassReport:
    """Move each choice of first rows up as far as it goes."""
    left: list[str] = []
    chosen: dict[int, gs.Tensor] = {}  # by the id of what it was chosen from
    moved = 0
    choices = [node for node in graph.gs.nodes if _source(node) is not None]
    if not choices:
        return PassReport(NAME, [], ["no node takes the first row of each sequence: every row may be needed"])
    for choice in choices:
        chosen.setdefault(id(_source(choice)), choice.outputs[0])
    # From the last to the first: a tensor is looked at when all that reads it has been.
    for choice in reversed(choices):
        moved += _move(graph, choice, chosen, left)
    done = [f"{moved} nodes run for the first row of each sequence alone"] if moved else []
    return PassReport(NAME, done, [] if moved else left)


def _source(node: gs.Node) -> gs.Tensor | None:
    """The rows that a node chooses from."""
    return node.inputs[0] if node.domain == DOMAIN and node.op == "FirstTokens" else rows.first_row(node)


def _move(graph: FusionGraph, choice: gs.Node, chosen: dict[int, gs.Tensor], left: list[str]) -> int:
    """Move one choice up, and those that it becomes. Returns how many of our ops went behind it."""
    pending, moved = [choice], 0
    while pending:
        pending.sort(key=lambda node: _position(graph, _source(node)))
        choice = pending.pop()
        source = _source(choice)
        above = producer(source)
        wanted = rows.row_inputs(above) if above is not None and _takes_fewer_axes(above) else None
        if not wanted:
            continue
        # Of an op of several outputs each is read by a choice of its own, or not at all.
        choices = {
            id(t): next((node for node in (choice, *pending) if _source(node) is t), None) for t in above.outputs
        }
        other = next((found for t in above.outputs if (found := _other_reader(graph, t, choices[id(t)]))), "")
        if other:
            left.append(f"every row is needed: {other}")
            continue
        pending = [node for node in pending if not any(node is taken for taken in choices.values())]
        for index in wanted:
            tensor = above.inputs[index]
            if id(tensor) not in chosen:
                made = _choose(graph, choice, tensor)
                chosen[id(tensor)] = made.outputs[0]
                pending.append(made)
            above.inputs[index] = chosen[id(tensor)]
        above.outputs = [_taken(graph, choices[id(t)], t) for t in list(above.outputs)]
        # Behind the choice there are [B, H] rows, all of them real.
        if above.domain == DOMAIN:
            rows.drop_input(above, "row_count")
            moved += 1
    return moved


def _taken(graph: FusionGraph, choice: gs.Node | None, tensor: gs.Tensor) -> gs.Tensor:
    """What `choice` gives of the tensor, now without it."""
    if choice is None:
        return graph.variable(f"{tensor.name}_first", tensor.dtype, None)
    (output,) = choice.outputs
    choice.outputs.clear()
    choice.inputs.clear()
    return output


def _takes_fewer_axes(node: gs.Node) -> bool:
    """Whether a row-wise node computes the same of [B, H] as of [B, S, H]."""
    if node.domain == DOMAIN:
        return True
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    return node.attrs.get("axis", -1) == -1 and (node.op == "MatMul" or all(len(t.shape) <= 1 for t in constants))


def _choose(graph: FusionGraph, like: gs.Node, tensor: gs.Tensor) -> gs.Node:
    """The same choice of another tensor's rows."""
    shape = [(like.outputs[0].shape or [None])[0], *(tensor.shape or [None] * 3)[2:]]
    output = graph.variable(f"{tensor.name}_first", tensor.dtype, shape)
    markers = NODE_MARKERS if like.domain == DOMAIN else dict(like.attrs)
    return graph.add_node(like.op, [tensor, *like.inputs[1:]], [output], like.domain, **markers)


def _other_reader(graph: FusionGraph, tensor: gs.Tensor, choice: gs.Node | None) -> str:
    """What else reads the tensor, "" for nothing. What a pass put there is named by what it gives."""
    readers = [node for node in rows.consumers(graph).get(id(tensor), []) if node is not choice]
    outputs = [t.name for t in (tensor, *(t for node in readers for t in node.outputs)) if graph.is_output(t)]
    if outputs:
        return f"'{outputs[0]}' is an output of the model"
    unpacked = [node.outputs[0].name for node in readers if node.op == "UnpackTokens"]
    if unpacked:
        return f"'{unpacked[0]}' is read with its padding"
    return f"{readers[0].op} {node_name(readers[0])} reads '{tensor.name}'" if readers else ""


def _position(graph: FusionGraph, tensor: gs.Tensor) -> int:
    above = producer(tensor)
    return next((i for i, node in enumerate(graph.gs.nodes) if node is above), -1)
