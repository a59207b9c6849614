"""Rows of words alone under a LayerNorm, as in ModernBERT: an EmbedLayerNorm without positions."""

from __future__ import annotations

import numpy as np
import pytest

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.graphs import Builder, assert_agree, fused, refused
from tests.graph_rewrite.lookups import H, P, inputs_of, lookup, range_positions, sliced_positions


@pytest.mark.parametrize("norm", ["shifted", "without a shift", "spelled out"])
def test_words_alone(norm: str) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    words, width, length = (int(size) for size in random.integers((2, 1, 1), (300, 80, 40)))
    b = Builder(opset=15 if norm == "spelled out" else 17, seed=seed)
    dtype = random.choice([np.int32, np.int64])
    rows = b.op("Gather", b.weight(words, width), b.ids(dtype=dtype), axis=0)
    if norm == "without a shift":
        b.output(b.op("LayerNormalization", rows, b.weight(width), epsilon=1e-3))
    else:
        b.output(b.layer_norm(rows, width, epsilon=1e-3))
    model = b.model()
    result = fuse(model)
    assert result.fused == result.expected == {"EmbedLayerNorm": 1}
    assert set(inputs_of(result)) == {"ids", "word_table", "gamma", "beta"}
    ids = random.integers(-words, words, (int(random.integers(1, 5)), length))
    assert_agree(model, result.model, {"ids": ids.astype(dtype)}, 2e-5)


@pytest.mark.parametrize("behind", [True, False])
def test_words_of_8_bits_alone(behind: bool) -> None:
    """The zero point is the same in all columns, so that nothing needs to take it off."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    words, width = (int(size) for size in random.integers((2, 2), (200, 60)))
    zero = int(random.integers(-100, 100))
    b = Builder(seed=seed)
    table = b.const(random.integers(-128, 128, (words, width)), dtype=np.int8)
    scales = b.const(random.uniform(0.005, 0.02)), b.const(zero, dtype=np.int8)
    if behind:
        rows = b.op("DequantizeLinear", b.op("Gather", table, b.ids(), axis=0), *scales)
    else:
        rows = b.op("Gather", b.op("DequantizeLinear", table, *scales), b.ids(), axis=0)
    b.output(b.layer_norm(rows, width))
    model = b.model()
    result = fuse(model)
    assert result.fused == result.expected == {"EmbedLayerNorm": 1}
    assert set(inputs_of(result)) == {"ids", "word_table", "word_scale", "gamma", "beta"}
    assert_agree(model, result.model, {"ids": random.integers(-words, words, (3, 7))}, 5e-5)


PASSED_ON = {
    "added": lambda b, rows, y: b.op("Add", y, rows),
    "added behind a product": lambda b, rows, y: b.op("Add", rows, b.op("MatMul", y, b.weight(H, H))),
}


@pytest.mark.parametrize("name", list(PASSED_ON))
def test_words_that_a_layer_before_its_norm_passes_on(name: str) -> None:
    b = Builder()
    rows = lookup(b, 97, b.ids())
    b.output(PASSED_ON[name](b, rows, b.layer_norm(rows, H)))
    result = fused(b.model())
    assert "EmbedLayerNorm" not in result.fused | result.expected


@pytest.mark.parametrize("how", ["exposed", "multiplied"])
def test_words_needed_elsewhere(how: str) -> None:
    b = Builder()
    rows = lookup(b, 97, b.ids())
    b.output(b.layer_norm(rows, H), rows if how == "exposed" else b.op("Mul", rows, b.const(2.0)))
    refused(b.model(), "", "EmbedLayerNorm")


NO_IDS = {
    "places": lambda b: b.op("Unsqueeze", range_positions(b, b.ids()), b.const([0])),
    "places from a buffer": lambda b: sliced_positions(b, b.ids()),
    "constants": lambda b: b.const(np.arange(10).reshape(2, 5)),
    "one axis": lambda b: b.ids(shape=("S",)),
    "three axes": lambda b: b.ids(shape=("B", "S", 3)),
}


@pytest.mark.parametrize("name", list(NO_IDS))
def test_one_table_by_what_are_no_ids(name: str) -> None:
    b = Builder()
    b.output(b.layer_norm(lookup(b, P, NO_IDS[name](b)), H))
    result = fused(b.model(), sizes={"S": 5})
    assert not result.fused and not result.expected


def test_words_of_a_table_that_is_an_input() -> None:
    b = Builder()
    b.output(b.layer_norm(lookup(b, 97, b.ids(), b.input("table", (97, H))), H))
    result = fused(b.model())
    assert not result.fused and not result.expected
