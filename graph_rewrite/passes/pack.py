"""Real tokens only: rows are packed in the embedding and restored where a node wants them in their places.

From the embedding on every row-wise node and every attention with the model's mask works on packed rows; what attention
takes of places (rotations, windows, biases by distance) is counted from each text's first real token, with the padding
that is between them. The first node
that is none of these gets its input unpacked, with zeros on padding; so does an output of the model. Names stay with
what they named before: a packed tensor is a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import FusionGraph
from ..nodes import node_name
from ..result import PassReport
from ..spec import DOMAIN, NODE_MARKERS
from . import padding_rows, rows

NAME = "remove padding"


@dataclass
class Packed:
    """What was packed: `tensors` maps the id of a tensor to the packed one that took its place inside."""

    mask: gs.Tensor
    token_index: gs.Tensor
    cu_seqlens: gs.Tensor
    row_count: gs.Tensor
    # What looks ids up, and the ids that it was given.
    embeddings: list[tuple[gs.Node, gs.Tensor]] = field(default_factory=list)
    # Products of rows with the mask, and what each row's factor is.
    factors: list[tuple[gs.Node, gs.Tensor]] = field(default_factory=list)
    tensors: dict[int, gs.Tensor] = field(default_factory=dict)


def remove_padding(graph: FusionGraph) -> tuple[PassReport, Packed | None]:
    """Pack what can be packed of a finished graph; None where nothing can, with the reason in the report."""
    embeddings, mask, reason = _whole(graph)
    inside, borders = [], {}
    if mask is not None:
        _read_shapes_of_ids(graph, embeddings[0], _region(graph, embeddings, mask)[0])
        inside, borders = _region(graph, embeddings, mask)
    attentions = [node for node in inside if node.domain == DOMAIN and node.op in rows.ATTENTIONS]
    if mask is not None and not attentions:
        at = next(iter(borders.values()), "")
        reason = f"no attention can be reached on packed rows{': ' + at if at else ''}"
    if not reason and mask is not None:
        made = [tensor for node in inside for tensor in node.outputs]
        reason = _made_of_rows(mask, made) or padding_rows.reason_to_keep(graph, made, inside, mask)
    if reason:
        return PassReport(NAME, [], [reason], True), None
    all_attentions = len(rows.fused(graph, *rows.ATTENTIONS))
    packed = _rewrite(graph, inside, mask)
    done = [
        f"{len(inside)} nodes work on real tokens only, {len(attentions)} of {all_attentions} attentions among them"
    ]
    return PassReport(NAME, done, [f"padding, put back as zeros in {why}" for why in borders.values()], True), packed


def _whole(graph: FusionGraph) -> tuple[list[gs.Node], gs.Tensor | None, str]:
    """The embeddings and the mask of the model, or the reason why it cannot be packed."""
    attentions = rows.fused(graph, *rows.ATTENTIONS)
    if not attentions:
        return [], None, "there is no FusedAttention: attention in standard operators takes padded rows only"
    masks = {id(mask): mask for node in attentions if (mask := rows.get_input(node, "mask")) is not None}
    bare = next((node for node in attentions if rows.get_input(node, "mask") is None), None)
    if bare is not None:
        return [], None, f"attention {bare.outputs[0].name} has no mask: every token is a real one"
    if len(masks) > 1:
        names = ", ".join(sorted(mask.name for mask in masks.values()))
        return [], None, f"attentions have different masks ({names}): no token is padding for all"
    embeddings = rows.embeddings(graph)
    if not embeddings or (len(embeddings) > 1 and embeddings[0].domain == DOMAIN):
        return [], None, f"there are {len(embeddings)} EmbedLayerNorms, expected one, in which rows are packed"
    ids = rows.ids_of(embeddings[0])
    if embeddings[0].domain != DOMAIN:
        other = next((found for node in embeddings if (found := rows.ids_of(node)).shape != ids.shape), None)
        why = "" if other is None else f"'{other.name}' {other.shape} is looked up beside the ids {ids.shape}"
        return embeddings, next(iter(masks.values())), why
    for name in ("token_type_ids", "position_ids"):
        tensor = rows.get_input(embeddings[0], name)
        if tensor is not None and (tensor.shape is None or tensor.shape != ids.shape):
            return [], None, f"{name} '{tensor.name}' is {tensor.shape}, expected the shape of the ids, {ids.shape}"
    return embeddings, next(iter(masks.values())), ""


def _region(graph: FusionGraph, embeddings: list[gs.Node], mask: gs.Tensor) -> tuple[list[gs.Node], dict[int, str]]:
    """The nodes that can work on packed rows, in order; and for others that read such rows why they cannot, by id."""
    inside, packed, borders = [], {}, {}
    roots = {id(node) for node in embeddings}
    for node in graph.gs.nodes:
        read = [t for t in node.inputs if id(t) in packed]
        if id(node) in roots:
            fits = not read
        elif not read:
            continue
        elif node.domain == DOMAIN and node.op in rows.ATTENTIONS:
            fits = read == [rows.get_input(node, "qkv")]
        else:
            wanted = rows.row_inputs(node)
            if (column := rows.factor_of_tokens(node, mask)) is not None:
                wanted = [1 - column]
            fits = wanted is not None and all(id(node.inputs[i]) in packed for i in wanted)
        if fits:
            inside.append(node)
            packed.update((id(t), t) for t in node.outputs)
        elif rows.first_row(node) is None:
            borders[id(node)] = f"'{read[0].name}' for {node.op} {node_name(node)}, which is not known to be row-wise"
    return inside, borders


def _read_shapes_of_ids(graph: FusionGraph, embedding: gs.Node, inside: list[gs.Node]) -> None:
    """Who looks at the shape of rows alone reads it off the ids: the mask may be made of it."""
    ids = rows.ids_of(embedding)
    for tensor in [tensor for node in inside for tensor in node.outputs]:
        for shape in [node for node in tensor.outputs if node.op == "Shape"]:
            graph.forward_shape(shape, [ids])
    graph.finish()


def _made_of_rows(mask: gs.Tensor, made: list[gs.Tensor]) -> str:
    """Why the mask cannot say how rows are packed: it is made of such rows. "" where it is not."""
    packed, stack, seen = {id(t) for t in made}, [mask], set()
    while stack:
        tensor = stack.pop()
        if id(tensor) in packed:
            return f"the mask '{mask.name}' is made of '{tensor.name}', of which the rows are to be packed"
        if id(tensor) not in seen:
            seen.add(id(tensor))
            stack += [t for node in tensor.inputs for t in node.inputs if not isinstance(t, gs.Constant)]
    return ""


def _rewrite(graph: FusionGraph, inside: list[gs.Node], mask: gs.Tensor) -> Packed:
    looked_up = {id(node) for node in rows.embeddings(graph)}
    # Axes of packed rows: as many as the kernels make room for, or as there are, by who runs the model.
    axes = rows.fresh_axes(graph, "packed_batch", "packed_sequence")
    index = graph.variable("token_index", np.int32, axes)
    cu_seqlens = graph.variable("cu_seqlens", np.int32, [None])
    row_count = graph.variable("row_count", np.int32, [])
    graph.add_node("PackTokens", [mask], [index, cu_seqlens, row_count], DOMAIN, **NODE_MARKERS)
    packed = Packed(mask, index, cu_seqlens, row_count)
    readers = rows.consumers(graph)
    members = {id(node) for node in inside}
    for node in inside:
        for tensor in list(node.inputs):
            if id(tensor) in packed.tensors:
                rows.retarget(node, tensor, packed.tensors[id(tensor)])
        if node.domain == DOMAIN:
            _tell(node, packed)
        elif id(node) in looked_up:
            _look_up(graph, node, packed, axes)
        elif (column := rows.factor_of_tokens(node, mask)) is not None:
            _multiply(graph, node, column, packed, axes)
        outputs = list(node.outputs)
        node.outputs.clear()
        for old in outputs:
            new = graph.variable(f"{old.name}_packed", old.dtype, [*axes, *(old.shape or [None] * 3)[2:]])
            node.outputs.append(new)
            packed.tensors[id(old)] = new
            outside = [reader for reader in readers.get(id(old), []) if id(reader) not in members]
            _restore(graph, packed, old, new, outside)
    return packed


def _look_up(graph: FusionGraph, node: gs.Node, packed: Packed, axes: list[str]) -> None:
    """Let a Gather from a table take the ids of the real tokens alone."""
    ids = node.inputs[1]
    flat = graph.variable(f"{ids.name}_flat", ids.dtype, None)
    graph.add_node("Reshape", [ids, graph.constant("flat_shape", np.array([-1], np.int64))], [flat])
    found = graph.variable(f"{ids.name}_packed", ids.dtype, axes)
    graph.add_node("Gather", [flat, packed.token_index], [found], axis=0)
    packed.embeddings.append((node, ids))
    node.inputs[1] = found


def _multiply(graph: FusionGraph, node: gs.Node, column: int, packed: Packed, axes: list[str]) -> None:
    """Let a product of rows with the mask take the mask's numbers at the real tokens."""
    old = node.inputs[column]
    flat = graph.variable(f"{old.name}_flat", old.dtype, None)
    graph.add_node("Reshape", [old, graph.constant("flat_column_shape", np.array([-1, 1], np.int64))], [flat])
    found = graph.variable(f"{old.name}_packed", old.dtype, [*axes, 1])
    graph.add_node("Gather", [flat, packed.token_index], [found], axis=0)
    packed.factors.append((node, found))
    node.inputs[column] = found


