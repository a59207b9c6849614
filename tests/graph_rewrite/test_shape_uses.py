"""Tensors of which only a size is read, as T5's code turns the heads of K once more to ask for their length."""

from __future__ import annotations

import numpy as np
import pytest

from bertfuse.graph_rewrite import fuse
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import split
from tests.graph_rewrite.graphs import Builder, run
from tests.graph_rewrite.variants import HIDDEN, Variant, model


def test_the_length_of_k() -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    lengths = []

    def k(b: Builder, heads: str) -> str:
        (split_heads,) = (node.input[0] for node in b.nodes if heads in node.output)
        again = b.op("Transpose", split_heads, perm=[0, 2, 1, 3])
        lengths.append(b.op("Gather", b.op("Shape", again), b.const(2), axis=0))
        b.output(lengths[0], shape=(), element=7)  # as the next layer reads it
        return heads

    def near(b: Builder, mask: str, scores: str) -> str:
        """A window, of places counted up to K's length."""
        places = b.op("Range", b.const(0), lengths[0], b.const(1))
        distance = b.op("Sub", b.op("Unsqueeze", places, b.const([0])), b.op("Unsqueeze", places, b.const([1])))
        return b.op("Where", b.op("LessOrEqual", b.op("Abs", distance), b.const(3)), scores, b.const(-1e9))

    before = model(Variant(rotated=0, parts={"k": k, "scores": near}), seed)
    result = fuse(before)
    assert result.fused == {"FusedAttentionVariant": 1}, [str(miss) for miss in result.misses]
    mask = np.ones((2, 17), np.int64)
    mask[1, 9:] = 0
    feed = {"x": random.standard_normal((2, 17, HIDDEN)).astype(np.float32), "mask": mask}
    (length, wanted), (same, found) = run(before, feed), run(result.model, feed)
    assert same == length == 17
    np.testing.assert_allclose(found[mask == 1], wanted[mask == 1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("what", ["size of no input", "output", "value"])
def test_who_needs_more_than_a_size_of_an_input(what: str) -> None:
    b = Builder()
    x = b.input("x", ("B", "S", 8))
    other = b.op("Concat", x, x, axis=1) if what == "size of no input" else x
    turned = b.op("Transpose", other, perm=[0, 2, 1])
    b.output(b.op("Gather", b.op("Shape", turned), b.const(2), axis=0), shape=(), element=7)
    if what == "output":
        b.output(turned)
    elif what == "value":
        b.output(b.op("Relu", turned))
    graph = FusionGraph(*split(b.model()))
    assert [node.op for node in graph.gs.nodes if node.op == "Transpose"]


def test_only_the_size_of_an_input() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", 8))
    turned = b.op("Transpose", x, perm=[0, 2, 1])
    b.output(b.op("Gather", b.op("Shape", turned), b.const(2), axis=0), shape=(), element=7)
    graph = FusionGraph(*split(b.model()))
    assert [node.op for node in graph.gs.nodes] == ["Shape", "Gather"]
