"""Nodes that say nothing stand nowhere in the way, and what they computed stays."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused

CLUTTER = {
    "Identity": lambda b, t: b.op("Identity", t),
    "Dropout": lambda b, t: b.op("Dropout", t),
    "Dropout of a ratio": lambda b, t: b.op("Dropout", t, b.const(0.5)),
    "Dropout in inference": lambda b, t: b.op("Dropout", t, b.const(0.5), b.const(False, dtype=bool)),
    "Cast to the same": lambda b, t: b.op("Cast", t, to=helper.np_dtype_to_tensor_dtype(b.dtype)),
    "Identity thrice": lambda b, t: b.op("Identity", b.op("Identity", b.op("Identity", t))),
}
OPS = ("MatMul", "Add", "Div", "Erf", "Mul")


def ffn(b: Builder, clutter, after: str) -> str:
    """GELU(linear), with clutter after each operator of type `after`."""
    original = b.op

    def op(kind: str, *inputs: str, **options):
        made = original(kind, *inputs, **options)
        return clutter(b, made) if kind == after else made

    b.op = op
    y = b.gelu(b.linear(b.input("x", ("B", 16)), 16, 24))
    b.op = original
    return b.op("Neg", y)


@pytest.mark.parametrize("name", list(CLUTTER))
@pytest.mark.parametrize("after", OPS)
def test_anywhere(name: str, after: str) -> None:
    b = Builder()
    b.output(ffn(b, CLUTTER[name], after))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 1}
    assert [n.op_type for n in result.model.graph.node] == ["FusedGemmGelu", "Neg"]


@pytest.mark.parametrize("after", OPS[1:])
def test_dropout_that_trains_stays(after: str) -> None:
    b = Builder()
    drop = lambda b, t: b.op("Dropout", t, b.const(0.0), b.const(True, dtype=bool))  # noqa: E731
    b.output(ffn(b, drop, after))
    result = fused(b.model())
    if after != "Mul":
        assert not result.fused
    assert sum(n.op_type == "Dropout" for n in result.model.graph.node) == sum(n.op_type == "Dropout" for n in b.nodes)


def test_dropout_whose_mask_is_used_stays() -> None:
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 16)), 16, 24))
    dropped, mask = b.op("Dropout", y, outputs=2)
    b.output(b.op("Where", mask, dropped, b.op("Neg", dropped)))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 1}
    assert any(n.op_type == "Dropout" for n in result.model.graph.node)


def test_dropout_whose_mask_is_a_graph_output_stays() -> None:
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 16)), 16, 24))
    dropped, mask = b.op("Dropout", y, outputs=2)
    b.output(b.op("Neg", dropped))
    b.output(mask, element=9)
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


@pytest.mark.parametrize("op", ["Identity", "Dropout"])
def test_graph_outputs_keep_their_names(op: str) -> None:
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 16)), 16, 24))
    b.output(b.op(op, y), b.op("Identity", y))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 1}


def test_output_that_is_an_input() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    b.output(b.gelu(b.linear(x, 16, 24)), b.op("Identity", x))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


def test_output_that_is_a_constant() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    table = b.op("Constant", value=numpy_helper.from_array(np.arange(4, dtype=np.float32)))
    b.output(b.gelu(b.linear(x, 16, 24)), table, b.op("Identity", b.weight(3)))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


def test_output_that_is_an_initialiser() -> None:
    b = Builder()
    x, weight = b.input("x", ("B", 16)), b.weight(16, 24)
    b.output(b.gelu(b.linear(x, 16, 24, weight=weight)))
    b.output(weight, shape=(16, 24))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


@pytest.mark.parametrize(
    "attribute", [{"value_float": 0.5}, {"value_floats": [0.5]}, {"value": numpy_helper.from_array(np.float32(0.5))}]
)
def test_constants_of_every_kind(attribute: dict) -> None:
    b = Builder()
    x = b.linear(b.input("x", ("B", 16)), 16, 24)
    half = b.op("Constant", **attribute)
    erf = b.op("Erf", b.op("Div", x, b.op("Constant", value_float=2.0**0.5)))
    factor = b.op("Add", erf, b.op("Constant", value_float=1.0))
    b.output(b.op("Mul", b.op("Mul", x, half), factor))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


def test_outputs_of_unknown_rank() -> None:
    b = Builder()
    b.output(b.gelu(b.linear(b.input("x", ("B", 16)), 16, 24)))
    model = b.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    result = fuse(model)
    assert result.fused == {"FusedGemmGelu": 1}
    assert_agree(model, result.model, feeds(model), 1e-5)


def test_cast_to_another_type_stays() -> None:
    b = Builder()
    y = b.linear(b.input("x", ("B", 16)), 16, 24)
    b.output(b.gelu(b.op("Cast", b.op("Cast", y, to=10), to=1)))
    result = fused(b.model(), tol=1e-2)
    assert not result.fused
    assert sum(n.op_type == "Cast" for n in result.model.graph.node) == 2


def test_dead_nodes_go() -> None:
    b = Builder()
    x = b.input("x", ("B", 16))
    b.op("Exp", b.op("Neg", x))
    b.output(b.gelu(b.linear(x, 16, 24)))
    result = fused(b.model())
    assert [n.op_type for n in result.model.graph.node] == ["FusedGemmGelu"]


def test_a_dead_reader_does_not_stop_fusion() -> None:
    b = Builder()
    y = b.linear(b.input("x", ("B", 16)), 16, 24)
    b.op("Neg", y)
    b.output(b.gelu(y))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 1} or result.misses
