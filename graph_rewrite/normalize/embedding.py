"""The sum of looked-up rows under a LayerNorm: Embedding(table, ids) each, in the order word, token type, position."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..dialect.pattern import ADD, EMBEDDING, LAYER_NORM, POSITIONS
from ..graph import FusionGraph
from ..nodes import DIALECT, NoMatch, producer


def anchors(graph: FusionGraph) -> list[gs.Node]:
    """LayerNorms over a sum with a looked-up row in it."""
    return [n for n in graph.nodes(LAYER_NORM, domain=DIALECT) if has_lookup(n.inputs[0])]


def has_lookup(tensor: gs.Tensor) -> bool:
    """Whether `tensor` is a sum of which some term is Gather(table, ids)."""
    return any(_is_lookup(producer(leaf)) for leaf in terms(tensor)[0])


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    total = node.inputs[0]
    leaves, adds = terms(total)
    lookups = []
    for leaf in leaves:
        lookup = producer(leaf)
        if not _is_lookup(lookup):
            raise NoMatch(lookup or leaf.name, f"the sum holds '{leaf.name}'", wanted="rows of constant tables alone")
        lookups.append(lookup)
    by_ids = sorted(filter(_by_ids, lookups), key=_rows, reverse=True)
    if not by_ids:
        raise NoMatch(lookups[0], "no table is indexed by ids of the model", wanted="integer ids of shape [B, S]")

    def by_position(word: gs.Node) -> list[gs.Node]:
        return [n for n in lookups if n is not word and graph.prober.counts_up(n.inputs[1], word.inputs[1], _rows(n))]

    # Mostly the largest table is that of words; where positions outnumber words, the length of ids tells them apart.
    word = next(filter(by_position, by_ids), by_ids[0])
    ids = word.inputs[1]
    rest = [n for n in lookups if n is not word]
    positions = by_position(word)
    if len(positions) > 1 or len(rest) not in (1, 2):
        raise NoMatch(
            node,
            f"{len(lookups)} lookups, {len(positions)} by position",
            wanted="word, position, maybe token type",
        )
    position = positions[0] if positions else _position_table(rest, graph, node)
    types = [n for n in rest if n is not position]
    for lookup in (*types, *([] if positions else [position])):
        if list(lookup.inputs[1].shape or []) != list(ids.shape):
            raise NoMatch(
                lookup,
                f"ids '{lookup.inputs[1].name}' are {lookup.inputs[1].shape}",
                wanted=f"{ids.shape}, as word ids",
            )
    _replace(graph, producer(total), word, types, position, bool(positions), [*lookups, *adds])


def _position_table(rest: list[gs.Node], graph: FusionGraph, node: gs.Node) -> gs.Node:
    """The lookup by computed or given position ids: the larger of two tables (there are more positions than types)."""
    candidates = [n for n in rest if _by_ids(n)]
    if not candidates:
        raise NoMatch(node, "no lookup is by position", wanted="ids that count 0, 1, ... or have the shape [B, S]")
    return max(candidates, key=_rows)


def terms(total: gs.Tensor) -> tuple[list[gs.Tensor], list[gs.Node]]:
    """The terms of a sum of at most four, and the Adds that make it."""
    leaves, adds, stack = [], [], [total]
    while stack:
        tensor = stack.pop()
        node = producer(tensor)
        if node is not None and node.op == ADD and len(adds) < 3:
            adds.append(node)
            stack.extend(node.inputs)
        else:
            leaves.append(tensor)
    return leaves, adds


def _is_lookup(node: gs.Node | None) -> bool:
    return (
        node is not None
        and node.op == "Gather"
        and node.attrs.get("axis", 0) == 0
        and isinstance(node.inputs[0], gs.Constant)
        and len(node.inputs[0].shape) == 2
    )


def _by_ids(node: gs.Node) -> bool:
    shape = node.inputs[1].shape
    return shape is not None and len(shape) == 2 and not isinstance(node.inputs[1], gs.Constant)


def _rows(node: gs.Node) -> int:
    return node.inputs[0].shape[0]


def _replace(graph, root, word, types, position, counted, interior) -> None:
    total = root.outputs[0]
    ids = word.inputs[1]

    def new(suffix: str) -> gs.Variable:
        return graph.variable(f"{total.name}_{suffix}", total.dtype, total.shape)

    made = []
    words = new("word")
    made.append(graph.add_node(EMBEDDING, [word.inputs[0], ids], [words], DIALECT))
    subtotal = words
    for lookup in types:
        rows, sum_ = new("token_type"), new("subtotal")
        made.append(graph.add_node(EMBEDDING, lookup.inputs[:2], [rows], DIALECT))
        made.append(graph.add_node(ADD, [subtotal, rows], [sum_]))
        subtotal = sum_
    index = position.inputs[1]
    if counted:
        index = graph.variable(f"{total.name}_positions", ids.dtype, None)
        made.append(graph.add_node(POSITIONS, [ids], [index], DIALECT))
    rows = new("position")
    made.append(graph.add_node(EMBEDDING, [position.inputs[0], index], [rows], DIALECT))
    try:
        graph.replace(root, ADD, [subtotal, rows], interior, domain="")
    except NoMatch:
        for node in made:
            node.inputs.clear()
            node.outputs.clear()
        raise
