"""Numbers that are computed of constants in their types: cut to integers, wrapped, rounded to 11 bits, looked up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .build import BOOL, FLOAT, HIDDEN, INT32, INT64, Attention, Graph, Random, attend, helper, masking, recipe, spelled

F16, U8, I8, F64 = 10, 2, 3, 11


def number(b: Graph) -> str:
    """A float32 scalar, constant, of the kind that an evaluation without types gets wrong."""
    r = b.r
    k = r.randrange(2, 12)
    root = lambda n: b.op("Sqrt", b.const(float(n)))  # noqa: E731
    pair = [[1.0, 2.0], [3.0, k / 7]]
    ways: list[Callable[[], str]] = [
        lambda: b.cast(b.cast(root(k * k - 1), INT64), FLOAT),  # 6.93 is 6
        lambda: b.cast(b.cast(b.const(-k - 0.9), INT32), FLOAT),  # towards zero
        lambda: b.cast(b.cast(b.const(k / 9), BOOL), FLOAT),
        lambda: b.cast(b.cast(b.ints(k), BOOL), FLOAT),
        lambda: b.cast(b.op("Sub", b.ints(2, np.uint64), b.ints(2, np.uint64)), FLOAT),
        lambda: b.cast(b.cast(b.op("Sub", b.ints(k, np.uint32), b.ints(k + 1, np.uint32)), U8), FLOAT),
        lambda: b.cast(b.op("Pow", b.ints(k), b.const(0.5)), FLOAT),
        lambda: b.cast(b.op("Pow", b.ints(2), b.ints(k % 5)), FLOAT),
        lambda: b.cast(b.op("Div", b.ints(k), b.ints(r.choice([2, 3]))), FLOAT),
        lambda: b.cast(b.op("Mod", b.ints(-k), b.ints(7)), FLOAT),
        lambda: b.cast(b.op("Mod", b.ints(-k), b.ints(7), fmod=1), FLOAT),
        lambda: b.op("Gather", b.op("Gather", b.const(pair), b.ints(1), axis=0), b.ints(1), axis=0),
        lambda: b.op("Squeeze", b.op("Slice", b.const([1.0, k / 5, 2.0]), b.ints([-2]), b.ints([-1])), b.ints([0])),
        lambda: b.cast(b.cast(b.const(2049.0 + k), F16), FLOAT),
        lambda: b.cast(b.cast(b.const(1 + k * 1e-4), F16), FLOAT),
        lambda: b.cast(b.cast(b.ints(250 + k), U8), FLOAT),
        lambda: b.cast(b.cast(b.ints(126 + k), I8), FLOAT),
        lambda: b.cast(b.op("Mul", b.ints(1 << 30, np.int32), b.ints(k, np.int32)), FLOAT),
        lambda: b.op("Div", b.const(1.0), b.op("Floor", root(k * k + k))),
        lambda: b.op("Round", b.const(k + 0.5)),
        lambda: b.op("Where", b.op("Greater", b.const(np.nan), b.const(0.0)), b.const(2.0), b.const(0.25)),
        lambda: b.op("ReduceMax", b.const([0.1, k / 3, 0.2]), keepdims=0),
        lambda: b.op("Clip", b.const(float(k)), b.const(3.0), b.const(2.0)),
        lambda: b.cast(b.op("ArgMax", b.const([0.1, 0.7, k / 5]), axis=0, keepdims=0), FLOAT),
        lambda: b.op("Max", b.const(k / 4), b.const(0.5)),
        lambda: b.cast(b.op("Size", b.const(np.zeros((k, 3)))), FLOAT),
        lambda: b.cast(b.op("Not", b.op("Equal", b.cast(b.const(0.3), F64), b.const(0.3, dtype=np.float64))), FLOAT),
        lambda: b.op("Reciprocal", b.const(k / 3)),
        lambda: b.op("Squeeze", b.op("CumSum", b.const([k / 4]), b.ints(0)), b.ints([0])),
        lambda: b.op("Constant", value_float=k / 4),
        lambda: b.op("ReduceSum", b.op("Constant", value_floats=[0.5, k / 4]), keepdims=0),
    ]
    return r.choice(ways)()


@recipe(count=6)
def _scale(b: Graph, r: Random) -> None:
    x = b.input("x", ("B", "S", HIDDEN))
    factor = number(b)
    op = r.choice(["Mul", "Div"])
    b.output(attend(b, x, Attention(scale="none", mask="none", parts={"after_mask": lambda s: b.op(op, s, factor)})))


@recipe(count=6)
def _scale_of_q(b: Graph, r: Random) -> None:
    x = b.input("x", ("B", "S", HIDDEN))
    q = b.op(r.choice(["Mul", "Div"]), b.linear(x, HIDDEN, HIDDEN), number(b))
    b.output(attend(b, x, spelled(r, mask="none", parts={"q": q})))


@masking(opset=(16, 17, 20), longest=60)
def _window(b: Graph, r: Random) -> str:
    """A window of that number."""
    return b.op("LessOrEqual", b.cast(b.distance("ids"), FLOAT), b.op("Abs", number(b)))


@masking(added=True)
def _hidden(b: Graph, r: Random) -> str:
    """What hides a key is that number, times one that may be large."""
    hidden = b.op("Mul", number(b), b.const(r.choice([-1e4, -1e9, -1.0])))
    return b.op("Where", b.cast(b.keys("attention_mask"), BOOL), b.const(0.0), hidden)


@recipe(count=6)
def _epsilon(b: Graph, r: Random) -> None:
    """The number, as epsilon of a LayerNorm spelled out."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    total = b.op("Add", b.linear(x, HIDDEN, HIDDEN), y)
    centred = b.op("Sub", total, b.mean(total))
    variance = b.mean(b.op("Mul", centred, centred))
    deviation = b.op("Sqrt", b.op("Add", variance, b.op("Abs", number(b))))
    scaled = b.op("Mul", b.op("Div", centred, deviation), b.const(1 + 0.2 * b.random.standard_normal(HIDDEN)))
    b.output(b.op("Add", scaled, b.weight(HIDDEN)))


