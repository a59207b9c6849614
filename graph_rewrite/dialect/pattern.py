"""The dialect as a recorder: an op's body becomes the pattern that fusion looks for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..spec import OpSpec

# The node type that each dialect method leaves in the normalised graph; Add is ONNX's own.
ADD, LINEAR, GELU, LAYER_NORM = "Add", "Linear", "Gelu", "LayerNorm"
EMBEDDING, POSITIONS, SPLIT_HEADS = "Embedding", "Positions", "SplitHeads"
SPLIT_GROUPED_HEADS, ROTARY, RMS_NORM = "SplitGroupedHeads", "Rotary", "RmsNorm"
ATTENTION_VARIANT, HALVES, ACTIVATION, PRODUCT = "AttentionVariant", "Halves", "Activation", "Product"
OFFSET = "Offset"
SDPA = "ScaledDotProductAttention"  # ONNX has an op Attention, which becomes this one, too


@dataclass(frozen=True)
class Variable:
    """An input of the op. It matches any tensor; a second use must be the same tensor."""

    name: str


@dataclass(frozen=True)
class AttributeVariable:
    """An attribute of the op. It takes the value that the matched node carries."""

    name: str


@dataclass(frozen=True)
class PatternNode:
    """One dialect op applied to patterns. `inputs` may hold None: an absent optional input."""

    op: str
    inputs: tuple[Any, ...]
    attributes: tuple[tuple[str, AttributeVariable], ...] = ()


@dataclass(frozen=True)
class Output:
    """Output number `index` of a node with several."""

    node: PatternNode
    index: int


@dataclass(frozen=True)
class Pattern:
    """One form of an op: `root` produces its outputs; `present` names the inputs that this form has."""

    root: PatternNode
    present: tuple[str, ...]


class Recorder:
    def linear(self, x, weight, bias, residual=None):
        y = PatternNode(LINEAR, (x, weight, bias))
        return y if residual is None else self.add(y, residual)

    def add(self, a, b):
        return PatternNode(ADD, (a, b))

    def gelu(self, x, approximate):
        return PatternNode(GELU, (x,), (("approximate", approximate),))

    def layer_norm(self, x, gamma, beta, epsilon):
        return PatternNode(LAYER_NORM, (x, gamma, beta), (("epsilon", epsilon),))

    def embedding(self, table, ids):
        return PatternNode(EMBEDDING, (table, ids))

    def positions(self, ids):
        return PatternNode(POSITIONS, (ids,))

    def split_heads(self, qkv, num_heads, mask=None):
        node = PatternNode(SPLIT_HEADS, (qkv,), (("num_heads", num_heads),))
        return tuple(Output(node, index) for index in range(3))

    def attention(self, q, k, v, mask, scale):
        return PatternNode(SDPA, (q, k, v, mask), (("scale", scale),))

    def rms_norm(self, x, gamma, epsilon):
        return PatternNode(RMS_NORM, (x, gamma), (("epsilon", epsilon),))

    def offset(self, x, number):
        return PatternNode(OFFSET, (x,), (("number", number),))

    def halves(self, x):
        node = PatternNode(HALVES, (x,))
        return Output(node, 0), Output(node, 1)

    def activation(self, x, kind):
        return PatternNode(ACTIVATION, (x,), (("activation", kind),))

    def multiply(self, a, b):
        return PatternNode(PRODUCT, (a, b))

    def split_grouped_heads(self, qkv, num_heads, kv_num_heads):
        node = PatternNode(SPLIT_GROUPED_HEADS, (qkv,), (("num_heads", num_heads), ("kv_num_heads", kv_num_heads)))
        return tuple(Output(node, index) for index in range(3))

    def rotary(self, x, cos, sin, pairs):
        return PatternNode(ROTARY, (x, cos, sin), (("pairs", pairs),))

    def attention_variant(self, q, k, v, mask, bias, bias_left, positions, positions_left, scale, left, right, hidden):
        settings = {"scale": scale, "window_left": left, "window_right": right, "bias_left": bias_left}
        settings |= {"positions_left": positions_left, "hidden_queries": hidden}
        return PatternNode(ATTENTION_VARIANT, (q, k, v, mask, bias, positions), tuple(settings.items()))

    def of_one_shape(self, mask, x):
        return mask

    # No normalised graph has these, so the patterns of ops that passes write match nothing.

    def only_row(self, table):
        return PatternNode("OnlyRow", (table,))

    def rows_at(self, table, places):
        return PatternNode("RowsAt", (table, places))

    def columns_of(self, places, table):
        return PatternNode("ColumnsOf", (places, table))

    def rotary_tables(self, tokens, frequencies, like, angle, scaling):
        settings = (("angle", angle), ("scaling", scaling))
        node = PatternNode("RotaryTables", (tokens, frequencies, like), settings)
        return tuple(Output(node, index) for index in range(2))

    def join_heads(self, q, k, v):
        return PatternNode("JoinHeads", (q, k, v))

    def pack_tokens(self, mask):
        return tuple(Output(PatternNode("PackTokens", (mask,)), index) for index in range(3))

    def unpack_tokens(self, x, mask, token_index, row_count):
        return PatternNode("UnpackTokens", (x, mask, token_index, row_count))

    def first_tokens(self, x, cu_seqlens):
        return PatternNode("FirstTokens", (x, cu_seqlens))

    def ragged_positions(self, tokens, cu_seqlens, max_seqlen):
        node = PatternNode("RaggedPositions", (tokens, cu_seqlens, max_seqlen))
        return tuple(Output(node, index) for index in range(2))


@cache
def patterns(spec: OpSpec) -> tuple[Pattern, ...]:
    """Every form of an op, the one that takes most nodes first: one for each set of its optional inputs."""
    found: dict[PatternNode, Pattern] = {}
    optional = spec.optional_inputs
    for size in range(len(optional), -1, -1):
        for chosen in itertools.combinations(optional, size):
            needed = {tensor.needs for tensor in spec.inputs if tensor.name in chosen and tensor.needs in optional}
            if not needed <= set(chosen):
                continue
            names = [t.name if not t.optional or t.name in chosen else None for t in spec.inputs]
            values = [Variable(name) if name else None for name in names]
            settings = {a.name: a.default if a.by_pass else AttributeVariable(a.name) for a in spec.attributes}
            outputs = spec.body(Recorder(), *values, **settings)
            root = outputs[0] if isinstance(outputs, tuple) else outputs
            root = root.node if isinstance(root, Output) else root
            # A set that names an input the body does not read then gives the same pattern as a smaller one, or one
            # with a table but nothing to look up in it: keep those whose inputs are all read.
            used = _variables(root)
            if used == {name for name in names if name} and None not in _tables(root):
                found.setdefault(root, Pattern(root, tuple(name for name in names if name)))
    return tuple(sorted(found.values(), key=lambda pattern: -len({id(node) for node in _walk(pattern.root)})))


def _walk(item: Any):
    if isinstance(item, Output):
        item = item.node
    if isinstance(item, PatternNode):
        yield item
        for child in item.inputs:
            yield from _walk(child)


def _variables(root: PatternNode) -> set[str]:
    return {child.name for node in _walk(root) for child in node.inputs if isinstance(child, Variable)}


def _tables(root: PatternNode) -> list[Any]:
    return [node.inputs[0] for node in _walk(root) if node.op == EMBEDDING]
