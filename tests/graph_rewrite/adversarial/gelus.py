"""What looks like GELU: other constants, other functions, other orders, and parts used elsewhere."""

from __future__ import annotations

import math

from .build import HIDDEN, Graph, Random, np, recipe

WIDE = 32


def _hidden(b: Graph, loud: float = 1.0) -> str:
    x = b.input("x", ("B", "S", HIDDEN))
    if loud != 1.0:
        x = b.op("Mul", x, b.const(loud))
    return b.linear(x, HIDDEN, WIDE)


def _near(r: Random, value: float) -> float:
    return value * r.choice([1, 1, 1, 1.0001, 1.001, 0.99, 1.1, -1, 2, 0.5])


@recipe(count=6)
def _erf(b: Graph, r: Random) -> None:
    """x/2 (1 + erf(x / sqrt 2)) with constants a little off."""
    x = _hidden(b)
    root = r.choice([math.sqrt(2), _near(r, math.sqrt(2)), 1.41, 1.4142, 1.414, 1.5])
    inner = b.op("Div", x, b.const(root)) if r.random() < 0.5 else b.op("Mul", x, b.const(1 / root))
    one = b.op("Add", b.op("Erf", inner), b.const(_near(r, 1.0)))
    half = b.const(_near(r, 0.5))
    b.output(
        r.choice([lambda: b.op("Mul", b.op("Mul", x, one), half), lambda: b.op("Mul", b.op("Mul", x, half), one)])()
    )


@recipe(count=6)
def _tanh(b: Graph, r: Random) -> None:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))) with constants a little off."""
    x = _hidden(b)
    power = r.choice([3.0, 3.0, 3.0, 2.0, 2.9, 4.0])
    cube = b.op("Pow", x, b.const(power)) if power != 3 or r.random() < 0.5 else b.op("Mul", b.op("Mul", x, x), x)
    small = b.op("Mul", cube, b.const(r.choice([0.044715, 0.044, 0.0447, _near(r, 0.044715)])))
    inner = b.op("Mul", b.op("Add", x, small), b.const(r.choice([math.sqrt(2 / math.pi), 0.79788, 0.8, 0.79])))
    one = b.op("Add", b.op("Tanh", inner), b.const(1.0))
    b.output(b.op("Mul", b.op("Mul", x, one), b.const(_near(r, 0.5))))


@recipe(count=6)
def _quick(b: Graph, r: Random) -> None:
    """x sigmoid(1.702 x), SiLU, and others of the kind."""
    x = _hidden(b)
    inner = b.op("Mul", x, b.const(r.choice([1.702, 1.0, 1.6])))
    b.output(b.op("Mul", x, b.op(r.choice(["Sigmoid", "HardSigmoid", "Erf", "Tanh", "Softplus"]), inner)))


@recipe(count=6)
def _of_two_tensors(b: Graph, r: Random) -> None:
    """The Erf is of one tensor, what it is multiplied with another (GEGLU)."""
    x, other = _hidden(b), b.input("other", ("B", "S", WIDE))
    pick = lambda: r.choice([x, x, other])  # noqa: E731
    one = b.op("Add", b.op("Erf", b.op("Div", pick(), b.const(math.sqrt(2)))), b.const(1.0))
    b.output(b.op("Mul", b.op("Mul", pick(), one), b.const(0.5)))


@recipe(count=6)
def _by_column(b: Graph, r: Random) -> None:
    """A constant of the formula is a vector: of one number, or of one that is another."""
    x = _hidden(b)
    values = {"root": np.full(WIDE, math.sqrt(2)), "one": np.ones(WIDE), "half": np.full(WIDE, 0.5)}
    which = r.choice(list(values))
    if r.random() < 0.7:
        values[which][r.randrange(WIDE)] *= r.choice([1.5, 1.01, -1])
    made = {n: b.const(v if n == which else v[0]) for n, v in values.items()}
    one = b.op("Add", b.op("Erf", b.op("Div", x, made["root"])), made["one"])
    b.output(b.op("Mul", b.op("Mul", x, one), made["half"]))


@recipe(count=6)
def _only_here_and_there(b: Graph, r: Random) -> None:
    """GELU below or above a number, something else beyond it."""
    x = _hidden(b, r.choice([1.0, 5.0, 20.0]))
    limit = r.choice([3.0, 6.0, 9.0, 50.0, 1e4])
    gelu = b.gelu(x)
    way = r.randrange(4)
    if way == 0:
        b.output(b.op("Min", gelu, b.const(limit)))
    elif way == 1:
        b.output(b.op("Where", b.op("Greater", x, b.const(limit)), b.const(0.0), gelu))
    elif way == 2:
        b.output(b.op("Clip", gelu, b.const(-0.1699), b.const(limit)))
    else:
        b.output(b.gelu(b.op("Clip", x, b.const(-limit), b.const(limit))))


@recipe(count=6)
def _used_inside(b: Graph, r: Random) -> None:
    """An inner tensor of the GELU is an output, or used again."""
    x = _hidden(b)
    erf = b.op("Erf", b.op("Div", x, b.const(math.sqrt(2))))
    one = b.op("Add", erf, b.const(1.0))
    gelu = b.op("Mul", b.op("Mul", x, one), b.const(0.5))
    which = r.choice([x, erf, one])
    b.output(gelu, which) if r.random() < 0.5 else b.output(b.op("Add", gelu, which))


@recipe(count=6)
def _with_the_length(b: Graph, r: Random) -> None:
    """A constant of the formula is made of the length or the batch."""
    x = _hidden(b)
    size = b.cast(b.size("x", r.randrange(2)), 1)
    near = b.op("Div", size, b.op("Max", size, b.const(r.choice([1.0, 5.0, 30.0]))))
    one = b.op("Add", b.op("Erf", b.op("Div", x, b.const(math.sqrt(2)))), near)
    b.output(b.op("Mul", b.op("Mul", x, one), b.const(0.5)))


@recipe(count=6)
def _by_row(b: Graph, r: Random) -> None:
    """Of a fixed length: a constant of the formula for each place."""
    x = b.linear(b.input("x", ("B", 5, HIDDEN)), HIDDEN, WIDE)
    halves = np.full((5, 1), 0.5)
    halves[r.randrange(5)] = r.choice([0.5, 0.7])
    one = b.op("Add", b.op("Erf", b.op("Div", x, b.const(math.sqrt(2)))), b.const(1.0))
    b.output(b.op("Mul", b.op("Mul", x, one), b.const(halves)))
