"""Tokens laid out one sequence after the other as the model's interface, for servers that batch by tokens.

Inputs are input_ids [T] (and what else the embedding takes of each token), cu_seqlens [B + 1] int32 and max_seqlen, of
which only the length counts: a server knows it where it would otherwise wait for the device to say how long the longest
sequence is. What has a row for each token comes out as [T, ...], what is pooled as [B, ...].

What the model computes from padded ids (positions of RoBERTa, pooling by the mask) it goes on computing from ids and a
mask padded to [B, max_seqlen]: standard operators whose shapes depend on the inputs' shapes alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from bertfuse.errors import FusionError

from ..graph import FusionGraph
from ..nodes import NoMatch, producer
from ..order import names_in_bodies
from ..result import PassReport
from ..spec import DOMAIN, NODE_MARKERS
from . import pack, padding_rows, rows

NAME = "ragged batches"
OFFSETS, LONGEST = "cu_seqlens", "max_seqlen"  # inputs of the new interface
_LAST = np.iinfo(np.int64).max


def take_ragged_batches(graph: FusionGraph) -> PassReport:
    """Change the interface of a finished graph. Raises FusionError where that cannot be done."""
    report, packed = pack.remove_padding(graph)
    if packed is None:
        raise refusal("; ".join(report.left))
    _, ids = packed.embeddings[0]
    if ids.shape is None or any(not isinstance(size, str) for size in ids.shape):
        raise refusal(f"'{ids.name}' is of the fixed shape {ids.shape}: export the model with free batch and sequence")
    mask_input = _mask_input(packed)
    if packed.factors and mask_input is None and np.dtype(rows.uncast(packed.mask).dtype) != bool:
        raise refusal(f"rows are multiplied with '{packed.mask.name}', which need not be 1 for a token that is given")
    padding_id = 0 if mask_input is not None else _hidden_id(graph, packed, ids)
    for tensor in (*graph.gs.inputs, *graph.gs.outputs, packed.mask):
        if graph.is_read_by_body(tensor):  # by a name that is to mean something else
            raise refusal(f"the body of an If, a Loop or a Scan reads '{tensor.name}'")
    for tensor in graph.gs.inputs:
        if tensor is not mask_input and (np.dtype(tensor.dtype).kind != "i" or tensor.shape != ids.shape):
            raise refusal(f"input '{tensor.name}' {tensor.shape} does not hold integers for each token")
    _make_room(graph)
    _Ragged(graph, packed, ids, mask_input, padding_id).rewrite()
    return PassReport(
        NAME, [f"the model takes tokens in a row, {OFFSETS} and {LONGEST}", *report.done], report.left, True
    )


def places(graph: FusionGraph) -> gs.Tensor | None:
    """Each token's place in its text, [1, T], of a graph that takes ragged batches; None of another one."""
    made = rows.fused(graph, "RaggedPositions")
    if made:
        return made[0].outputs[1]
    inputs = {tensor.name: tensor for tensor in graph.gs.inputs}
    offsets, longest = (inputs.pop(name, None) for name in (OFFSETS, LONGEST))
    tokens = next((tensor for tensor in inputs.values() if len(tensor.shape or ()) == 1), None)
    if offsets is None or longest is None or tokens is None or np.dtype(tokens.dtype).kind != "i":
        return None
    row = graph.variable(f"{tokens.name}_row", tokens.dtype, [1, *tokens.shape])
    graph.add_node("Unsqueeze", [tokens, graph.constant("ragged_constant", np.array([0], np.int64))], [row])
    return _add_positions(graph, row, offsets, longest)[1]


def _add_positions(graph: FusionGraph, row: gs.Tensor, offsets: gs.Tensor, longest: gs.Tensor) -> list[gs.Variable]:
    """Of each token of a row [1, T]: which text it is of, and its place there."""
    dtype = np.dtype(row.dtype)
    if graph.opset < 15 and dtype != np.int64:  # without CastLike the op's body gives int64
        dtype = np.dtype(np.int64)
        wide = graph.variable("ids_int64", dtype, row.shape)
        graph.add_node("Cast", [row], [wide], to=onnx.TensorProto.INT64)
        row = wide
    made = [graph.variable(name, dtype, row.shape) for name in ("sequence_ids", "places")]
    graph.add_node("RaggedPositions", [row, offsets, longest], made, DOMAIN, **NODE_MARKERS)
    return made


