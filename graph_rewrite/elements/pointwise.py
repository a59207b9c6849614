"""Operators that compute element by element."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from ..nodes import NoMatch
from .engine import RULES, Elements, Places
from .expr import Expr, made, truth
from .poly import ONE, ZERO

_TO_BOOL = (
    "And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf",
)  # fmt: skip
_SAME_TYPE = (
    "Abs", "Add", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil", "Clip", "Cos", "Div",
    "Erf", "Exp", "Floor", "HardSigmoid", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mod", "Mul", "Neg", "PRelu",
    "Pow", "Reciprocal", "Relu", "Round", "Shrink", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Sum", "Tanh",
    "ThresholdedRelu",
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


def _outer_product(elements: Elements, node: gs.Node, output: int, places: Places) -> Expr:
    """MatMul of [.., n, 1] and [.., 1, m]: one product."""
    if not elements.symbolic:
        raise NoMatch(node, f"'{node.outputs[output].name}' comes from {node.op}, which is not followed")
    shapes = [elements.shape(t) for t in node.inputs]
    if min(map(len, shapes)) < 2 or shapes[0][-1] != ONE or shapes[1][-2] != ONE:
        raise NoMatch(node, f"multiplies matrices {shapes[0]} and {shapes[1]}", wanted="sums of one product")
    elements.check_broadcast([shape[:-2] for shape in shapes], node)
    before, (row, column) = places[:-2], places[-2:]
    args = [
        elements.spread(t, (*before, *own)) for t, own in zip(node.inputs, ((row, ZERO), (ZERO, column)), strict=True)
    ]
    return made("Mul", tuple(args), args[0].dtype, node)


for _op in (*_TO_BOOL, *_SAME_TYPE, "Cast"):
    RULES[_op] = _element
RULES["Where"] = _where
RULES["MatMul"] = _outer_product
