"""Gates, and sums with their norms, twisted: other columns and rows, activations, axes, scales, epsilons, types."""

from __future__ import annotations

from collections.abc import Callable

from .build import FLOAT, HIDDEN, Case, Graph, Random, np

_LAST, _FIRST = (1 << 31) - 1, -(1 << 62)


def _graph(r: Random, opsets: tuple[int, ...] = (14, 17, 18, 20)) -> tuple[Graph, str]:
    b = Graph(r, r.choice(opsets))
    return b, b.input("x", ("B", "S", HIDDEN))


def _activated(b: Graph, gate: str, up: str, width: int) -> str:
    """SiLU, quick GELU, GELU, or what is near them."""
    sigmoid = lambda x: b.op("Sigmoid", x)  # noqa: E731
    factor = b.r.choice([1.702, 1.702, 1.7, -1.702, 1.0])
    vector = np.full(b.r.choice([(width,), (1, 1, 1, 1)]), 1.702)
    ways: list[Callable[[], str]] = [
        lambda: b.op("Mul", gate, sigmoid(gate)),
        lambda: b.op("Mul", gate, sigmoid(gate)),
        lambda: b.op("Mul", sigmoid(b.op("Mul", gate, b.const(factor))), gate),
        lambda: b.op("Mul", gate, sigmoid(b.op("Mul", gate, b.const(vector)))),
        lambda: b.op("Mul", sigmoid(gate), sigmoid(gate)),
        lambda: b.op("Mul", up, sigmoid(gate)),
        lambda: sigmoid(gate),
        lambda: b.gelu(gate),
        lambda: b.op("Mul", b.op("Neg", gate), sigmoid(gate)),
    ]  # fmt: skip
    return b.r.choice(ways)()