def _tell(node: gs.Node, packed: Packed) -> None:
    """Give a fused node what says which rows are real."""
    if node.op in rows.ATTENTIONS:
        rows.drop_input(node, "mask")
        rows.set_input(node, "cu_seqlens", packed.cu_seqlens)
        if rows.counts_places(node):
            rows.set_input(node, "token_index", packed.token_index)
        return
    if node.op == "EmbedLayerNorm":
        packed.embeddings.append((node, rows.ids_of(node)))
        rows.set_input(node, "token_index", packed.token_index)
    rows.set_input(node, "row_count", packed.row_count)


def _restore(graph: FusionGraph, packed: Packed, old: gs.Tensor, new: gs.Tensor, outside: list[gs.Node]) -> None:
    """Make `old`, or of what is read of it the first rows, from packed rows."""
    for reader in [reader for reader in outside if rows.first_row(reader) is old]:
        outside.remove(reader)
        outputs = list(reader.outputs)
        reader.outputs.clear()
        reader.inputs.clear()
        graph.add_node("FirstTokens", [new, packed.cu_seqlens], outputs, DOMAIN, **NODE_MARKERS)
    if outside or graph.is_output(old):
        given = [new, packed.mask, packed.token_index, packed.row_count]
        graph.add_node("UnpackTokens", given, [old], DOMAIN, **NODE_MARKERS)
