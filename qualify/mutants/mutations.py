"""Ways to change a model a little. Each takes a Mutant and a random generator, and says what it did, or None."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper

from .conditions import condition
from .mutant import Mutant

FLOAT, BOOL, INT64, INT32 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32
_SIBLINGS = (
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
    ("And", "Or", "Xor"),
    ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod"),
    ("Erf", "Tanh", "Sigmoid", "Gelu", "Relu", "Softsign", "Identity"),
    ("Sqrt", "Abs", "Exp", "Reciprocal", "Neg", "Identity", "Ceil", "Floor"),
    ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("Not", "Identity"),
)


def constant_value(m: Mutant, r: Random) -> str | None:
    """Another value in a constant: of all its users, or of one."""
    node, index = m.constant_input(r)
    if node is None:
        return None
    name = node.input[index]
    values = m.constant(name).copy()
    if not values.size or values.dtype.kind not in "biuf":
        return None
    before = values.copy()
    if values.size <= 8:
        at = r.randrange(values.size)
        new = _interesting(values.ravel()[at], r, m)
        with np.errstate(all="ignore"):
            values.reshape(-1)[at] = np.asarray(new).astype(values.dtype)
        what = f"{before.ravel()[at]} -> {values.ravel()[at]}"
    else:
        what = _changed_weight(values, r)
    if np.array_equal(before, values):
        return None
    if r.random() < 0.6:
        node.input[index] = m.add_constant(values)
    else:
        m.set_constant(name, values)
    return f"constant '{name}' of {m.called(node)}: {what}"


def _interesting(value: np.generic, r: Random, m: Mutant):
    if value.dtype.kind == "b":
        return not value
    number = float(value)
    if value.dtype.kind in "iu":
        choices = [0, 1, 2, -1, number + 1, number - 1, -number, number * 2, 20, 1000, r.choice(m.facts.numbers or [3])]
        return int(r.choice(choices)) if abs(number) < 1 << 40 else int(r.choice([0, 1, 2, 5]))
    if abs(number) > 1e3 or number == -np.inf:
        return r.choice([-1e4, -1e9, -1000.0, -900.0, -10.0, -1.0, 0.0, 1.0, -np.inf, -number, number / 2, 1e4])
    near = [number * 1.001, number * 1.1, number + 0.01, -number, number * 2, number / 2, number + 1, number - 1]
    return r.choice([*near, 0.0, 1.0, 0.5, 2.0, 1e-5, 1e-3, 0.1])


def _changed_weight(values: np.ndarray, r: Random) -> str:
    how = r.randrange(5)
    row = r.randrange(len(values))
    if how == 0:
        values[...] = values * np.asarray(r.choice([2, -1, 0]), values.dtype)
        return "all values times a number"
    if how == 1:
        values[row] = values[r.randrange(len(values))]
        return f"row {row} is another's"
    if how == 2:
        values[...] = values[::-1].copy()
        return "rows reversed"
    if how == 3 and values.ndim == 2 and values.shape[0] == values.shape[1]:
        values[...] = values.T.copy()
        return "transposed"
    values[row] = values[row] * np.asarray(3, values.dtype) + np.asarray(1, values.dtype)
    return f"row {row} times 3 and 1 more"


def constant_type(m: Mutant, r: Random) -> str | None:
    """A constant of another type, and a Cast back."""
    node, index = m.constant_input(r)
    if node is None:
        return None
    name = node.input[index]
    values = m.constant(name)
    if values.dtype.kind not in "biuf" or values.size > 4096:
        return None
    kind = np.dtype(r.choice(["float16", "float64", "float32", "int64", "int32", "uint8", "int8", "bool", "uint64"]))
    if kind == values.dtype:
        return None
    with np.errstate(all="ignore"):
        other = m.add_constant(values.astype(kind))
    back = m.insert_before(node, "Cast", [other], to=helper.np_dtype_to_tensor_dtype(values.dtype))
    m.kinds[back] = m.kinds.get(name)
    node.input[index] = back
    return f"constant '{name}' of {m.called(node)} is {kind}, cast back"


def constant_shape(m: Mutant, r: Random) -> str | None:
    """A constant with more axes of 1, without them, or broadcast."""
    node, index = m.constant_input(r)
    if node is None:
        return None
    name = node.input[index]
    values = m.constant(name)
    choices = [
        values[None],
        values[None, None],
        values[..., None],
        values.reshape(-1),
        values[:1] if values.ndim else values,
    ]
    if values.size == 1:
        choices += [values.reshape(()), values.reshape(1, 1, 1, 1), values.reshape(1)]
    new = r.choice(choices)
    if new.shape == values.shape:
        return None
    node.input[index] = m.add_constant(np.ascontiguousarray(new).reshape(new.shape))
    return f"constant '{name}' of {m.called(node)}: {list(values.shape)} -> {list(new.shape)}"


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


def swap_op(m: Mutant, r: Random) -> str | None:
    """Another operator of the same inputs."""
    families = [f for f in _SIBLINGS]
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


def expose(m: Mutant, r: Random) -> str | None:
    """An interior tensor is an output of the model, too."""
    node = m.node(r, lambda n: len(n.output) > 0 and n.output[0] not in m.output_names())
    if node is None or m.kinds.get(node.output[0]) is None:
        return None
    m.expose(node.output[0])
    return f"'{node.output[0]}' is an output, too"


def swap_inputs(m: Mutant, r: Random) -> str | None:
    """Two inputs of a node in each other's place."""
    node = m.node(r, lambda n: len(n.input) > 1)
    if node is None:
        return None
    a, b = r.sample(range(len(node.input)), 2)
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return f"{m.called(node)}: inputs {a} and {b} exchanged"


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


def overridable(m: Mutant, r: Random) -> str | None:
    """An initialiser that callers may replace: it is an input of the graph, too."""
    if not m.model.graph.initializer:
        return None
    node, index = m.constant_input(r)
    if node is None:
        return None
    tensor = next((t for t in m.model.graph.initializer if t.name == node.input[index]), None)
    if tensor is None or any(v.name == tensor.name for v in m.model.graph.input):
        return None
    m.model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return f"'{tensor.name}' can be overridden"


def input_type(m: Mutant, r: Random) -> str | None:
    """A graph input of another type, with or without a Cast back."""
    value = r.choice(m.model.graph.input)
    old = value.type.tensor_type.elem_type
    new = r.choice([FLOAT, BOOL, INT32, TensorProto.UINT8, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8])
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


Mutation = Callable[[Mutant, Random], "str | None"]

# With how often each is chosen.
MUTATIONS: dict[Mutation, float] = {
    constant_value: 5, constant_type: 1, constant_shape: 1, attribute: 3, rewire: 4, swap_op: 3, insert: 5, combine: 3,
    drop: 3, expose: 0.5, swap_inputs: 1.5, exchange: 1.5, spliced: 6, overridable: 0.5, input_type: 0.7,
}  # fmt: skip
