"""GELU in every spelling, and functions that only look like it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused, normalised, refused

ROOT2, PI = math.sqrt(2.0), math.pi


def _commuted(b: Builder, op: str, x: str, y: str, swap: bool) -> str:
    return b.op(op, *((y, x) if swap else (x, y)))


def erf_argument(b: Builder, x: str, form: str) -> str:
    if form == "div":
        return b.op("Div", x, b.const(ROOT2))
    if form == "mul":
        return b.op("Mul", x, b.const(1 / ROOT2))
    if form == "mul_sqrt":
        return b.op("Mul", x, b.op("Sqrt", b.const(0.5)))
    return b.op("Neg", b.op("Div", x, b.const(-ROOT2)))


def erf_gelu(b: Builder, x: str, form: str, order: str, swap: bool) -> str:
    one, half = b.const(1.0), b.const(0.5)
    factor = _commuted(b, "Add", b.op("Erf", erf_argument(b, x, form)), one, swap)
    if order == "(x f) / 2":
        return _commuted(b, "Mul", _commuted(b, "Mul", x, factor, swap), half, swap)
    if order == "(x / 2) f":
        return _commuted(b, "Mul", b.op("Div", x, b.const(2.0)), factor, swap)
    if order == "x (f / 2)":
        return _commuted(b, "Mul", x, b.op("Mul", factor, half), swap)
    return b.op("Sub", b.op("Mul", x, half), b.op("Mul", b.op("Mul", x, half), b.op("Sub", one, factor)))


def tanh_gelu(b: Builder, x: str, cube: str, order: str, swap: bool) -> str:
    if cube == "pow":
        third = b.op("Pow", x, b.const(3.0))
    elif cube == "pow of one axis":
        third = b.op("Pow", x, b.const([3.0]))
    else:
        third = b.op("Mul", b.op("Mul", x, x), x)
    inner = _commuted(b, "Add", x, b.op("Mul", third, b.const(0.044715)), swap)
    tanh = b.op("Tanh", _commuted(b, "Mul", inner, b.const(math.sqrt(2 / PI)), swap))
    factor = _commuted(b, "Add", tanh, b.const(1.0), swap)
    if order == "(x / 2) f":
        return _commuted(b, "Mul", b.op("Mul", x, b.const(0.5)), factor, swap)
    return _commuted(b, "Mul", b.const(0.5), b.op("Mul", x, factor), swap)


def wrapped(gelu: Callable[[Builder, str], str], opset: int = 17, dtype: type = np.float32) -> Builder:
    b = Builder(opset, dtype)
    x = b.input("x", ("B", 16))
    b.output(gelu(b, b.linear(x, 16, 24)), shape=("B", 24))
    return b


def kind(model) -> str:
    (node,) = (node for node in model.graph.node if node.op_type == "FusedGemmGelu")
    return next(a.s.decode() for a in node.attribute if a.name == "approximate")


ERF = list(itertools.product(("div", "mul", "mul_sqrt", "neg"), ("(x f) / 2", "(x / 2) f", "x (f / 2)"), (0, 1)))


@pytest.mark.parametrize(("form", "order", "swap"), [*ERF, ("div", "x/2 - x/2 (1 - f)", 0)])
def test_erf_spellings(form: str, order: str, swap: bool) -> None:
    result = fused(wrapped(lambda b, x: erf_gelu(b, x, form, order, bool(swap))).model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    assert kind(result.model) == "none"


@pytest.mark.parametrize("cube", ["pow", "pow of one axis", "mul"])
@pytest.mark.parametrize("order", ["(x / 2) f", "(x f) / 2"])
@pytest.mark.parametrize("swap", [False, True])
def test_tanh_spellings(cube: str, order: str, swap: bool) -> None:
    result = fused(wrapped(lambda b, x: tanh_gelu(b, x, cube, order, swap)).model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    assert kind(result.model) == "tanh"


@pytest.mark.parametrize("approximate", [None, "none", "tanh"])
def test_standard_operator(approximate: str | None) -> None:
    attributes = {} if approximate is None else {"approximate": approximate}
    result = fused(wrapped(lambda b, x: b.op("Gelu", x, **attributes), opset=20).model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    assert kind(result.model) == (approximate or "none")


@pytest.mark.parametrize(("op", "approximate"), [("Gelu", "none"), ("FastGelu", "tanh")])
def test_microsoft_operators(op: str, approximate: str) -> None:
    result = fused(wrapped(lambda b, x: b.op(op, x, domain="com.microsoft")).model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    assert kind(result.model) == approximate


def test_fast_gelu_with_bias() -> None:
    b = wrapped(lambda b, x: b.op("FastGelu", x, b.weight(24), domain="com.microsoft"))
    refused(b.model(), "FastGelu with a bias input", "FusedGemmGelu")


@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_float16(form: str) -> None:
    spell = (lambda b, x: erf_gelu(b, x, "div", "(x f) / 2", False)) if form == "erf" else (
        lambda b, x: tanh_gelu(b, x, "mul", "(x / 2) f", False)
    )  # fmt: skip
    result = fused(wrapped(spell, dtype=np.float16).model(), tol=5e-3)
    assert result.fused == {"FusedGemmGelu": 1}
    assert kind(result.model) == {"erf": "none", "tanh": "tanh"}[form]


WRONG = {
    "half is 0.51": lambda b, x: b.op("Mul", b.op("Mul", x, b.op("Add", b.op("Erf", b.op("Div", x, b.const(ROOT2))),
                                                                 b.const(1.0))), b.const(0.51)),
    "root is 1.5": lambda b, x: b.op("Mul", b.op("Mul", x, b.op("Add", b.op("Erf", b.op("Div", x, b.const(1.5))),
                                                                b.const(1.0))), b.const(0.5)),
    "erfc": lambda b, x: b.op("Mul", b.op("Mul", x, b.op("Sub", b.const(1.0), b.op("Erf", b.op("Div", x,
                                                          b.const(ROOT2))))), b.const(0.5)),
    "divides upside down": lambda b, x: b.op("Mul", b.op("Mul", x, b.op("Add", b.op("Erf", b.op("Div", b.const(ROOT2),
                                                          x)), b.const(1.0))), b.const(0.5)),
    "plain erf": lambda b, x: b.op("Mul", b.op("Erf", x), b.const(0.5)),
    "ends early": lambda b, x: b.op("Add", b.op("Erf", b.op("Div", x, b.const(ROOT2))), b.const(1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_near_misses(name: str) -> None:
    refused(wrapped(WRONG[name]).model(), "off GELU by", "FusedGemmGelu")


@pytest.mark.parametrize("constants", [(0.044, math.sqrt(2 / PI)), (0.044715, 0.8)])
def test_wrong_tanh_constants(constants: tuple[float, float]) -> None:
    def gelu(b: Builder, x: str) -> str:
        inner = b.op("Add", x, b.op("Mul", b.op("Pow", x, b.const(3.0)), b.const(constants[0])))
        factor = b.op("Add", b.op("Tanh", b.op("Mul", inner, b.const(constants[1]))), b.const(1.0))
        return b.op("Mul", b.op("Mul", x, b.const(0.5)), factor)

    refused(wrapped(gelu).model(), "expected a GELU", "FusedGemmGelu")


def test_plain_tanh_promises_nothing() -> None:
    result = fused(wrapped(lambda b, x: b.op("Tanh", x)).model())
    assert not result.fused and not result.expected


def test_factor_of_another_tensor() -> None:
    b = Builder()
    y = b.linear(b.input("x", ("B", 16)), 16, 24)
    factor = b.op("Add", b.op("Erf", b.op("Div", y, b.const(ROOT2))), b.const(1.0))
    b.output(b.op("Mul", b.op("Mul", b.input("other", ("B", 24)), factor), b.const(0.5)))
    refused(b.model(), "off GELU", "FusedGemmGelu")


@pytest.mark.parametrize("node", ["Div", "Erf", "Add", "Mul"])
@pytest.mark.parametrize("how", ["exposed", "used"])
def test_interior_needed_elsewhere(node: str, how: str) -> None:
    b = wrapped(lambda b, x: b.gelu(x))
    interior = next(n.output[0] for n in b.nodes if n.op_type == node and "matmul" not in n.input[0])
    b.output(interior if how == "exposed" else b.op("Neg", interior))
    refused(b.model(), "", "FusedGemmGelu")


def test_argument_used_twice_is_refused_and_still_normalised() -> None:
    b = Builder()
    y = b.linear(b.input("x", ("B", 16)), 16, 24)
    b.output(b.gelu(y), b.op("Neg", y))
    assert normalised(b.model())[0]["Gelu"] == 1
    refused(b.model(), "needed elsewhere", "FusedGemmGelu")


def test_constants_that_raise_the_rank() -> None:
    """A one-element constant of four axes makes four axes of two: no GELU, which keeps the shape."""
    b = Builder()
    y = b.linear(b.input("x", ("B", 16)), 16, 24)
    erf = b.op("Erf", b.op("Div", y, b.const(np.full((1, 1, 1, 1), ROOT2))))
    b.output(b.op("Mul", b.op("Mul", y, b.op("Add", erf, b.const(1.0))), b.const(0.5)))
    refused(b.model(), "", "FusedGemmGelu")


def test_two_gelus_of_one_tensor() -> None:
    b = Builder()
    y = b.linear(b.input("x", ("B", 16)), 16, 24)
    b.output(b.gelu(y), b.gelu(y))
    model = b.model()
    result = fused(model)
    assert len(result.misses) == 2 or result.fused == {"FusedGemmGelu": 2}
    assert_agree(model, result.model, feeds(model), 1e-5)


def test_both_kinds_in_one_model_are_two_functions() -> None:
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 16)), 16, 16))
    b.output(tanh_gelu(b, b.linear(y, 16, 16), "pow", "(x / 2) f", False))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 2}
    assert len({(f.name, f.overload) for f in result.model.functions}) == 2
    assert result.model.ir_version >= 10


@pytest.mark.parametrize("place", ["square", "beyond the grid", "argument"])
@pytest.mark.parametrize("seed", range(3))
def test_near_gelu_on_a_grid_and_not_elsewhere(place: str, seed: int) -> None:
    """A small multiple of a power of x: less than rounding for x < 9, and GELU itself for x in hundreds."""
    random = np.random.default_rng(seed)
    b = Builder()
    h = b.linear(b.input("x", ("B", "S", 16)), 16, 16)
    small = float(random.uniform(2e-8, 9e-8)) * (1 if random.random() < 0.5 else -1)
    power = b.op("Mul", b.op("Mul", h, h), b.const(small))
    argument = b.op("Div", h, b.const(np.sqrt(2.0)))
    if place == "argument":
        argument = b.op("Add", argument, power)
    factor = b.op("Add", b.op("Erf", argument), b.const(1.0))
    if place == "beyond the grid":  # multiplied by x it is its third power
        factor = b.op("Add", factor, b.op("Mul", power, b.const(0.1)))
    y = b.op("Mul", b.op("Mul", h, factor), b.const(0.5))
    b.output(b.op("Add", y, power) if place == "square" else y)
    assert not fused(b.model()).fused.get("FusedGemmGelu")


@pytest.mark.parametrize("detour", ["over", "under", "rounded", "cancelled"])
def test_arguments_that_are_rounded_on_the_way(detour: str) -> None:
    """x * 1e38 / 1e38 overflows, (x + 1e7) - 1e7 is a whole number: x to a polynomial, and not to float32."""
    b = Builder()
    x = b.linear(b.input("x", ("B", "S", 16)), 16, 16)
    if detour in ("over", "under"):
        far = b.const(3e38 if detour == "over" else 1e-38)
        argument = b.op("Div", b.op("Mul", x, far), far)
    elif detour == "rounded":
        argument = b.op("Sub", b.op("Add", x, b.const(1e7)), b.const(1e7))
    else:
        argument = b.op("Sub", b.op("Mul", x, b.const(4.1e6)), b.op("Mul", x, b.const(4.1e6 - 1)))
    erf = b.op("Erf", b.op("Div", argument, b.const(np.sqrt(2.0))))
    b.output(b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.const(1.0))), b.const(0.5)))
    assert not fused(b.model()).fused.get("FusedGemmGelu")
