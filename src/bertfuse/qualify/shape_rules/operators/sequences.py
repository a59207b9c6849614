"""Sequences of tensors, and optional values."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from .. import scopes
from ..draw import Draw
from ..runtime import Kind, Refused
from .registry import draws


def sequence(d: Draw) -> str:
    """One that there is, or a new one of one to three tensors."""
    found = [n for n, (kind, v) in d.known().items() if kind == Kind("sequence", TensorProto.FLOAT) and v]
    if found and d.chance(0.6):
        return d.r.choice(found)
    return d.r.choice((construct, split_to_sequence))(d, "")


@draws("SequenceConstruct")
def construct(d: Draw, op: str) -> str:
    name = d.tensor((np.float32,))
    names = [name]
    for _ in range(d.r.randrange(3)):
        names.append(d.fitting(d.shape(name)) if d.chance(0.5) else d.tensor((np.float32,)))
    return d.node("SequenceConstruct", names)


@draws("SplitToSequence")
def split_to_sequence(d: Draw, op: str) -> str:
    name = d.tensor((np.float32,), (1, 4), lambda v: v.size > 0)
    axis = d.axis(d.rank(name))
    size = d.shape(name)[axis]
    inputs = [name]
    if d.chance(0.6):
        part = d.r.randint(1, size)
        inputs.append(d.integer(part) if d.chance(0.5) else d.ints([part, size - part] if part < size else [size]))
    return d.node("SplitToSequence", inputs, axis=axis if axis or d.chance(0.5) else None,
                  keepdims=d.maybe(d.r.randrange(2)))  # fmt: skip


@draws("SequenceEmpty")
def empty(d: Draw, op: str) -> None:
    name = d.node("SequenceEmpty", [], dtype=d.maybe(TensorProto.FLOAT))
    if d.chance(0.7):
        d.node("SequenceInsert", [name, d.tensor((np.float32,))])


def _place(d: Draw, name: str, more: int = 0) -> str:
    number = len(d.value(name)) + more
    return d.integer(d.r.randrange(-number, number))


@draws("SequenceAt")
def at(d: Draw, op: str) -> None:
    name = sequence(d)
    d.node(op, [name, _place(d, name)])


@draws("SequenceErase")
def erase(d: Draw, op: str) -> None:
    name = sequence(d)
    d.node(op, [name, _place(d, name)] if d.chance(0.6) else [name])


@draws("SequenceInsert")
def insert(d: Draw, op: str) -> None:
    name = sequence(d)
    inputs = [name, d.tensor((np.float32,))]
    made = d.node(op, [*inputs, _place(d, name)] if d.chance(0.5) else inputs)
    d.node("SequenceAt", [made, d.constant(np.array(d.r.choice((0, -1)), np.int64))])


@draws("SequenceLength")
def length(d: Draw, op: str) -> None:
    d.node(op, [sequence(d)])


@draws("ConcatFromSequence")
def concat_from_sequence(d: Draw, op: str) -> None:
    name = sequence(d)
    first = d.value(name)[0]
    new_axis = d.chance(0.4)
    axis = d.r.randint(-first.ndim - new_axis, first.ndim + new_axis - 1) if first.ndim + new_axis else 0
    d.node(op, [name], axis=axis, new_axis=1 if new_axis else d.maybe(0))


@draws("Optional")
def optional(d: Draw, op: str) -> None:
    name = sequence(d) if d.chance(0.3) else d.tensor((np.float32,))
    nodes = [helper.make_node("Optional", [name], [d.fresh_name()])]
    nodes.append(helper.make_node(d.r.choice(("OptionalGetElement", "OptionalHasElement")), nodes[0].output,
                                  [d.fresh_name()]))  # fmt: skip
    d.add(nodes, [nodes[-1].output[0]])


@draws("OptionalGetElement", "OptionalHasElement")
def optional_element(d: Draw, op: str) -> None:
    if d.opset >= 18 and d.chance(0.5):
        d.node(op, [sequence(d) if d.chance(0.3) else d.tensor((np.float32,))])
        return
    nodes = [helper.make_node("Optional", [d.tensor((np.float32,))], [d.fresh_name()])]
    nodes.append(helper.make_node(op, nodes[0].output, [d.fresh_name()]))
    d.add(nodes, [nodes[-1].output[0]])


@draws("SequenceMap")
def sequence_map(d: Draw, op: str) -> None:
    name = sequence(d)
    others = [d.tensor((np.float32,))] if d.chance(0.4) else []
    inner = scopes.inner(d)
    given = [scopes.take(inner, Kind("tensor", TensorProto.FLOAT), d.value(name)[0])]
    given += [scopes.take(inner, *d.typed(other)) for other in others]
    scopes.some_nodes(inner, d.r.randint(1, 2))
    result = scopes.tensor_of(inner, np.float32)
    body = scopes.graph(inner, given, [result])
    made = d.node(op, [name, *others], body=body)
    if not d.value(made):
        raise Refused("empty")
    d.node("SequenceAt", [made, d.constant(np.array(0, np.int64))])
