"""Fusing takes time in proportion to the graph: function calls are counted, since seconds depend on the machine."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bertfuse.graph_rewrite import FusionResult, fuse
from tests.graph_rewrite.attentions import HIDDEN, MASKS, Attention, attend
from tests.graph_rewrite.graphs import Builder

SMALL, LARGE = 500, 2000
# Twice the nodes take twice the calls; something quadratic that is a tenth of them at the small size takes 1.3 times.
MOST = 1.1 * LARGE / SMALL


class Sharing(Builder):
    """Gives one initialiser for equal constants and for weights of one shape, as deduplicating exporters do."""

    def __init__(self) -> None:
        super().__init__(opset=14)
        self._made: dict[Any, str] = {}

    def const(self, value: Any, name: str | None = None, dtype: Any = None) -> str:
        array = np.asarray(value)
        key = (array.tobytes(), array.shape, array.dtype.str, str(dtype))
        return self._made.setdefault(key, "") or self._remember(key, super().const(value, name, dtype))

    def weight(self, *shape: int, name: str | None = None) -> str:
        return self._made.setdefault(shape, "") or self._remember(shape, super().weight(*shape))

    def _remember(self, key: Any, name: str) -> str:
        self._made[key] = name
        return name


def layer(b: Builder, x: str, mask: str) -> str:
    context = attend(b, x, Attention(mask="given", parts={"mask": mask}))
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    inner = b.linear(b.gelu(b.linear(y, HIDDEN, HIDDEN)), HIDDEN, HIDDEN)
    return b.layer_norm(b.op("Add", inner, y), HIDDEN)


def start(b: Builder) -> tuple[str, str]:
    """x and an additive mask that all layers share, behind an Identity."""
    return b.input("x", ("B", "S", HIDDEN)), b.op("Identity", MASKS["subtract"](b, b.ids("attention_mask")))


def layers(size: int, b: Builder) -> str:
    x, mask = start(b)
    while len(b.nodes) < size:
        x = layer(b, x, mask)
    return x


def broken_layers(size: int, b: Builder) -> str:
    """As many layers, in each of which everything is missed: the graph is put back as it was."""
    x, mask = start(b)
    while len(b.nodes) < size:
        x = layer(b, b.op("Tanh", x), mask)
        b.output(x, *(node.output[0] for node in b.nodes[-40::4] if node.op_type in ("MatMul", "Add", "Erf")))
    return x


def chain(size: int, b: Builder) -> str:
    """One layer, then a chain in which every node reads what no pattern has, and one tensor again and again."""
    y = x = layer(b, *start(b))
    while len(b.nodes) < size:
        y = b.op("Identity", b.op("Add", b.op("Tanh", b.op("Mul", y, b.const(1.5))), x))
    return y


def fan(size: int, b: Builder) -> str:
    """One layer, then nodes that all read one tensor through an Identity, one constant and one Constant node."""
    x = b.op("Identity", layer(b, *start(b)))
    two = b.op("Constant", value=numpy_helper.from_array(np.float32(2)))
    made = [b.op("Sigmoid", b.op("Add", b.op("Mul", x, b.const(1.5)), two)) for _ in range(size // 3)]
    while len(made) > 1:
        made = [b.op("Sum", *made[i : i + 50]) for i in range(0, len(made), 50)]
    return made[0]


def gelus(size: int, b: Builder) -> str:
    """GELUs after projections of one tensor, with the same constants: all fused."""
    x, _ = start(b)
    made = [b.gelu(b.linear(x, HIDDEN, HIDDEN)) for _ in range(size // 7)]
    while len(made) > 1:
        made = [b.op("Sum", *made[i : i + 50]) for i in range(0, len(made), 50)]
    return made[0]


def model(make: Callable[[int, Builder], str], size: int) -> onnx.ModelProto:
    b = Sharing()
    b.output(make(size, b), shape=("B", "S", HIDDEN))
    outputs = {value.name: value for value in b.outputs}.values()
    graph = helper.make_graph(b.nodes, "large", b.inputs, list(outputs), b.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=9)


def calls(graphs: Sequence[onnx.ModelProto]) -> list[tuple[int, FusionResult]]:
    """Python and C function calls that fusing each takes, and what came out."""
    fuse(graphs[0])  # imports
    counted = []
    for graph in graphs:
        profile = cProfile.Profile()
        result = profile.runcall(fuse, graph)
        counted.append((sum(entry.callcount for entry in profile.getstats()), result))
    return counted


@pytest.mark.parametrize("make", [layers, broken_layers, chain, fan, gelus])
def test_calls_grow_with_the_graph(make: Callable[[int, Builder], str]) -> None:
    graphs = [model(make, size) for size in (SMALL, LARGE)]
    (few, small), (many, large) = calls(graphs)
    sizes = [len(graph.graph.node) for graph in graphs]
    assert many / few < MOST / (LARGE / SMALL) * sizes[1] / sizes[0], (
        f"{few} calls for {sizes[0]} nodes, {many} for {sizes[1]}"
    )
    for result in (small, large):
        assert result.fused or make is broken_layers
    if make in (layers, gelus):
        assert large.complete and sum(large.fused.values()) > 3 * sum(small.fused.values())