@recipe(count=6)
def _gelu(b: Graph, r: Random) -> None:
    """GELU with that number in some place of its formula."""
    x = b.input("x", ("B", "S", HIDDEN))
    h = b.linear(x, HIDDEN, 32)
    n = {"root": b.const(np.sqrt(2.0)), "one": b.const(1.0), "half": b.const(0.5)}
    n[r.choice(list(n))] = number(b)
    erf = b.op("Erf", b.op("Div", h, n["root"]))
    b.output(b.op("Mul", b.op("Mul", h, b.op("Add", erf, n["one"])), n["half"]))


@recipe(count=6)
def _weight(b: Graph, r: Random) -> None:
    """A weight computed of constants: through float16, bytes, or its own transpose."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    weight = b.weight(HIDDEN, HIDDEN)
    how = r.randrange(6)
    if how == 0:
        weight = b.cast(b.cast(weight, r.choice([F16, F64])), FLOAT)
    elif how == 1:
        weight = b.cast(b.cast(b.op("Mul", weight, b.const(50.0)), I8), FLOAT)
    elif how == 2:
        weight = b.op("Transpose", weight, perm=[1, 0])
    elif how == 3:
        weight = b.op("Mul", weight, number(b))
    elif how == 4:
        weight = b.op("Gather", weight, b.ints(list(r.sample(range(HIDDEN), HIDDEN))), axis=r.randrange(2))
    else:
        weight = b.op("Reshape", b.weight(HIDDEN * HIDDEN), b.ints([HIDDEN, -1]))
    total = b.op("Add", b.op("Add", b.op("MatMul", x, weight), b.weight(HIDDEN)), y)
    b.output(b.layer_norm(total, HIDDEN))


@recipe(count=6)
def _bias(b: Graph, r: Random) -> None:
    """A bias that is a product, a sum or a slice of constants; or one number for all."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    bias = r.choice(
        [
            lambda: b.op("Mul", b.weight(HIDDEN), number(b)),
            lambda: b.op("Slice", b.weight(2 * HIDDEN), b.ints([HIDDEN - 1]), b.ints([-1])),
            lambda: b.op("Expand", number(b), b.ints([HIDDEN])),
            lambda: number(b),
            lambda: b.op("Reshape", b.weight(HIDDEN), b.ints([1, -1])),
            lambda: b.op("ConstantOfShape", b.ints([HIDDEN]), value=helper.make_tensor("v", FLOAT, [1], [0.3])),
        ]
    )()
    if r.random() < 0.4 and bias:
        bias = b.cast(b.cast(bias, F16), FLOAT)
    total = b.op("Add", b.op("Add", b.op("MatMul", x, b.weight(HIDDEN, HIDDEN)), bias), y)
    b.output(b.layer_norm(total, HIDDEN))
