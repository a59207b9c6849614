"""Models of which padding is to be removed, that divide by what comes of each token: of zeros it may be NaN."""

from __future__ import annotations

from .build import FLOAT, HIDDEN, Case, Random
from .padded import POOLED, TOKENS
from .padding import Model


def _divided(r: Random) -> Case:
    """Tokens brought to a length before they are pooled: what is that of a row of zeros?"""
    m = Model(r)
    b, x = m.b, m.x

    def of_each(op: str, of: str) -> str:
        if b.opset >= 18 or op == "ReduceSum":
            return b.op(op, of, b.ints([2]), keepdims=1)
        return b.op(op, of, axes=[2], keepdims=1)

    size = r.choice([
        lambda: of_each("ReduceL2", x), lambda: of_each("ReduceL1", x), lambda: of_each("ReduceSum", b.op("Abs", x)),
        lambda: b.op("Sqrt", of_each("ReduceMean", b.op("Mul", x, x))), lambda: of_each("ReduceMax", b.op("Abs", x)),
        lambda: b.op("Pow", of_each("ReduceSum", b.op("Pow", x, b.const(2.0))), b.const(0.5)),
    ])()  # fmt: skip
    size = r.choice([
        lambda: size, lambda: b.op("Clip", size, b.const(1e-12)), lambda: b.op("Max", b.const(1e-9), size),
        lambda: b.op("Add", size, b.const(r.choice([1e-6, 0.0]))), lambda: b.op("Exp", size),
    ])()  # fmt: skip
    one = b.const(1e-3)
    y = r.choice([
        lambda: b.op("Div", x, size), lambda: b.op("Mul", x, b.op("Reciprocal", size)), lambda: b.op("Log", size),
        lambda: b.op("Pow", size, b.const(r.choice([-1.0, 0.5]))), lambda: b.op("Sqrt", b.op("Sub", size, one)),
        lambda: b.op("Mod", x, size, fmod=1), lambda: b.layer_norm(b.op("Neg", x), HIDDEN, r.choice([0.0, 1e-5])),
    ])()  # fmt: skip
    how = r.randrange(4)
    if how == 3:
        return m.case((y, TOKENS), (m.mean(m.weight()), POOLED))
    pooled = [
        lambda: m.total(b.op("Mul", y, b.unsqueeze(b.cast(m.visible, FLOAT), 2))),
        lambda: b.op("Squeeze", b.op("MatMul", b.unsqueeze(b.cast(m.visible, FLOAT), 1), y), b.ints([1])),
        lambda: m.total(b.op("Where", b.unsqueeze(m.visible, 2), y, b.const(0.0))),
    ][how]()
    case = m.case((pooled, POOLED))
    case.runs = False  # the root of less than 0
    return case
