"""Constants of other values, types and shapes."""

from __future__ import annotations

from random import Random

import numpy as np
from onnx import helper

from ..mutant import Mutant


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