def refusal(reason: str) -> FusionError:
    return FusionError(f"padding 'ragged' is not possible: {reason}; padding 'remove' or 'keep' may do")


def _make_room(graph: FusionGraph) -> None:
    """Names of the new inputs must be free: what is inside the graph is renamed, the interface is the user's."""
    for tensor in graph.gs.outputs:
        if any(tensor is other for other in graph.gs.inputs):
            raise refusal(f"'{tensor.name}' is an input and an output")
    interface = {tensor.name: "input" for tensor in graph.gs.inputs} | {t.name: "output" for t in graph.gs.outputs}
    tensors = graph.gs.tensors()
    for name in (OFFSETS, LONGEST):
        if name in interface:
            raise refusal(f"the model has an {interface[name]} '{name}' of its own")
        tensor = tensors.get(name)
        if tensor is not None and not graph.is_read_by_body(tensor):
            tensor.name = graph.name(f"{name}_of_model")
        elif tensor is not None or any(name in names_in_bodies(node) for node in graph.gs.nodes):
            raise refusal(f"the body of an If, a Loop or a Scan names a tensor '{name}'")


def _mask_input(packed: pack.Packed) -> gs.Tensor | None:
    """The model's input that is the mask, as it is, cast or compared; None where the mask comes from the ids."""
    tensor = _uncompared(packed.mask)
    looked_up = [t for node, ids in packed.embeddings for t in (ids, *node.inputs)]
    if producer(tensor) is None and all(tensor is not rows.uncast(t) for t in looked_up):
        return tensor
    _, ids = packed.embeddings[0]
    strange = [root.name for root in rows.roots(tensor) if root is not ids]
    if strange:
        raise refusal(f"the mask is computed from '{strange[0]}', which ragged batches do not have")
    return None


def _uncompared(mask: gs.Tensor) -> gs.Tensor:
    """What a mask is made of that shows a token by 1 and hides it by 0: for such numbers it is the same mask."""
    tensor = rows.uncast(mask)
    while (above := producer(tensor)) is not None and padding_rows.hiding_number(above) == 0:
        (tensor,) = [t for t in above.inputs[:2] if not isinstance(t, gs.Constant)][:1]
        tensor = rows.uncast(tensor)
    return tensor


def _hidden_id(graph: FusionGraph, packed: pack.Packed, ids: gs.Tensor) -> int:
    """An id that the model's own mask hides: what padding holds for whatever else the model computes from ids."""
    table = rows.table_of(packed.embeddings[0][0])
    try:
        hidden = padding_rows.hiding_values(graph, packed.mask, ids)
    except NoMatch as miss:
        raise refusal(f"which ids are padding cannot be told: {miss.reason}") from miss
    found = [max(int(low), 0) for low, high in hidden if high >= 0 and low < table.shape[0]]
    if not found:
        raise refusal(f"the mask, which comes from '{ids.name}', hides none of its {table.shape[0]} ids")
    return min(found)


