"""Operators that compute element by element."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from ..nodes import NoMatch
from .engine import RULES, Elements, Places
from .expr import Expr, truth

_TO_BOOL = (
    "And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf",
)  # fmt: skip
_SAME_TYPE = (
    "Abs", "Add", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil", "Clip", "Div", "Erf",
    "Exp", "Floor", "HardSigmoid", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mod", "Mul", "Neg", "PRelu", "Pow",
    "Reciprocal", "Relu", "Round", "Shrink", "Sigmoid", "Sign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu",
)  # fmt: skip


def _element(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    elements.check_broadcast([elements.shape(t) for t in node.inputs if not t.is_empty()], node)
    args = [None if t.is_empty() else elements.spread(t, places) for t in node.inputs]
    return elements.apply(node, args, _dtype(node, args))


def _dtype(node: gs.Node, args: list[Expr | None]) -> np.dtype:
    if node.op in _TO_BOOL:
        return np.dtype(bool)
    if node.op == "Cast":
        try:
            return np.dtype(helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
        except KeyError as error:
            raise NoMatch(node, "casts to a type that is not known") from error
    return args[0].dtype


def _where(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    """Only the branch that is taken need be understood."""
    elements.check_broadcast([elements.shape(t) for t in node.inputs], node)
    condition = elements.spread(node.inputs[0], places)
    if truth(condition) is not None:
        return elements.spread(node.inputs[1 if truth(condition) else 2], places)
    args = [condition, *(elements.spread(t, places) for t in node.inputs[1:])]
    return elements.apply(node, args, args[1].dtype)


for _op in (*_TO_BOOL, *_SAME_TYPE, "Cast"):
    RULES[_op] = _element
RULES["Where"] = _where
