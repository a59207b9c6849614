"""Other operators and attributes, nodes more and less."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..mutant import Mutant

BOOL = TensorProto.BOOL
SIBLINGS = (
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
    ("And", "Or", "Xor"),
    ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod"),
    ("Erf", "Tanh", "Sigmoid", "Gelu", "Relu", "Softsign", "Identity"),
    ("Sqrt", "Abs", "Exp", "Reciprocal", "Neg", "Identity", "Ceil", "Floor"),
    ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("Not", "Identity"),
)


_ADDED = {
    "LayerNormalization": [("axis", -2), ("axis", 2), ("epsilon", 0.1), ("epsilon", 0.0), ("stash_type", 1)],
    "Softmax": [("axis", 1), ("axis", 2), ("axis", -2), ("axis", 3)],
    "Gemm": [("alpha", 2.0), ("beta", 0.5), ("transB", 1), ("transA", 1)],
    "Gather": [("axis", 1), ("axis", 0)],
    "Attention": [("scale", 0.0), ("scale", 0.3), ("is_causal", 1), ("softcap", 2.0), ("qk_matmul_output_mode", 1)],
    "Gelu": [("approximate", "tanh"), ("approximate", "none")],
    "ReduceMean": [("keepdims", 0), ("noop_with_empty_axes", 1)],
    "CumSum": [("reverse", 1), ("exclusive", 1)],
    "Reshape": [("allowzero", 1)],
    "Mod": [("fmod", 1)],
}  # fmt: skip


def attribute(m: Mutant, r: Random) -> str | None:
    """Another value of an attribute, or one that was left to its default."""
    node = m.node(r, lambda n: bool(n.attribute) or n.op_type in _ADDED)
    if node is None or node.op_type == "Constant":
        return None
    added = _ADDED.get(node.op_type, [])
    if added and (not node.attribute or r.random() < 0.6):
        name, value = r.choice(added)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])
        return f"{m.called(node)}: {name} is {value}"
    given = r.choice(node.attribute)
    before = str(helper.get_attribute_value(given))[:60]
    if given.type == onnx.AttributeProto.INT:
        given.i = (
            r.choice([0, 1, -1, 2, given.i + 1, given.i - 1])
            if given.name != "to"
            else r.choice([1, 6, 7, 9, 10, 11, 2])
        )
    elif given.type == onnx.AttributeProto.FLOAT:
        given.f = r.choice([0.0, 1.0, given.f * 2, given.f * 1e4, given.f + 0.1, -given.f])
    elif given.type == onnx.AttributeProto.INTS and len(given.ints):
        ints = list(given.ints)
        if given.name == "perm":
            a, b = r.sample(range(len(ints)), 2) if len(ints) > 1 else (0, 0)
            ints[a], ints[b] = ints[b], ints[a]
        else:
            ints[r.randrange(len(ints))] += r.choice([-1, 1])
        given.ints[:] = ints
    elif given.type == onnx.AttributeProto.STRING:
        given.s = r.choice([b"none", b"tanh", b"NOTSET"])
    else:
        return None
    return f"{m.called(node)}: {given.name} {before} -> {str(helper.get_attribute_value(given))[:60]}"


def swap_op(m: Mutant, r: Random) -> str | None:
    """Another operator of the same inputs."""
    families = [f for f in SIBLINGS]
    node = m.node(r, lambda n: any(n.op_type in f for f in families))
    if node is None:
        return None
    family = r.choice([f for f in families if node.op_type in f])
    old, new = node.op_type, r.choice(family)
    if new == old:
        return None
    node.op_type = new
    if new not in ("ReduceMean", "ReduceMax", "ReduceSum", "Softmax", "LogSoftmax", "Hardmax"):
        del node.attribute[:]
    return f"{m.called(node)} is {new}, was {old}"


def insert(m: Mutant, r: Random) -> str | None:
    """One more node on an edge."""
    node, index = m.edge(r)
    if node is None:
        return None
    name = node.input[index]
    kind = m.kinds.get(name)
    if kind is None:
        return None
    if kind.is_float:
        ways = [
            ("Cast", 7),
            ("Cast", 10),
            ("Cast", 9),
            ("Abs",),
            ("Neg",),
            ("Mul", 1.5),
            ("Mul", 0.999),
            ("Add", 0.25),
            ("Clip", 0.0, 1.0),
            ("Clip", -1e3, 2.0),
            ("Identity",),
            ("Sign",),
            ("Round",),
            ("Relu",),
            ("Max", 0.5),
            ("Min", 0.5),
            ("Self", "Add"),
            ("Self", "Mul"),
            ("Tanh",),
            ("Mul", 1.0),
            ("Softmax",),
            ("Mul", -1.0),
        ]
    elif kind.element == BOOL:
        ways = [("Not",), ("Identity",), ("Self", "Xor"), ("Cast", 7), ("Cast", 1)]
    elif kind.is_whole:
        ways = [
            ("Cast", 9),
            ("Cast", 1),
            ("Cast", 2),
            ("Cast", 3),
            ("Cast", 10),
            ("Abs",),
            ("Neg",),
            ("Mul", 2),
            ("Add", 1),
            ("Add", -1),
            ("Mod", 2),
            ("Mod", 5),
            ("Mod", 33),
            ("Clip", 0, 1),
            ("Clip", 1, 50),
            ("Max", 1),
            ("Min", 1),
            ("Identity",),
            ("Sign",),
            ("Self", "Mul"),
            ("Self", "Add"),
            ("Div", 2),
            ("Mul", 1),
            ("Min", 20),
        ]
    else:
        return None  # fmt: skip
    op, *arguments = r.choice(ways)
    made = _applied(m, node, name, kind.element, op, arguments)
    m.kinds[made] = kind
    node.input[index] = made
    return f"{op} {arguments or ''} between '{name}' and {m.called(node)}"


def _applied(m: Mutant, before: onnx.NodeProto, name: str, element: int, op: str, arguments: list) -> str:
    dtype = helper.tensor_dtype_to_np_dtype(element)
    if op == "Cast":
        there = m.insert_before(before, "Cast", [name], to=arguments[0])
        return m.insert_before(before, "Cast", [there], to=element)
    if op == "Self":
        return m.insert_before(before, arguments[0], [name, name])
    constants = [m.add_constant(np.asarray(value, dtype)) for value in arguments]
    return m.insert_before(before, op, [name, *constants])


def drop(m: Mutant, r: Random) -> str | None:
    """A node less: its output is an input of it."""
    node = m.node(r, lambda n: len(n.output) == 1 and len(n.input) > 0)
    if node is None:
        return None
    kind = m.kinds.get(node.output[0])
    inputs = [name for name in node.input if name and m.kinds.get(name) == kind]
    if not inputs:
        inputs = [name for name in node.input[:1] if name]
    if not inputs or node.output[0] in m.output_names():
        return None
    what, name = m.called(node), r.choice(inputs)
    m.remove(node, name)
    return f"{what} dropped for its input '{name}'"


def swap_inputs(m: Mutant, r: Random) -> str | None:
    """Two inputs of a node in each other's place."""
    node = m.node(r, lambda n: len(n.input) > 1)
    if node is None:
        return None
    a, b = r.sample(range(len(node.input)), 2)
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return f"{m.called(node)}: inputs {a} and {b} exchanged"
