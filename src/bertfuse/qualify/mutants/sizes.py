"""Whole numbers that a mutant computes of the size of an axis: by fractions, remainders, counts and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from .mutant import Mutant

_INT64, _FLOAT, _BOOL = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL


class Arithmetic:
    """Nodes made just before `node` (behind all where there is none), of int64 scalars mostly."""

    def __init__(self, m: Mutant, r: Random, node: onnx.NodeProto | None) -> None:
        self.m, self.r, self.node = m, r, node

    def op(self, op: str, *inputs: str, **attributes) -> str:
        return self.m.insert_before(self.node, op, list(inputs), **attributes)

    def ints(self, value) -> str:
        return self.m.add_constant(np.asarray(value, np.int64))

    def floats(self, value) -> str:
        return self.m.add_constant(np.asarray(value, np.float32))

    def cast(self, x: str, to: int) -> str:
        return self.op("Cast", x, to=to)

    def size(self, of: str, axis: int) -> str:
        """One size of a tensor."""
        shape = self.op("Shape", of)
        how = self.r.randrange(3)
        if how == 0:
            return self.op("Gather", shape, self.ints(axis), axis=0)
        if how == 1:
            one = self.op("Slice", shape, self.ints([axis]), self.ints([axis + 1]))
            return self.m.reshaped(self.node, "Squeeze", one, [0])
        rank = len(kind.shape) if (kind := self.m.kinds.get(of)) else axis + 1
        return self.op("Gather", shape, self.ints(axis - rank), axis=0)

    def of_size(self, of: str, axis: int) -> tuple[str, str]:
        """A number computed of one size, and how."""
        r, size = self.r, self.size(of, axis)
        n, k = r.choice([1, 2, 3, 4, 5, 7, 8, 16]), r.choice([2, 3, 4, 5])
        real = lambda: self.cast(size, _FLOAT)  # noqa: E731
        whole = lambda x: self.cast(x, _INT64)  # noqa: E731
        less = lambda: self.op("Sub", size, self.ints(n))  # noqa: E731
        half = r.choice([0.5, 0.75, 0.25, 1.5, 0.3])
        ways: dict[str, Callable[[], str]] = {
            "S": lambda: size,
            f"S - {n}": less,
            f"max(S, {n}, {k})": lambda: self.op("Max", *r.sample([size, self.ints(n), self.ints(k)], 3)),
            f"min(S, {n}, {k})": lambda: self.op("Min", *r.sample([size, self.ints(n), self.ints(k)], 3)),
            f"min(S, {n})": lambda: self.op("Min", size, self.ints(n)),
            f"max(S - {n}, 0)": lambda: self.op("Max", less(), self.ints(0)),
            f"(S - {n}) / {k}": lambda: self.op("Div", less(), self.ints(k)),
            f"-S / {k}": lambda: self.op("Div", self.op("Neg", size), self.ints(k)),
            f"S / -{k}": lambda: self.op("Div", size, self.ints(-k)),
            f"(S - {n}) mod {k}": lambda: self.op("Mod", less(), self.ints(r.choice([k, -k])), fmod=r.choice([0, 1])),
            f"abs(S - {n})": lambda: self.op("Abs", less()),
            f"sign(S - {n})": lambda: self.op("Sign", less()),
            f"int(S * {half})": lambda: whole(self.op("Mul", real(), self.floats(half))),
            f"round(S / {k}.0)": lambda: whole(
                self.op(r.choice(["Floor", "Ceil", "Round"]), self.op("Div", real(), self.floats(k)))
            ),
            f"-int(-S / {k}.0)": lambda: self.op("Neg", whole(self.op("Div", real(), self.floats(-k)))),
            "sqrt(S)": lambda: whole(self.op("Sqrt", real())),
            f"S if S / {k} == {half} * {n} else {n}": lambda: self.op(
                "Where",
                self.op("Equal", self.op("Div", real(), self.floats(k)), self.floats(half * n)),
                size,
                self.ints(n),
            ),
            f"{n} if S * 0.5 == {n / 2} else S": lambda: self.op(
                "Where", self._is_half(real(), n), self.ints(n), size
            ),
            f"len(range(0, S * {half}))": lambda: self.op(
                "Size", self.op("Range", self.floats(0), self.op("Mul", real(), self.floats(half)), self.floats(1))
            ),
            f"len(range(S, {n}, -{k}))": lambda: self.op(
                "Size", self.op("Range", size, self.ints(n), self.ints(-k))
            ),
            f"len(range(0, S, {k}))": lambda: self.op("Size", self.op("Range", self.ints(0), size, self.ints(k))),
            f"S in 8 bits + {n}": lambda: self.op(
                "Add", whole(self.cast(self.op("Mul", size, self.ints(40)), onnx.TensorProto.INT8)), self.ints(n)
            ),
            f"bool(S - {n})": lambda: whole(self.cast(less(), _BOOL)),
            "sum of the shape": lambda: self.op("ReduceSum", self.op("Shape", of), keepdims=0),
            "product of the shape": lambda: self.op("ReduceProd", self.op("Shape", of), keepdims=0),
        }  # fmt: skip
        said = r.choice(list(ways))
        return ways[said](), said

    def _is_half(self, size: str, n: int) -> str:
        return self.op("Equal", self.op("Mul", size, self.floats(0.5)), self.floats(n / 2))

    def running(self, of: str, axis: int, rank: int) -> str:
        """Places along an axis, shaped to broadcast, by an unnamed CumSum of ones, forwards or backwards."""
        r = self.r
        made = self.m.reshaped(self.node, "Unsqueeze", self.size(of, axis), [0])
        value = onnx.helper.make_tensor("value", _INT64, [1], [1])
        ones = self.op("ConstantOfShape", made, value=value)
        attributes = {name: 1 for name in ("reverse", "exclusive") if r.random() < 0.5}
        sums = self.m.insert_before(
            self.node, "CumSum", [ones, self.ints(r.choice([0, -1]))], unnamed=True, **attributes
        )
        shape = [1] * rank
        shape[axis] = -1
        return self.op("Reshape", sums, self.ints(shape))


__all__ = ["Arithmetic"]
