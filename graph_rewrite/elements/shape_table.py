"""What rules of shapes share: how they get into the table, and small questions about a node."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from .engine import SHAPES, Elements
from .poly import Poly


def rule(*ops: str) -> Callable:
    """Puts a rule for these operators into the table."""

    def add(rule: Callable) -> Callable:
        for op in ops:
            SHAPES[op] = rule
        return rule

    return add


def optional_input(node: gs.Node, index: int) -> gs.Tensor | None:
    """The input, None where it is left out."""
    tensor = node.inputs[index] if index < len(node.inputs) else None
    return None if tensor is None or tensor.is_empty() else tensor


def shape_of_first(elements: Elements, node: gs.Node) -> list[Poly]:
    return list(elements.shape(node.inputs[0]))


def only(node: gs.Node, output: int, most: int = 1) -> None:
    if output >= most:
        raise NoMatch(node, f"the shape of output {output} of {node.op} is not known")