class _Ragged:
    def __init__(
        self,
        graph: FusionGraph,
        packed: pack.Packed,
        ids: gs.Tensor,
        mask_input: gs.Tensor | None,
        padding_id: int,
    ) -> None:
        self.graph, self.packed, self.mask_input = graph, packed, mask_input
        self.ids_read = [t for t in graph.gs.inputs if t is not mask_input]
        self.padding = {id(ids): padding_id}  # what padding holds; 0 in other inputs
        self.padded_axes = list(ids.shape)
        self.tokens, self.sequences, self.longest = rows.fresh_axes(graph, "tokens", "sequences", "longest")
        self.padded = [self.sequences, self.longest]
        (offsets,) = rows.fresh_axes(graph, f"{self.sequences}_plus_1")
        self.cu_seqlens = gs.Variable(OFFSETS, np.int32, [offsets])
        self.max_seqlen = gs.Variable(LONGEST, np.int32, [self.longest])
        self.index_dtype = np.dtype(ids.dtype)
        self.row: gs.Tensor  # some input's tokens, [1, T]
        self.rows: dict[int, gs.Tensor] = {}  # by the id of what each input was

    def rewrite(self) -> None:
        self.packed.cu_seqlens.name = self.graph.name("cu_seqlens_of_mask")
        self._grid()
        inputs = [self._input(tensor) for tensor in self.graph.gs.inputs if tensor is not self.mask_input]
        self._mask()
        self._positions()
        for node, column in self.packed.factors:  # of each token that is given it is 1
            index = next(i for i, t in enumerate(node.inputs) if t is column)
            del node.inputs[index]
            node.op = "Identity"
        for node, ids in self.packed.embeddings:
            if node.domain == DOMAIN:
                self._embed(node)
            else:
                node.inputs[1] = self.rows[id(ids)] if id(ids) in self.rows else self._of_tokens(ids)
        for node in rows.fused(self.graph, "RotaryTables"):
            if list(rows.get_input(node, "tokens").shape) == self.padded_axes:
                rows.set_input(node, "tokens", self.max_seqlen)
                for table in node.outputs:
                    table.shape = [self.longest, *table.shape[1:]]
        for node in self.graph.gs.nodes:
            if node.domain == DOMAIN and node.op != "PackTokens":
                rows.retarget(node, self.packed.cu_seqlens, self.cu_seqlens)
                if node.op != "UnpackTokens" and any(t is self.packed.row_count for t in node.inputs):
                    rows.drop_input(node, "row_count")
                if node.op in rows.ATTENTIONS and rows.counts_places(node):  # of a text given without padding
                    rows.drop_input(node, "token_index")
        outputs = [self._output(tensor) for tensor in self.graph.gs.outputs]
        self.graph.change_interface([*inputs, self.cu_seqlens, self.max_seqlen], outputs)

    def _emit(self, op: str, inputs: list[Any], dtype: Any, shape: list[Any] | None, name: str, **attrs: Any):
        made = self.graph.variable(name, dtype, shape)
        given = [self._integers(value) if isinstance(value, list) else value for value in inputs]
        self.graph.add_node(op, given, [made], **attrs)
        return made

    def _integers(self, values: list[int], scalar: bool = False) -> gs.Constant:
        return self.graph.constant("ragged_constant", np.array(values[0] if scalar else values, np.int64))

    def _grid(self) -> None:
        """Where each place of the padded batch is among the tokens, and whether a token is there."""
        offsets = self._emit("Cast", [self.cu_seqlens], np.int64, None, "sequence_offsets", to=onnx.TensorProto.INT64)
        first = self._emit("Slice", [offsets, [0], [-1]], np.int64, [self.sequences], "sequence_begins")
        ends = self._emit("Slice", [offsets, [1], [_LAST]], np.int64, [self.sequences], "sequence_ends")
        shape = self._emit("Shape", [self.max_seqlen], np.int64, [1], "longest_shape")
        self.length = self._emit("Squeeze", [shape, [0]], np.int64, [], "longest")
        zero, one = self._integers([0], scalar=True), self._integers([1], scalar=True)
        columns = self._emit("Range", [zero, self.length, one], np.int64, [self.longest], "columns")
        column = self._emit("Unsqueeze", [first, [1]], np.int64, [self.sequences, 1], "sequence_begins_column")
        end = self._emit("Unsqueeze", [ends, [1]], np.int64, [self.sequences, 1], "sequence_ends_column")
        self.places = self._emit("Add", [column, columns], np.int64, self.padded, "places_padded")
        self.real = self._emit("Less", [self.places, end], bool, self.padded, "real_padded")

    def _input(self, old: gs.Variable) -> gs.Variable:
        """The input with a token after the other; what it was goes on, padded, for whoever else reads it."""
        new = gs.Variable(old.name, old.dtype, [self.tokens])
        old.name = self.graph.name(f"{old.name}_padded")
        count = self._emit("Shape", [new], np.int64, [1], f"{new.name}_count")
        last = self._emit("Sub", [count, [1]], np.int64, [1], f"{new.name}_last")
        places = self._emit("Min", [self.places, last], np.int64, self.padded, f"{new.name}_places")
        found = self._emit("Gather", [new, places], old.dtype, self.padded, f"{new.name}_found", axis=0)
        nothing = self.graph.constant(f"{new.name}_none", np.array(self.padding.get(id(old), 0), old.dtype))
        self.graph.add_node("Where", [self.real, found, nothing], [old])
        row = self._emit("Unsqueeze", [new, [0]], old.dtype, [1, self.tokens], f"{new.name}_row")
        for node, _ in self.packed.embeddings:
            rows.retarget(node, old, row)
        self.rows[id(old)] = self.row = row
        return new

    def _mask(self) -> None:
        """The mask of the padded batch, in the place of the model's."""
        old = self.mask_input if self.mask_input is not None else self.packed.mask
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(old.dtype))
        if old is self.packed.mask and any(old is t for t in self.ids_read):  # ids are the mask: 0 hides a key
            made = self._emit("Cast", [self.real], old.dtype, self.padded, "mask_padded", to=to)
            for node in rows.fused(self.graph, "PackTokens", "UnpackTokens"):
                rows.retarget(node, old, made)
            return
        above = producer(old)
        if above is not None:
            above.outputs.remove(old)
        old.name = self.graph.name(f"{old.name}_padded")
        self.graph.add_node("Cast", [self.real], [old], to=to)

    def _positions(self) -> None:
        self.sequence_ids, self.position_ids = made = _add_positions(
            self.graph, self.row, self.cu_seqlens, self.max_seqlen
        )
        dtype = np.dtype(made[1].dtype)
        if dtype != self.index_dtype:
            to = onnx.helper.np_dtype_to_tensor_dtype(self.index_dtype)
            self.position_ids = self._emit("Cast", [made[1]], self.index_dtype, [1, self.tokens], "places_cast", to=to)
        self.flat: gs.Tensor | None = None

    def _of_tokens(self, padded: gs.Tensor) -> gs.Tensor:
        """What a padded [B, S, ...] tensor has for each token: [1, T, ...]."""
        if self.flat is None:
            shape = [1, self.tokens]
            to = onnx.TensorProto.INT64
            sequence = self._emit("Cast", [self.sequence_ids], np.int64, shape, "sequence_ids_int64", to=to)
            place = self._emit("Cast", [self.position_ids], np.int64, shape, "places_int64", to=to)
            begin = self._emit("Mul", [sequence, self.length], np.int64, shape, "sequence_begins_padded")
            self.flat = self._emit("Add", [begin, place], np.int64, shape, "places_in_padded")
        rest = list(padded.shape[2:])
        flat = self._emit("Reshape", [padded, [-1, *rest]], padded.dtype, [None, *rest], f"{padded.name}_flat")
        return self._emit(
            "Gather", [flat, self.flat], padded.dtype, [1, self.tokens, *rest], f"{padded.name}_row", axis=0
        )

    def _embed(self, node: gs.Node) -> None:
        for name in ("ids", "token_type_ids", "position_ids"):  # of two large tables either may be that of "words"
            tensor = rows.get_input(node, name)
            if tensor is not None and list(tensor.shape) != [1, self.tokens]:
                rows.set_input(node, name, self._of_tokens(tensor))
        if rows.get_input(node, "position_table") is not None and rows.get_input(node, "position_ids") is None:
            rows.set_input(node, "position_ids", self.position_ids)
        rows.drop_input(node, "row_count")
        rows.drop_input(node, "token_index")

    def _output(self, old: gs.Variable) -> gs.Variable:
        above, shape = producer(old), old.shape
        restored = above is not None and above.op == "UnpackTokens" and above.domain == DOMAIN
        if not restored and (shape is None or list(shape[:2]) != self.padded_axes):
            return old
        rest = list(shape[2:])
        if not all(isinstance(size, int) for size in rest):
            raise refusal(f"output '{old.name}' is of the shape {shape}, of which only batch and sequence may be free")
        new = gs.Variable(old.name, old.dtype, [self.tokens, *rest])
        old.name = self.graph.name(f"{old.name}_padded")
        row = above.inputs[0] if restored else self._of_tokens(old)
        self.graph.add_node("Reshape", [row, self._integers([-1, *rest])], [new])
        return new
