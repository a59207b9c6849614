"""Random conditions on places, lengths, the batch and ids, as nodes of a mutant."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import onnx

from .sizes import Arithmetic

if TYPE_CHECKING:
    from .facts import Kind
    from .mutant import Mutant

_INT64 = onnx.TensorProto.INT64
_NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 20, 25, 32, 33)


def condition(m: Mutant, r: Random, node: onnx.NodeProto, name: str, kind: Kind) -> tuple[str, str] | None:
    """A bool tensor that broadcasts to `name`, made just before `node`, and what it says. None where none fits."""
    add: Callable[..., str] = lambda op, *inputs, **attributes: m.insert_before(node, op, list(inputs), **attributes)  # noqa: E731
    ints = lambda value: m.add_constant(np.asarray(value, np.int64))  # noqa: E731

    def size(axis: int) -> str:
        """One size of the tensor itself, int64 scalar."""
        return add("Gather", add("Shape", name), ints(axis), axis=0)

    rank = len(kind.shape)
    varying = [axis for axis in range(rank) if kind.shape[axis][0] != kind.shape[axis][1]]
    number = r.choice([*_NUMBERS, *(n for n in m.facts.numbers if 0 < n < 64)])
    op = r.choice(["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"])
    if not varying:
        return None
    axis = r.choice(varying)

    def places(of: int) -> str:
        """Numbers along an axis, shaped to broadcast."""
        numbers = add("Range", ints(0), size(of), ints(1))
        shape = [1] * rank
        shape[of] = -1
        return add("Reshape", numbers, ints(shape))

    how = r.randrange(9)
    if how >= 6:
        return _of_sizes(m, r, node, name, kind, axis, places(axis))
    if how == 5:  # two CumSums without names
        sums = Arithmetic(m, r, node)
        first, second = sums.running(name, axis, rank), sums.running(name, r.choice(varying), rank)
        return add(op, first, second), f"one running number {op} another"
    if how == 0:
        return add(op, places(axis), ints(number)), f"place on axis {axis} {op} {number}"
    if how == 1:
        return add(op, size(axis), ints(number)), f"size of axis {axis} {op} {number}"
    if how == 2:
        rest = add("Mod", size(axis) if r.random() < 0.6 else places(axis), ints(r.choice([2, 3, 4])))
        return add("Equal", rest, ints(r.choice([0, 1]))), f"a remainder on axis {axis}"
    if how == 3 and len(varying) > 1:
        a, b = r.sample(varying, 2)
        apart = add("Sub", places(a), places(b))
        apart = add("Abs", apart) if r.random() < 0.5 else apart
        return add(op, apart, ints(number)), f"places on axes {a} and {b} apart {op} {number}"
    ids = next((i for i in m.facts.signature.inputs if i.rows > 8 and "position" not in i.name), None)
    if ids is None or kind.shape[axis] != m.kinds[ids.name].shape[-1]:
        return add(op, places(axis), add("Sub", size(axis), ints(number))), f"place on axis {axis} {op} S - {number}"
    token = r.choice([0, 1, ids.rows - 1, r.randrange(ids.rows)])
    same_batch = bool(rank > 1 and kind.shape[0] == m.kinds[ids.name].shape[0] and axis > 0)
    tokens = ids.name if same_batch else add("Gather", ids.name, ints([0]), axis=0)
    shape = [1] * rank
    shape[axis] = -1
    if same_batch:
        shape[0] = 0
        batch = add("Gather", add("Shape", ids.name), ints([0]), axis=0)
        length = add("Gather", add("Shape", ids.name), ints([1]), axis=0)
        parts = [batch, *([ints([1])] * (axis - 1)), length, *([ints([1])] * (rank - axis - 1))]
        tokens = add("Reshape", tokens, add("Concat", *parts, axis=0))
    else:
        tokens = add("Reshape", tokens, ints(shape))
    return add("Equal", tokens, ints(token)) if r.random() < 0.5 else add(
        "Greater", tokens, ints(token)
    ), f"ids at {token}"


def _of_sizes(m: Mutant, r: Random, node, name: str, kind: Kind, axis: int, places: str) -> tuple[str, str]:
    """What is computed of a size, compared: with another such number, with the size, or with places."""
    of = Arithmetic(m, r, node)
    first, what = of.of_size(name, axis)
    op = r.choice(["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"])
    how = r.randrange(3)
    if how == 0:
        return of.op(op, places, first), f"place on axis {axis} {op} {what}"
    if how == 1:
        return of.op(op, first, of.size(name, axis)), f"{what} {op} S"
    other, second = of.of_size(name, r.randrange(len(kind.shape)))
    return of.op(op, first, other), f"{what} {op} {second}"


__all__ = ["condition"]
