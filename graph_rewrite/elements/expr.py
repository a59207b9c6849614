"""What one element of a tensor is, as an expression: of places, of constants, and of elements that the model is fed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ..nodes import node_name
from .poly import Poly, number

INDEX_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


@dataclass(frozen=True)
class Number:
    """A whole number made of sizes and places; constants of the index types among them."""

    poly: Poly
    dtype: np.dtype


@dataclass(frozen=True)
class Const:
    """A constant of any other type, by its bytes: NaN is equal to itself, and -0 is not 0."""

    dtype: np.dtype
    raw: bytes

    @property
    def value(self) -> np.ndarray:
        return np.frombuffer(self.raw, self.dtype).reshape(())


@dataclass(frozen=True)
class Read:
    """The element of `tensor` at `index`."""

    name: str
    index: tuple[Poly, ...]
    dtype: np.dtype
    tensor: gs.Tensor = field(compare=False)


@dataclass(frozen=True, eq=False)
class Apply:
    """An element-wise operator on elements; None stands for an input left out.

    Its hash is kept: operands are shared, and to go through them anew for each use would take for ever.
    """

    op: str
    attributes: tuple[tuple[str, Any], ...]
    args: tuple[Expr | None, ...]
    dtype: np.dtype
    node: gs.Node

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.attributes, self.args, self.dtype)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Apply) or self._hash != other._hash:
            return False
        return (self.op, self.attributes, self.args, self.dtype) == (
            other.op,
            other.attributes,
            other.args,
            other.dtype,
        )


Expr = Number | Const | Read | Apply


def made(op: str, args: tuple[Expr, ...], dtype: np.dtype, node: gs.Node, **attributes: Any) -> Apply:
    """An operator on elements that the graph does not hold as such; messages name `node`."""
    return Apply(op, tuple(attributes.items()), args, dtype, gs.Node(op, node_name(node), attributes))


def constant(value: Any) -> Number | Const:
    """A NumPy scalar as an expression."""
    array = np.asarray(value)
    if array.dtype in INDEX_TYPES:
        return Number(number(int(array)), array.dtype)
    return Const(array.dtype, array.tobytes())


def value_of(expr: Expr | None) -> np.ndarray | None:
    """The typed scalar that the expression is, None where it is not one."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Number) and expr.poly.constant is not None:
        return np.asarray(expr.poly.constant, expr.dtype)
    return None


def truth(expr: Expr | None) -> bool | None:
    """Of a constant bool, which; None for anything else."""
    return bool(expr.value) if isinstance(expr, Const) and expr.dtype == np.bool_ else None


def attributes_of(node: gs.Node) -> tuple[tuple[str, Any], ...]:
    """A node's attributes in a form that can be compared."""
    return tuple(sorted((name, _plain(value)) for name, value in node.attrs.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, gs.Constant):
        array = np.asarray(value.values)
        return (array.dtype.str, array.shape, array.tobytes())
    return tuple(value) if isinstance(value, list) else value


def walk(expr: Expr) -> Iterator[Expr]:
    """Every expression in this one, each once, the outermost first."""
    seen, stack = set(), [expr]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        if isinstance(current, Apply):
            stack.extend(arg for arg in reversed(current.args) if arg is not None)
