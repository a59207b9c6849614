"""The body of an op as nodes of the dialect in the graph, for its pattern to be found there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_graphsurgeon as gs

from ..dialect.pattern import ADD, HALVES, SPLIT_GROUPED_HEADS, Output, PatternNode
from ..graph import FusionGraph
from ..nodes import DIALECT

_OUTPUTS = {SPLIT_GROUPED_HEADS: 3, HALVES: 2}


def emit(
    graph: FusionGraph, written: PatternNode, root: gs.Node, interior: list[gs.Node], donors: Sequence[gs.Tensor]
) -> None:
    """Let `written`, what a body recorded of the graph's tensors, take the place of `root`; see FusionGraph.replace."""
    output = root.outputs[0]
    done: dict[int, gs.Node] = {}
    with graph.transaction():
        operands = _operands(graph, written, output.name, output.dtype, done)
        graph.replace(root, written.op, operands, interior, donors=donors, **dict(written.attributes))


def _operands(
    graph: FusionGraph, node: PatternNode, stem: str, dtype: Any, done: dict[int, gs.Node]
) -> list[gs.Tensor]:
    made = [_emitted(graph, item, stem, dtype, done) for item in node.inputs]
    while made[-1].is_empty():
        made.pop()
    return made


def _emitted(graph: FusionGraph, item: Any, stem: str, dtype: Any, done: dict[int, gs.Node]) -> gs.Tensor:
    """The tensor that a body's operation gives, as nodes of the dialect."""
    if item is None:
        return gs.Variable.empty()
    if not isinstance(item, (Output, PatternNode)):
        return item
    wanted, index = (item.node, item.index) if isinstance(item, Output) else (item, 0)
    if id(wanted) not in done:
        inputs = _operands(graph, wanted, stem, dtype, done)
        count = _OUTPUTS.get(wanted.op, 1)
        made = [graph.variable(f"{stem}_{wanted.op.lower()}", dtype, None) for _ in range(count)]
        domain = None if wanted.op == ADD else DIALECT
        done[id(wanted)] = graph.add_node(wanted.op, inputs, made, domain, **dict(wanted.attributes))
    return done[id(wanted)].outputs[index]
