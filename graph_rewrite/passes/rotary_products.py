"""Q and K are rotated in the product that makes them, where nothing but attention reads it.

A product rotates each element once, as float32, before it is rounded; attention would rotate keys in each tile of
queries, or in a launch of its own. Where heads are normalised first, rotations stay in attention. Of packed rows the
product is told each row's place in the padded batch: what attention scores depends on differences of places alone.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ..graph import FusionGraph
from ..nodes import producer
from ..ops import OPS
from ..ops.rotary_tables import OP as TABLES
from ..result import PassReport
from ..spec import DOMAIN
from . import ragged, rows

NAME = "rotations in products"
_PRODUCT, _ROTARY = OPS["FusedGemm"], OPS["FusedGemmRotary"]
_IN_TABLES, _IN_BATCH = "tables", "batch"  # of the attribute places_in


def move(graph: FusionGraph) -> PassReport | None:
    """Move rotations of a finished graph, which the caller finishes again; None where there are none."""
    left: list[str] = []
    moved, places = 0, _Places(graph)
    for attention in rows.fused(graph, "FusedAttentionVariant"):
        if rows.get_input(attention, "cos") is None:
            continue
        product = producer(rows.get_input(attention, "qkv"))
        if reason := _reason_to_stay(graph, attention, product) or places.reason(attention):
            left.append(f"rotated in attention '{attention.outputs[0].name}': {reason}")
            continue
        _move(attention, product, *places.of(attention))
        moved += 1
    done = [f"{moved} products rotate Q and K"] if moved else []
    return PassReport(NAME, done, left) if moved or left else None


def _reason_to_stay(graph: FusionGraph, attention: gs.Node, product: gs.Node | None) -> str:
    if rows.get_input(attention, "q_gamma") is not None:
        return "heads are normalised before"
    if product is None or (product.domain, product.op) != (DOMAIN, "FusedGemm"):
        return "Q, K and V are made by no FusedGemm"
    qkv = product.outputs[0]
    if len(qkv.outputs) != 1 or graph.is_output(qkv) or graph.is_read_by_body(qkv):
        return f"'{qkv.name}' is read elsewhere, too"
    if product.attrs.get("activation", "none") != "none":
        return "an activation lies between"
    x = rows.get_input(product, "x")
    if x.shape is None or len(x.shape) != 3:
        return f"'{x.name}' is {x.shape}, not [batch, sequence, width]"
    biases = [rows.get_input(node, "bias") for node in (product, attention)]
    return "two biases are added" if all(bias is not None for bias in biases) else ""


def _move(attention: gs.Node, product: gs.Node, places: gs.Tensor | None, places_in: str) -> None:
    given = {tensor.name: rows.get_input(product, tensor.name) for tensor in _PRODUCT.inputs}
    given["places"] = places
    if given["bias"] is None:
        given["bias"] = rows.get_input(attention, "bias")
    given |= {name: rows.get_input(attention, name) for name in ("cos", "sin")}
    product.op = _ROTARY.name
    product.attrs.pop("activation", None)
    product.attrs |= {attr.name: attention.attrs[attr.name] for attr in _ROTARY.found_attributes}
    if places_in != _IN_TABLES:
        product.attrs["places_in"] = places_in
    product.inputs.clear()
    for tensor in _ROTARY.inputs:
        if given[tensor.name] is not None:
            rows.set_input(product, tensor.name, given[tensor.name])
    for name in ("bias", "cos", "sin"):
        rows.drop_input(attention, name)
    if not rows.counts_places(attention):
        rows.drop_input(attention, "token_index")


class _Places:
    """Each packed row's place, int32: what says where it was in the padded batch, or what is made of that, once."""

    def __init__(self, graph: FusionGraph) -> None:
        self._graph = graph
        self._made: gs.Tensor | None = None

    def reason(self, attention: gs.Node) -> str:
        """Why places are not known; "" where they are, or rows are not packed."""
        if rows.get_input(attention, "cu_seqlens") is None or self._made is not None or self._in_batch(attention):
            return ""
        index = rows.get_input(attention, "token_index")
        self._made = self._ragged() if index is None else self._of_padded(index)
        return "" if self._made is not None else "no node tells where rows are from"

    def of(self, attention: gs.Node) -> tuple[gs.Tensor | None, str]:
        """The places, None where rows are not packed, and what they count."""
        if rows.get_input(attention, "cu_seqlens") is None:
            return None, _IN_TABLES
        if self._in_batch(attention):
            return rows.get_input(attention, "token_index"), _IN_BATCH
        return self._made, _IN_TABLES

    @staticmethod
    def _in_batch(attention: gs.Node) -> bool:
        """Whether rows are from a padded batch of texts as long as the tables: no node is needed to count them."""
        given = (rows.get_input(attention, name) for name in ("token_index", "cos"))
        index, tables = (None if tensor is None else producer(tensor) for tensor in given)
        if index is None or index.op != "PackTokens" or tables is None or tables.op != TABLES.name:
            return False
        mask, tokens = index.inputs[0], rows.get_input(tables, "tokens")
        return mask.shape is not None and len(mask.shape) == 2 and tokens.shape == mask.shape

    def _ragged(self) -> gs.Tensor | None:
        found = ragged.places(self._graph)
        return found if found is None or np.dtype(found.dtype) == np.int32 else self._int32(found, found.shape)

    def _of_padded(self, index: gs.Tensor) -> gs.Tensor | None:
        """The column of each token in the padded batch [B, S], of which `index` has the flattened places."""
        above, graph = producer(index), self._graph
        if above is None or above.op != "PackTokens":
            return None
        batch, length = above.inputs[0].shape or (None, None)

        def node(op: str, inputs: list[gs.Tensor], dtype: type, shape: list | None, **attributes: object) -> gs.Tensor:
            made = graph.variable(f"padded_{op.lower()}", np.dtype(dtype), shape)
            graph.add_node(op, inputs, [made], **attributes)
            return made

        def number(value: object) -> gs.Tensor:
            return graph.constant("padded_value", np.array(value, np.int64))

        # No division by the length: of a session on a GPU sizes are on the host, and operands of arithmetic are not.
        sizes = node("Shape", [above.inputs[0]], np.int64, [2])
        count = node("Gather", [sizes, number(1)], np.int64, [], axis=0)
        columns = self._int32(node("Range", [number(0), count, number(1)], np.int64, [length]), [length])
        everywhere = node(
            "Reshape", [node("Expand", [columns, sizes], np.int32, [batch, length]), number([-1])], np.int32, None
        )
        return node("Gather", [everywhere, index], np.int32, index.shape, axis=0)

    def _int32(self, tensor: gs.Tensor, shape: list | None) -> gs.Tensor:
        made = self._graph.variable(f"{tensor.name}_int32", np.int32, shape)
        self._graph.add_node("Cast", [tensor], [made], to=onnx.TensorProto.INT32)
        return made
