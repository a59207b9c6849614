"""Numbers and forms that fused ops carry as attributes: epsilon, GELU's form, the scale of the scores."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import onnx
from onnx import helper

from ..mutant import Mutant

_NEAR = 6  # nodes between a Softmax and what scales its scores


def parameter(m: Mutant, r: Random) -> str | None:
    """Another epsilon, GELU by tanh instead of erf, or another scale: each as likely, however many nodes have it."""
    return r.choice((_epsilon, _gelu, _scale))(m, r)


def _epsilon(m: Mutant, r: Random) -> str | None:
    """Large enough to be seen in a result."""
    value = r.choice([1e-3, 0.02, 0.1, 0.7, 1.0])
    summed = {n.input[0] for n in m.nodes if n.op_type in ("Sqrt", "Pow") and n.input}
    node = m.node(r, lambda n: n.op_type == "LayerNormalization" or (n.op_type == "Add" and n.output[0] in summed))
    if node is None:
        return None
    if node.op_type == "LayerNormalization":
        kept = [a for a in node.attribute if a.name != "epsilon"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("epsilon", value)])
    else:
        index = _scalar_input(m, node)
        node.input[index] = m.add_constant(np.full_like(m.constant(node.input[index]), value))
    return f"{m.called(node)}: epsilon is {value}"


def _gelu(m: Mutant, r: Random) -> str | None:
    node = m.node(r, lambda n: n.op_type in ("Gelu", "Erf"))
    if node is None:
        return None
    if node.op_type == "Gelu":
        given = next((a.s for a in node.attribute if a.name == "approximate"), b"none")
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("approximate", "none" if given == b"tanh" else "tanh"))
    else:
        kind = m.kinds[node.input[0]]
        if kind is None:
            return None
        dtype = helper.tensor_dtype_to_np_dtype(kind.element)
        # Of u = x / sqrt(2): tanh(sqrt(2 / pi) * (x + 0.044715 x**3)).
        u = node.input[0]
        cube = m.insert_before(node, "Mul", [m.insert_before(node, "Mul", [u, u]), u])
        cube = m.insert_before(node, "Mul", [cube, m.add_constant(np.array(2 * 0.044715, dtype))])
        total = m.insert_before(node, "Add", [u, cube])
        scale = m.add_constant(np.array(2 / math.sqrt(math.pi), dtype))
        node.input[0] = m.insert_before(node, "Mul", [total, scale])
        node.op_type = "Tanh"
    return f"{m.called(node)}: GELU of the other form"


def _scale(m: Mutant, r: Random) -> str | None:
    made = {name: node for node in m.nodes for name in node.output}
    level = [n for n in m.nodes if n.op_type == "Softmax"]
    near: list[onnx.NodeProto] = []
    for _ in range(_NEAR):
        level = [made[name] for node in level for name in node.input if name in made]
        near += level
    names = {n.name for n in near if n.op_type in ("Mul", "Div")}
    node = m.node(r, lambda n: n.name in names and _is_scaled(m, n))
    if node is None:
        return None
    index, factor = _scalar_input(m, node), r.choice([0.25, 0.5, 2.0, 3.0])
    values = m.constant(node.input[index])
    node.input[index] = m.add_constant((values * factor).astype(values.dtype))
    return f"{m.called(node)}: scaled by {factor} times as much"


def _is_scaled(m: Mutant, node: onnx.NodeProto) -> bool:
    try:
        return m.constant(node.input[_scalar_input(m, node)]).dtype.kind == "f"
    except ValueError:
        return False


def _scalar_input(m: Mutant, node: onnx.NodeProto) -> int:
    """The input that is one constant number. Raises ValueError where none is."""
    constants = m.constants()
    for index, name in enumerate(node.input):
        if name in constants and m.constant(name).size == 1:
            return index
    raise ValueError(f"{node.name} has no constant number")
