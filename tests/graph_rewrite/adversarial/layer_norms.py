"""LayerNorm in its formula, with one part of it changed; and sums that are no residual."""

from __future__ import annotations

from .build import FLOAT, HIDDEN, Graph, Random, recipe


def _inputs(b: Graph) -> tuple[str, str]:
    return b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))


def _sum(b: Graph) -> str:
    x, y = _inputs(b)
    return b.op("Add", b.linear(x, HIDDEN, HIDDEN), y)


def _gamma_beta(b: Graph) -> tuple[str, str]:
    return b.const(1 + 0.2 * b.random.standard_normal(HIDDEN)), b.weight(HIDDEN)


@recipe(count=6)
def _formula(b: Graph, r: Random) -> None:
    """Mean, difference, square, mean, epsilon, root, quotient, gamma, beta: one of them is another."""
    total = _sum(b)
    parts = ["mean", "square", "variance", "epsilon", "root", "outside", "order", "numerator", "gamma", "beta", "n-1"]
    wrong = r.choice(["none", "none", *parts])
    epsilon = r.choice([1e-12, 1e-5, 1e-2, 0.5])
    centred = b.op("Sub", total, b.const(0.1) if wrong == "mean" else b.mean(total))
    if wrong == "square":
        squared = b.op("Abs", centred)
    else:
        squared = b.op("Mul", centred, centred) if r.random() < 0.5 else b.op("Pow", centred, b.const(2.0))
    variance = b.mean(squared)
    if wrong == "variance":
        inputs, attributes = ([squared, b.ints([-1])], {}) if b.opset >= 18 else ([squared], {"axes": [-1]})
        variance = b.op("ReduceMax", *inputs, keepdims=1, **attributes)
    if wrong == "n-1":
        variance = b.op("Mul", variance, b.const(HIDDEN / (HIDDEN - 1)))
    shifted = b.op("Add", variance, b.const(epsilon)) if wrong != "outside" else variance
    if wrong == "epsilon":
        shifted = b.op("Max", variance, b.const(epsilon))
    power = b.const(0.4 if wrong == "root" else 0.5)
    deviation = b.op("Pow", shifted, power) if wrong == "root" or r.random() < 0.5 else b.op("Sqrt", shifted)
    if wrong == "outside":
        deviation = b.op("Add", deviation, b.const(epsilon))
    gamma, beta = _gamma_beta(b)
    top = total if wrong == "numerator" else centred
    normal = b.op("Div", deviation, top) if wrong == "order" else b.op("Div", top, deviation)
    scaled = b.op("Mul" if wrong != "gamma" else r.choice(["Add", "Sub", "Max"]), normal, gamma)
    b.output(b.op("Add" if wrong != "beta" else r.choice(["Sub", "Mul"]), scaled, beta))


@recipe(count=6)
def _twice_the_same(b: Graph, r: Random) -> None:
    """LN(p + p), LN(GELU(p) + p), LN(p - p'), LN(2 p)."""
    x, _ = _inputs(b)
    product = b.linear(x, HIDDEN, HIDDEN)
    total = r.choice(
        [
            lambda: b.op("Add", product, product),
            lambda: b.op("Add", b.gelu(product), product),
            lambda: b.op("Add", b.gelu(product), b.gelu(product)),
            lambda: b.op("Sub", product, x),
            lambda: b.op("Mul", product, b.const(2.0)),
            lambda: b.op("Add", product, b.op("Mul", x, b.const(0.5))),
            lambda: b.op("Add", b.op("Add", product, x), x),
            lambda: b.op("Add", b.op("Add", product, x), b.gelu(x)),
            lambda: b.op("Add", product, b.linear(x, HIDDEN, HIDDEN)),
            lambda: b.op("Max", product, x),
        ]
    )()
    b.output(b.layer_norm(total, HIDDEN))


