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
from ..result import PassReport
from ..spec import DOMAIN
from . import rows

NAME = "rotations in products"
_PRODUCT, _ROTARY = OPS["FusedGemm"], OPS["FusedGemmRotary"]


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
        _move(attention, product, places.of(attention))
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
    return "two biases are added" if None not in biases else ""


def _move(attention: gs.Node, product: gs.Node, places: gs.Tensor | None) -> None:
    given = {tensor.name: rows.get_input(product, tensor.name) for tensor in _PRODUCT.inputs}
    given["places"] = places
    given["bias"] = given["bias"] or rows.get_input(attention, "bias")
    given |= {name: rows.get_input(attention, name) for name in ("cos", "sin")}
    product.op = _ROTARY.name
    product.attrs.pop("activation", None)
    product.attrs |= {attr.name: attention.attrs[attr.name] for attr in _ROTARY.attributes}
    product.inputs.clear()
    for tensor in _ROTARY.inputs:
        if given[tensor.name] is not None:
            rows.set_input(product, tensor.name, given[tensor.name])
    for name in ("bias", "cos", "sin"):
        rows.drop_input(attention, name)
    if not rows.counts_places(attention):
        rows.drop_input(attention, "token_index")


class _Places:
    """For each way in which rows of a graph are packed: each row's place in its text, int32, made once."""

    def __init__(self, graph: FusionGraph) -> None:
        self._graph = graph
        self._made: dict[int, gs.Tensor] = {}

    def reason(self, attention: gs.Node) -> str:
        """Why places are not known; "" where they are, or rows are not packed."""
        packed = rows.get_input(attention, "cu_seqlens") is not None
        return "no node tells the rows' places" if packed and self._source(attention) is None else ""

    def of(self, attention: gs.Node) -> gs.Tensor | None:
        if rows.get_input(attention, "cu_seqlens") is None:
            return None
        source = self._source(attention)
        if id(source) not in self._made:
            self._made[id(source)] = self._make(source)
        return self._made[id(source)]

    def _source(self, attention: gs.Node) -> gs.Tensor | None:
        """What they come of: places in the flattened batch, or where texts lie in a row those in each text."""
        index = rows.get_input(attention, "token_index")
        if index is not None:
            above = producer(index)
            return index if above is not None and above.op == "PackTokens" else None
        offsets = rows.get_input(attention, "cu_seqlens")
        found = [n for n in rows.fused(self._graph, "RaggedPositions") if rows.get_input(n, "cu_seqlens") is offsets]
        return found[0].outputs[1] if found else None

    def _make(self, source: gs.Tensor) -> gs.Tensor:
        above, graph = producer(source), self._graph
        if above.op == "RaggedPositions":
            return source if np.dtype(source.dtype) == np.int32 else self._int32(source, source.shape)
        (mask,) = above.inputs
        length = graph.variable("padded_length", np.int64, [])
        shape = graph.variable("padded_shape", np.int64, [2])
        graph.add_node("Shape", [mask], [shape])
        graph.add_node("Gather", [shape, graph.constant("padded_axis", np.array(1, np.int64))], [length], axis=0)
        places = graph.variable("packed_places", np.int32, source.shape)
        # At least 1: without a token nothing is divided, which is an error by 0 even so.
        one = graph.constant("padded_one", np.array(1, np.int64))
        some = graph.variable("padded_length_or_1", np.int64, [])
        graph.add_node("Max", [length, one], [some])
        graph.add_node("Mod", [source, self._int32(some, [])], [places])
        return places

    def _int32(self, tensor: gs.Tensor, shape: list | None) -> gs.Tensor:
        made = self._graph.variable(f"{tensor.name}_int32", np.int32, shape)
        self._graph.add_node("Cast", [tensor], [made], to=onnx.TensorProto.INT32)
        return made