def _gate(r: Random) -> Case:
    """activation(gate) * up of columns in any order, that overlap, or are of other rows."""
    b, x = _graph(r)
    width = r.choice([1, 4, 16])
    part = lambda y, start, end, axis=-1, step=1: b.op(  # noqa: E731
        "Slice", y, b.ints([start]), b.ints([end]), b.ints([axis]), b.ints([step])
    )
    if r.random() < 0.2:
        gate, up = b.linear(x, HIDDEN, width), b.linear(x, HIDDEN, width)
    else:
        y = b.linear(x, HIDDEN, 2 * width)
        pairs: list[Callable[[], tuple[str, str]]] = [
            lambda: (part(y, 0, width), part(y, width, 2 * width)),
            lambda: (part(y, 0, width), part(y, width, _LAST)),
            lambda: (part(y, -width, _LAST), part(y, 0, -width)),
            lambda: (part(y, 0, width), part(y, width // 2, width // 2 + width)),
            lambda: (part(y, 0, 2 * width, step=2), part(y, 1, 2 * width, step=2)),
            lambda: (part(y, width - 1, _FIRST, step=-1), part(y, width, 2 * width)),
            lambda: (part(y, 0, 1), part(y, width, 2 * width)),
            lambda: (y, y),
            lambda: b.op("Split", y, b.ints([width, width]), outputs=2, axis=-1),
        ]
        gate, up = r.choice(pairs)()
    if r.random() < 0.3:  # of some rows
        axis, (start, end) = r.choice([1, 1, 0]), r.choice([(0, 1), (0, -1), (0, 4), (0, 64), (1, _LAST), (-2, _LAST)])
        gate = part(gate, start, end, axis)
        up = part(up, start, end, axis) if r.random() < 0.7 else up
    gate, up = (up, gate) if r.random() < 0.5 else (gate, up)
    made = _activated(b, gate, up, width)
    product = b.op("Mul", *r.choice([(made, up), (up, made), (made, up), (made, made)]))
    b.output(product)
    if r.random() < 0.2:
        b.output(r.choice([made, gate]))
    return Case(b.model(), count=8, longest=r.choice([6, 70]), runs=False)


def _rms_of(b: Graph, total: str, x: str, gamma: str) -> str:
    r, epsilon = b.r, b.const(b.r.choice([0.0, 1e-6, 1e-2, 1.0, 1.5, -1e-6]))
    squares = r.choice([
        lambda: b.op("Mul", total, total), lambda: b.op("Mul", total, total), lambda: b.op("Pow", total, b.const(2.0)),
        lambda: b.op("Mul", x, x), lambda: b.op("Abs", total), lambda: b.op("Pow", total, b.const(4.0)),
        lambda: b.op("Mul", b.op("Sub", total, b.mean(total)), b.op("Sub", total, b.mean(total))),
    ])()  # fmt: skip
    mean = b.mean(squares, r.choice([[-1], [-1], [-1], [2], [1], [-2]]))
    inside = b.op("Add", mean, epsilon)
    one = b.const(r.choice([1.0, 1.0, 2.0]))
    made = r.choice([
        lambda: b.op("Mul", total, b.op("Reciprocal", b.op("Sqrt", inside))),
        lambda: b.op("Mul", total, b.op("Div", one, b.op("Sqrt", inside))),
        lambda: b.op("Div", total, b.op("Sqrt", inside)),
        lambda: b.op("Mul", b.op("Pow", inside, b.const(r.choice([-0.5, -0.5, -1.0]))), total),
        lambda: b.op("Div", total, b.op("Pow", inside, b.const(r.choice([0.5, 0.25])))),
        lambda: b.op("Mul", total, b.op("Reciprocal", b.op("Add", b.op("Sqrt", mean), epsilon))),
        lambda: b.op("Div", b.op("Sqrt", inside), total),
    ])()  # fmt: skip
    return b.op("Mul", *r.choice([(made, gamma), (gamma, made)]))


def _residual(r: Random) -> Case:
    """A projection, a residual that may be broadcast, and a norm that may be another, both of which are read."""
    b, x = _graph(r, (14, 17, 18, 23))
    width = r.choice([HIDDEN, 7, 1])
    residual = r.choice([
        lambda: b.input("r", ("B", "S", width)), lambda: b.input("r", ("B", "S", width)),
        lambda: b.input("r", ("B", "T", width)), lambda: b.input("r", (1, "S", width)), lambda: b.input("r", (width,)),
        lambda: b.input("r", (1, "B", "S", width)), lambda: b.input("r", ("B", "S", 1)),
        lambda: b.linear(x, HIDDEN, width),
    ])()  # fmt: skip
    projected = b.linear(x, HIDDEN, width, r.choice(["matmul", "matmul_add"]))
    total = b.op("Add", *r.choice([(projected, residual), (residual, projected), (projected, projected)]))
    shape = r.choice([(width,)] * 4 + [(1,), (1, width), (1, 1, width), (1, 1, 1), ()])
    gamma = b.const(1 + 0.2 * b.random.standard_normal(shape))
    if r.random() < 0.25:
        made = b.layer_norm(total, width, epsilon=r.choice([1e-5, 2.0]))
    elif b.opset >= 23 and r.random() < 0.5:
        made = b.op("RMSNormalization", total, gamma, axis=r.choice([-1, -1, 2, 1]), epsilon=r.choice([1e-6, 3.0]))
    else:
        made = _rms_of(b, total, x if width == HIDDEN else total, gamma)
    b.output(made)
    b.output(r.choice([total, total, b.op("Mul", total, b.const(2.0))]))
    case = Case(b.model(), count=8)
    case.runs = False  # norms over other axes and scales of other sizes
    return case


def _narrow(r: Random) -> Case:
    """A norm in less precision than its surroundings, where its squares overflow."""
    b, x = _graph(r, (18,))
    total = b.op("Add", b.linear(x, HIDDEN, HIDDEN), x)
    element, dtype = r.choice([(10, np.float16), (11, np.float64)])
    inner = b.cast(b.op("Mul", total, b.const(100.0)) if r.random() < 0.3 else total, element)
    like = lambda value: b.const(value, dtype=dtype)  # noqa: E731
    mean = b.op("ReduceMean", b.op("Mul", inner, inner), b.ints([-1]), keepdims=1)
    made = b.op("Div", inner, b.op("Sqrt", b.op("Add", mean, like(1e-5))))
    gamma = 1 + 0.2 * b.random.standard_normal(HIDDEN)
    made = (
        b.op("Mul", b.cast(made, FLOAT), b.const(gamma))
        if r.random() < 0.5
        else b.cast(b.op("Mul", made, like(gamma)), FLOAT)
    )
    b.output(made, total)
    return Case(b.model(), count=8)


RECIPES = (_gate, _gate, _residual, _residual, _narrow)