@recipe(count=6)
def _interior_is_used(b: Graph, r: Random) -> None:
    """The sum, the product or the mean is needed elsewhere, or is an output."""
    x, y = _inputs(b)
    product = b.linear(x, HIDDEN, HIDDEN)
    total = b.op("Add", product, y)
    normal = b.layer_norm(total, HIDDEN)
    which = r.choice([product, total])
    if r.random() < 0.5:
        b.output(normal, which)
    else:
        b.output(b.op("Add", normal, which))


@recipe(count=6)
def _epsilon_given(b: Graph, r: Random) -> None:
    """Epsilon is an input of the model, or depends on the length."""
    total = _sum(b)
    epsilon = b.input("epsilon", ()) if r.random() < 0.5 else b.op("Mul", b.cast(b.length("x"), FLOAT), b.const(0.1))
    epsilon = b.op("Abs", epsilon)
    centred = b.op("Sub", total, b.mean(total))
    variance = b.mean(b.op("Mul", centred, centred))
    gamma, beta = _gamma_beta(b)
    normal = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, epsilon)))
    b.output(b.op("Add", b.op("Mul", normal, gamma), beta))


@recipe(opset=(17,), count=6)
def _weights_given(b: Graph, r: Random) -> None:
    """Gamma, beta, the weight or the bias is an input of the model."""
    x, y = _inputs(b)
    names = {"weight": (HIDDEN, HIDDEN), "bias": (HIDDEN,), "gamma": (HIDDEN,), "beta": (HIDDEN,)}
    which = r.choice(list(names))
    own = {n: b.input(n, s) if n == which else b.const(b.random.standard_normal(s) / 3) for n, s in names.items()}
    total = b.op("Add", b.op("Add", b.op("MatMul", x, own["weight"]), own["bias"]), y)
    b.output(b.op("LayerNormalization", total, own["gamma"], own["beta"], axis=-1))


@recipe(opset=(17,), count=6)
def _without_beta(b: Graph, r: Random) -> None:
    """LayerNormalization of two inputs, or a formula without gamma, beta or both; RMSNorm."""
    total = _sum(b)
    gamma, beta = _gamma_beta(b)
    how = r.randrange(4)
    if how == 0:
        b.output(b.op("LayerNormalization", total, gamma, axis=-1))
    elif how == 1:
        b.output(b.op("Add", b.op("LayerNormalization", total, gamma, axis=-1), b.const(0.3)))
    elif how == 2:
        square = b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", total, total)), b.const(1e-6)))
        b.output(b.op("Add", b.op("Mul", b.op("Div", total, square), gamma), beta))
    else:
        centred = b.op("Sub", total, b.mean(total))
        b.output(b.op("Div", centred, b.op("Sqrt", b.op("Add", b.mean(b.op("Mul", centred, centred)), b.const(1e-5)))))


@recipe(count=6)
def _centred_twice(b: Graph, r: Random) -> None:
    """Two differences, of the same mean or of another's."""
    x, y = _inputs(b)
    total = b.op("Add", b.linear(x, HIDDEN, HIDDEN), y)
    first = b.op("Sub", total, b.mean(total))
    other = r.choice([total, y])
    second = b.op("Sub", other, b.mean(r.choice([other, total])))
    variance = b.mean(b.op("Mul", first, r.choice([first, second])))
    gamma, beta = _gamma_beta(b)
    normal = b.op("Div", r.choice([first, second]), b.op("Sqrt", b.op("Add", variance, b.const(1e-5))))
    b.output(b.op("Add", b.op("Mul", normal, gamma), beta))


@recipe(count=6)
def _tiny_variance(b: Graph, r: Random) -> None:
    """Rows that are nearly the same number: what epsilon and the order of sums are for."""
    x, y = _inputs(b)
    product = b.op("Mul", b.linear(x, HIDDEN, HIDDEN), b.const(r.choice([1e-6, 1e-4, 0.0])))
    level = b.op("Add", b.op("Mul", y, b.const(0.0)), b.const(r.choice([0.0, 3.0])))
    b.output(b.layer_norm(b.op("Add", product, level), HIDDEN, epsilon=r.choice([1e-12, 1e-5])))
