"""Looked-up rows, and their sum, under a LayerNorm: Embedding(table, ids), in the order word, token type, position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import ADD, EMBEDDING, LAYER_NORM, POSITIONS
from ..graph import FusionGraph, as_weight
from ..nodes import DIALECT, NoMatch, data_type, node_name, producer
from ..proof import prover
from ..weights import Weight


def anchors(graph: FusionGraph) -> list[gs.Node]:
    """LayerNorms over a looked-up row, or a sum with one in it."""
    return [n for n in graph.nodes(LAYER_NORM, domain=DIALECT) if has_lookup(n.inputs[0])]


def has_lookup(tensor: gs.Tensor) -> bool:
    """Whether `tensor` is Gather(table, ids), or a sum of which some term is."""
    return any(_is_lookup(producer(leaf)) for leaf in terms(tensor)[0])


def is_embedding(tensor: gs.Tensor) -> bool:
    """Whether `tensor` sums rows, or is one of words, as below a LayerNorm that takes it in.

    It does not where one table alone is looked up by place, where patches of an image are added, or where a pre-norm
    layer passes the sum on.
    """
    found, _ = terms(tensor)
    passed_on = any(node.op == ADD for node in tensor.outputs)
    if passed_on or any(map(_are_patches, found)):
        return False
    return len(found) > 1 or _looks_up_words(producer(found[0]))


def _looks_up_words(node: gs.Node) -> bool:
    """Whether a lookup, of 8-bit numbers perhaps, is by ids of the model: not by what follows from sizes alone."""
    lookup = producer(node.inputs[0]) if node.op == "DequantizeLinear" else node
    stack, seen = [lookup.inputs[1]] if _by_ids(lookup) else [], set()
    while stack:
        tensor = stack.pop()
        above = producer(tensor)
        if above is None and not isinstance(tensor, gs.Constant):
            return True
        if above is not None and above.op not in ("Shape", "Size") and id(above) not in seen:
            seen.add(id(above))
            stack += [t for t in above.inputs if not t.is_empty()]
    return False


def _are_patches(tensor: gs.Tensor) -> bool:
    """Whether views and what is put beside them lead up to a convolution."""
    stack = [(tensor, 0)]
    while stack:
        tensor, depth = stack.pop()
        node = producer(tensor)
        if node is not None and node.op == "Conv":
            return True
        if node is not None and depth < 8 and node.op in ("Cast", "Concat", "Flatten", "Reshape", "Transpose"):
            stack += [(t, depth + 1) for t in node.inputs]
    return False


@dataclass
class _Roles:
    """What each term of the sum is. `fixed` terms are the same for every token: a vector, or a table and its row."""

    word: gs.Node
    types: list[gs.Node]
    position: gs.Node | None  # None where positions are 0, 1, ...
    position_table: gs.Constant | None  # None where there are words alone
    fixed: list[tuple[Weight, int]]


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    total = node.inputs[0]
    leaves, adds = terms(total)
    lookups, constants = [], []
    for leaf in leaves:
        lookup = producer(leaf)
        if isinstance(leaf, gs.Constant):
            constants.append(leaf)
        elif _is_lookup(lookup):
            if any(lookup is other for other in lookups):
                raise NoMatch(lookup, f"{node_name(lookup)} is in the sum twice", wanted="each row once")
            lookups.append(lookup)
        else:
            raise NoMatch(lookup or leaf.name, f"the sum holds '{leaf.name}'", wanted="rows of constant tables alone")
    _replace(graph, producer(total), _roles(graph, lookups, constants, node), [*lookups, *adds])


def _roles(graph: FusionGraph, lookups: list[gs.Node], constants: list[gs.Constant], node: gs.Node) -> _Roles:
    by_ids = sorted(filter(_by_ids, lookups), key=_rows, reverse=True)
    if not by_ids:
        raise NoMatch(lookups[0], "no table is indexed by ids of the model", wanted="integer ids of shape [B, S]")

    def by_position(word: gs.Node) -> list[gs.Node]:
        ids = word.inputs[1]
        others = [n for n in lookups if n is not word and _rows(n) > 1]
        return sorted((n for n in others if prover(graph).counts_up(n.inputs[1], ids, _rows(n))), key=_rows)

    # Mostly the largest table is that of words; where positions outnumber words, the length of ids tells them apart.
    word = next(filter(by_position, by_ids), by_ids[0])
    rows_of_places, fixed = _constants(constants, word)
    counting = by_position(word)[-1:]
    rest = [n for n in lookups if n is not word and n not in counting]
    rows = {id(n): row for n in rest if (row := _fixed_row(graph, n, word.inputs[1])) is not None}
    free = [n for n in rest if id(n) not in rows]
    if len(lookups) + len(constants) == 1:
        if not _looks_up_words(word):
            raise NoMatch(word, "looks up one table, by place", wanted="ids that an input holds")
        return _Roles(word, [], None, None, [])
    if not counting and not rows_of_places and not free and rest:  # something must stand for positions
        free = [max(rest, key=_rows)]
    places = len(counting) + len(rows_of_places)
    if places > 1 or places + len(free) not in (1, 2):
        what = f"{len(lookups) + len(constants)} tables are summed, {places} of them by position"
        raise NoMatch(node, what, wanted="word, position, and maybe token type")
    # There are more positions than token types.
    position = None if places else max(free, key=_rows)
    if rows_of_places:
        table = graph.constant(f"{node.inputs[0].name}_positions", rows_of_places[0])
    else:
        table = (counting or [position])[0].inputs[0]
    fixed += [(as_weight(n.inputs[0]), rows[id(n)]) for n in rest if n not in free]
    return _Roles(word, [n for n in free if n is not position], position, table, fixed)


def _constants(constants: list[gs.Constant], word: gs.Node) -> tuple[list[Weight], list[tuple[Weight, int]]]:
    """Constants of the sum as tables by place, [S, H] for ids of that length, and as rows for every token."""
    length, width = word.inputs[1].shape[1], word.inputs[0].shape[1]
    by_place, fixed = [], []
    for constant in constants:
        shape = list(constant.shape)
        if shape and shape[-1] == width and set(shape[:-1]) <= {1}:
            fixed.append((as_weight(constant).reshaped((1, width)), 0))
        elif shape in ([length, width], [1, length, width]):
            by_place.append(as_weight(constant).reshaped((length, width)))
        else:
            raise NoMatch(constant.name, f"the sum holds a constant {shape}", wanted=f"[{length}, {width}]")
    return by_place, fixed


def _fixed_row(graph: FusionGraph, lookup: gs.Node, ids: gs.Tensor) -> int | None:
    """The row that the lookup gives for every token of `ids`, None where it depends on the token."""
    index = lookup.inputs[1]
    if not prover(graph).is_spread(index, ids):
        return None
    value = prover(graph).one_value(index)
    if value is None or value.dtype.kind not in "iu":
        return 0 if _rows(lookup) == 1 else None
    if not -_rows(lookup) <= value < _rows(lookup):
        raise NoMatch(lookup, f"looks up row {value} of {_rows(lookup)}", wanted="a row that there is")
    return int(value) % _rows(lookup)


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


def _replace(graph: FusionGraph, root: gs.Node, roles: _Roles, interior: list[gs.Node]) -> None:
    total = root.outputs[0]
    ids = roles.word.inputs[1]

    def new(suffix: str) -> gs.Variable:
        return graph.variable(f"{total.name}_{suffix}", total.dtype, total.shape)

    if roles.position_table is None:
        graph.replace(root, EMBEDDING, [roles.word.inputs[0], ids], interior, donors=[ids])
        return
    with graph.transaction():
        words = new("word")
        graph.add_node(EMBEDDING, [roles.word.inputs[0], ids], [words], DIALECT)
        subtotal = words
        for lookup in roles.types:
            rows, sum_ = new("token_type"), new("subtotal")
            index = _like(graph, lookup, ids)
            graph.add_node(EMBEDDING, [lookup.inputs[0], index], [rows], DIALECT)
            graph.add_node(ADD, [subtotal, rows], [sum_])
            subtotal = sum_
        if roles.position is None:
            index = graph.variable(f"{total.name}_positions", ids.dtype, None)
            graph.add_node(POSITIONS, [ids], [index], DIALECT)
        else:
            index = _like(graph, roles.position, ids)
        rows = new("position")
        graph.add_node(EMBEDDING, [_position_table(graph, roles, total), index], [rows], DIALECT)
        graph.replace(root, ADD, [subtotal, rows], interior, domain="", donors=[ids])


def _position_table(graph: FusionGraph, roles: _Roles, total: gs.Tensor) -> gs.Constant:
    """The table of positions, with every fixed row added to its rows."""
    if not roles.fixed:
        return roles.position_table
    values = as_weight(roles.position_table)
    for table, row in roles.fixed:
        values = values.plus_row(table, row)
    return graph.constant(f"{total.name}_position_table", values)


def _like(graph: FusionGraph, lookup: gs.Node, ids: gs.Tensor) -> gs.Tensor:
    """The lookup's index in the shape [B, S] and integer type of `ids`."""
    index = lookup.inputs[1]
    if not prover(graph).is_spread(index, ids):
        raise NoMatch(lookup, f"ids '{index.name}' are {index.shape}", wanted=f"{ids.shape}, as word ids")
    if index.dtype != ids.dtype:
        cast = graph.variable(f"{index.name}_cast", ids.dtype, index.shape)
        graph.add_node("Cast", [index], [cast], to=data_type(ids.dtype))
        index = cast
    if len(index.shape) < 2 or any(a == 1 != b for a, b in zip(index.shape, ids.shape, strict=True)):
        shape = graph.variable(f"{ids.name}_shape", np.int64, [2])
        graph.add_node("Shape", [ids], [shape])
        spread = graph.variable(f"{index.name}_expand", ids.dtype, ids.shape)
        graph.add_node("Expand", [index, shape], [spread])
        index = spread
    return index
