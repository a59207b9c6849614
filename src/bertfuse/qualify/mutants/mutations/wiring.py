"""Tensors in each other's place, conditions, inputs and outputs."""

from __future__ import annotations

from random import Random

import numpy as np
from onnx import TensorProto, helper

from ..conditions import condition
from ..mutant import Mutant

BOOL = TensorProto.BOOL


def rewire(m: Mutant, r: Random) -> str | None:
    """An input from another tensor of the same type and shape."""
    node, index = m.edge(r)
    if node is None:
        return None
    others = [n for n in m.before(node, m.kinds.get(node.input[index])) if n != node.input[index]]
    if not others:
        return None
    old, node.input[index] = node.input[index], r.choice(others)
    return f"{m.called(node)} takes '{node.input[index]}' in place of '{old}'"


def combine(m: Mutant, r: Random) -> str | None:
    """One more node on an edge that mixes another tensor of the same type and shape in."""
    node, index = m.edge(r)
    if node is None:
        return None
    name = node.input[index]
    kind = m.kinds.get(name)
    others = m.before(node, kind)
    if kind is None or not others:
        return None
    other = r.choice(others)
    op = r.choice(["And", "Or", "Xor"] if kind.element == BOOL else ["Add", "Sub", "Mul", "Max", "Min"])
    made = m.insert_before(node, op, [name, other] if r.random() < 0.7 else [other, name])
    m.kinds[made] = kind
    node.input[index] = made
    return f"{op} of '{name}' and '{other}' for {m.called(node)}"


def expose(m: Mutant, r: Random) -> str | None:
    """An interior tensor is an output of the model, too."""
    node = m.node(r, lambda n: len(n.output) > 0 and n.output[0] not in m.output_names())
    if node is None or m.kinds.get(node.output[0]) is None:
        return None
    m.expose(node.output[0])
    return f"'{node.output[0]}' is an output, too"


def exchange(m: Mutant, r: Random) -> str | None:
    """Two nodes take each other's input of the same type and shape: weights, biases, heads."""
    node, index = m.edge(r)
    if node is None:
        return None
    kind = m.kinds.get(node.input[index])
    places = [
        (n, i)
        for n in m.nodes
        for i, name in enumerate(n.input)
        if name != node.input[index] and m.kinds.get(name) == kind
    ]
    if kind is None or not places:
        return None
    other, at = r.choice(places)
    first, second = node.input[index], other.input[at]
    if not (m.comes_before(second, node) and m.comes_before(first, other)):
        return None
    node.input[index], other.input[at] = second, first
    return f"{m.called(node)} and {m.called(other)} exchange '{first}' and '{second}'"


def spliced(m: Mutant, r: Random) -> str | None:
    """A mask, an index or scores changed where a condition on places, lengths, batch or ids holds."""
    node, index = m.edge(r, steering=True)
    if node is None:
        return None
    name = node.input[index]
    kind = m.kinds.get(name)
    if kind is None or not (kind.is_float or kind.is_whole or kind.element == BOOL) or name in m.constants():
        return None
    found = condition(m, r, node, name, kind)
    if found is None:
        return None
    holds, what = found
    if kind.element == BOOL:
        made = m.insert_before(node, r.choice(["And", "Or", "Xor"]), [name, holds])
    else:
        dtype = helper.tensor_dtype_to_np_dtype(kind.element)
        values = [0, 1, -1, 2] if not kind.is_float else [0.0, 1.0, -1e4, -1e9, 0.5]
        made = m.insert_before(node, "Where", [holds, name, m.add_constant(np.asarray(r.choice(values), dtype))])
    m.kinds[made] = kind
    node.input[index] = made
    return f"'{name}' for {m.called(node)} only where {what}"


def input_type(m: Mutant, r: Random) -> str | None:
    """A graph input of another type, with or without a Cast back."""
    value = r.choice(m.model.graph.input)
    old = value.type.tensor_type.elem_type
    new = r.choice(
        [
            TensorProto.FLOAT,
            BOOL,
            TensorProto.INT32,
            TensorProto.UINT8,
            TensorProto.FLOAT16,
            TensorProto.DOUBLE,
            TensorProto.INT8,
        ]
    )
    if value.name in m.constants() or old == new or m.facts.signature.inputs is None:
        return None
    mask = next((i for i in m.facts.signature.inputs if i.name == value.name), None)
    if mask is None or not mask.is_mask:
        return None
    value.type.tensor_type.elem_type = new
    users = [(n, i) for n in m.nodes for i, name in enumerate(n.input) if name == value.name and n.op_type != "Shape"]
    casts_alone = all(n.op_type == "Cast" for n, _ in users)
    if not casts_alone or r.random() < 0.3:
        for user, i in users:
            user.input[i] = m.insert_before(user, "Cast", [value.name], to=old)
    return f"input '{value.name}' is of type {TensorProto.DataType.Name(new)}"
