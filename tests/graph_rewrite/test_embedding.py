"""The sum of looked-up rows under a LayerNorm, seen through EmbedLayerNorm."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper, numpy_helper

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused, refused
from tests.graph_rewrite.lookups import H, P, inputs_of, lookup, range_positions, sliced_positions


def embeddings(
    b: Builder, order: tuple[int, ...] = (0, 1, 2), nested: bool = False, positions=sliced_positions, words: int = 97
) -> str:
    """LayerNorm of word, token type and position rows, added in `order`."""
    ids, types = b.ids(), b.ids("token_type_ids")
    rows = [lookup(b, words, ids), lookup(b, 2, types), lookup(b, P, positions(b, ids))]
    first, second, third = (rows[i] for i in order)
    inner = b.op("Add", first, second)
    return b.layer_norm(b.op("Add", *((third, inner) if nested else (inner, third))), H)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("nested", [False, True])
def test_any_order(order: tuple[int, ...], nested: bool) -> None:
    b = Builder()
    b.output(embeddings(b, order, nested))
    result = fused(b.model())
    assert result.fused == result.expected == {"EmbedLayerNorm": 1}
    given = inputs_of(result)
    assert given["ids"] == "ids" and given["token_type_ids"] == "token_type_ids" and "position_ids" not in given


def test_fixed_ids_of_three_axes() -> None:
    b = Builder()
    ids = b.const(np.arange(12).reshape(1, 3, 4))
    rows = [lookup(b, 97, ids), lookup(b, P, b.const(np.arange(4)[None]))]
    b.output(b.layer_norm(b.op("Add", *rows), H))
    assert "EmbedLayerNorm" not in fuse(b.model()).fused


@pytest.mark.parametrize("opset", [13, 17, 18, 20, 21])
def test_opsets(opset: int) -> None:
    b = Builder(opset)
    b.output(embeddings(b, positions=range_positions))
    assert fused(b.model()).fused == {"EmbedLayerNorm": 1}


@pytest.mark.parametrize("words", [3, 30, 41, 5000])
def test_fewer_words_than_positions(words: int) -> None:
    """Protein models have thirty tokens and thousands of positions."""
    b = Builder()
    b.output(embeddings(b, words=words))
    result = fused(b.model())
    assert result.fused == {"EmbedLayerNorm": 1}
    assert inputs_of(result)["ids"] == "ids"


@pytest.mark.parametrize("longest", [4, 10, 16])
def test_few_positions(longest: int) -> None:
    b = Builder()
    ids = b.ids()
    total = b.op("Add", lookup(b, 97, ids), lookup(b, longest, sliced_positions(b, ids, longest)))
    b.output(b.layer_norm(total, H))
    assert fused(b.model(), sizes={"S": 3}).fused == {"EmbedLayerNorm": 1}


def test_positions_looked_up_in_a_short_table() -> None:
    """Running the index on lengths that its table does not have must not end fusion."""
    b = Builder()
    ids = b.ids()
    index = b.op("Gather", b.const(np.arange(6)), range_positions(b, ids), axis=0)
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, 6, index)), H))
    result = fused(b.model(), sizes={"S": 3})
    assert result.fused or result.misses


def test_without_token_types() -> None:
    b = Builder()
    ids = b.ids()
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, P, sliced_positions(b, ids))), H))
    assert fused(b.model()).fused == {"EmbedLayerNorm": 1}


def test_position_ids_given() -> None:
    b = Builder()
    ids, positions = b.ids(), b.ids("position_ids")
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, P, positions)), H))
    result = fused(b.model())
    assert result.fused == {"EmbedLayerNorm": 1}
    assert inputs_of(result)["position_ids"] == "position_ids"


def test_positions_made_of_the_ids() -> None:
    """RoBERTa counts tokens that are not padding: position ids of their own, [B, S]."""
    b = Builder()
    ids = b.ids()
    real = b.op("Cast", b.op("Not", b.op("Equal", ids, b.const(0))), to=7)
    positions = b.op("Mul", b.op("CumSum", real, b.const(1)), real)
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, P, positions)), H))
    model = b.model()
    result = fused(model)
    assert result.fused == {"EmbedLayerNorm": 1}
    feed = feeds(model)
    feed["ids"] = feed["ids"] * np.arange(10).reshape(2, 5)
    assert_agree(model, result.model, feed, 2e-5)


@pytest.mark.parametrize("static", [(2, 5), ("B", 5), (1, "S")])
def test_static_shapes(static: tuple[int | str, int | str]) -> None:
    b = Builder()
    ids = b.ids(shape=static)
    index = b.const(np.arange(5)[None]) if static[1] == 5 else sliced_positions(b, ids)
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, P, index)), H))
    assert fused(b.model()).fused == {"EmbedLayerNorm": 1}


@pytest.mark.parametrize("type_of_types", [np.int32, np.int64])
def test_int32_ids(type_of_types: type) -> None:
    b = Builder()
    ids, types = b.ids(dtype=np.int32), b.ids("token_type_ids", dtype=type_of_types)
    rows = b.op("Add", lookup(b, 97, ids), lookup(b, 2, types))
    b.output(b.layer_norm(b.op("Add", rows, lookup(b, P, sliced_positions(b, ids))), H))
    assert fused(b.model()).fused == {"EmbedLayerNorm": 1}


def reversed_positions(b: Builder, ids: str) -> str:
    length = b.op("Squeeze", b.op("Gather", b.op("Shape", ids), b.const([1]), axis=0), b.const([0]))
    return b.op("Range", b.op("Sub", length, b.const(1)), b.const(-1), b.const(-1))


def positions_from_2(b: Builder, ids: str) -> str:
    return b.op("Unsqueeze", b.op("Add", range_positions(b, ids), b.const(2)), b.const([0]))


def clipped_positions(b: Builder, ids: str) -> str:
    return b.op("Min", range_positions(b, ids), b.const(31))


def wrapped_positions(b: Builder, ids: str) -> str:
    return b.op("Mod", range_positions(b, ids), b.const(32))


def repeated_positions(b: Builder, ids: str) -> str:
    """A buffer shorter than the table, its last place again and again."""
    length = b.op("Gather", b.op("Shape", ids), b.const([1]), axis=0)
    return b.op("Slice", b.const(np.minimum(np.arange(36), 31)[None]), b.const([0]), length, b.const([1]))


@pytest.mark.parametrize("positions", [clipped_positions, wrapped_positions, repeated_positions])
def test_positions_that_count_up_from_0_to_31_alone(positions) -> None:
    b = Builder()
    b.output(embeddings(b, positions=positions))
    result = fused(b.model(), sizes={"S": 36})
    assert result.fused == {"EmbedLayerNorm": 1} and "position_ids" in inputs_of(result)


def grid_of_positions(b: Builder, ids: str) -> str:
    """A buffer that cannot be run for more than its 36 places."""
    return b.op("Gather", b.const(np.arange(36)), range_positions(b, ids), axis=0)


@pytest.mark.parametrize("positions", [lambda b, ids: sliced_positions(b, ids, 36), grid_of_positions])
def test_fewer_positions_than_their_table_has_rows(positions) -> None:
    b = Builder()
    b.output(embeddings(b, positions=positions))
    result = fused(b.model(), sizes={"S": 36})
    assert result.fused == {"EmbedLayerNorm": 1} and "position_ids" not in inputs_of(result)


def tokens_counted(b: Builder, ids: str) -> str:
    """As RoBERTa: padding is 1, tokens count from 2 on. [B, S]."""
    real = b.op("Cast", b.op("Not", b.op("Equal", ids, b.const(1))), to=7)
    return b.op("Add", b.op("Mul", b.op("CumSum", real, b.const(1)), real), b.const(1))


def tokens_counted_from_0(b: Builder, ids: str) -> str:
    """Positions 0, 1, ... in every row without padding, which is 7 here."""
    real = b.op("Cast", b.op("Not", b.op("Equal", ids, b.const(7))), to=7)
    return b.op("Sub", b.op("CumSum", real, b.const(1)), b.const(1))


@pytest.mark.parametrize("positions", [reversed_positions, positions_from_2, tokens_counted, tokens_counted_from_0])
def test_positions_that_do_not_count_up_from_0(positions) -> None:
    b = Builder()
    b.output(embeddings(b, positions=positions))
    model = b.model()
    result = fused(model, sizes={"S": 5})
    assert result.fused == result.expected == {"EmbedLayerNorm": 1}
    assert "position_ids" in inputs_of(result)
    feed = feeds(model)
    feed["ids"] = np.array([[3, 7, 9, 1, 1], [7, 7, 2, 4, 1]])
    assert_agree(model, result.model, feed, 2e-5)


def test_position_ids_of_another_batch() -> None:
    """Two rows of places beside one of ids are two rows of the sum: the op does not broadcast."""
    b = Builder()
    ids, positions = b.ids(), b.input("position_ids", ("other", "S"), np.int64)
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, P, positions)), H))
    refused(b.model(), "['other', 'S']", "EmbedLayerNorm")


@pytest.mark.parametrize("shape", [(1, "S"), ("S",), ("B", "S")])
def test_position_ids_of_any_shape(shape: tuple[int | str, ...]) -> None:
    b = Builder()
    ids, positions = b.ids(), b.input("position_ids", shape, np.int64)
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, P, positions)), H))
    assert fused(b.model()).fused == {"EmbedLayerNorm": 1}


def zeros_like(b: Builder, ids: str) -> str:
    return b.op("ConstantOfShape", b.op("Shape", ids), value=helper.make_tensor("value", 7, [1], [0]))


def expanded_zeros(b: Builder, ids: str) -> str:
    """BERT's buffer of zeros, cut to the length and spread over the batch."""
    return b.op("Expand", sliced_zeros(b, ids), b.op("Shape", ids))


def sliced_zeros(b: Builder, ids: str) -> str:
    length = b.op("Gather", b.op("Shape", ids), b.const([1]), axis=0)
    return b.op("Slice", b.const(np.zeros((1, P), np.int64)), b.const([0]), length, b.const([1]))


FIXED = {
    "zeros": (zeros_like, 2, 0),
    "expanded": (expanded_zeros, 2, 0),
    "cut": (sliced_zeros, 2, 0),
    "the last": (lambda b, ids: b.op("Expand", b.const([[-1]]), b.op("Shape", ids)), 5, -1),
    "picked": (lambda b, ids: b.op("GatherElements", expanded_zeros(b, ids), ids, axis=1), 2, 0),
    "one number": (lambda b, ids: b.const([[1]]), 2, 1),
    "a table of one row": (zeros_like, 1, 0),
    "a table of one row, given ids": (lambda b, ids: b.op("Mul", ids, b.const(0)), 1, 0),
}


@pytest.mark.parametrize("name", list(FIXED))
@pytest.mark.parametrize("positions", [sliced_positions, tokens_counted])
def test_token_types_that_are_all_alike(name: str, positions) -> None:
    """Their row goes into the table of positions; no input of the op is left for them."""
    make, rows, row = FIXED[name]
    b = Builder()
    ids = b.ids()
    types, table = b.weight(rows, H, name="types"), b.weight(P, H, name="positions")
    total = b.op("Add", lookup(b, 97, ids), lookup(b, rows, make(b, ids), types))
    b.output(b.layer_norm(b.op("Add", total, lookup(b, P, positions(b, ids), table)), H))
    model = b.model()
    result = fused(model)
    assert result.fused == result.expected == {"EmbedLayerNorm": 1}
    inputs = inputs_of(result)
    assert "token_type_ids" not in inputs
    tables = {t.name: numpy_helper.to_array(t) for t in result.model.graph.initializer}
    given = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_allclose(tables[inputs["position_table"]], given["positions"] + given["types"][row], rtol=1e-6)


def test_nothing_but_words_and_one_token_type() -> None:
    """No positions: the token types stand for them."""
    b = Builder()
    ids = b.ids()
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), lookup(b, 2, expanded_zeros(b, ids))), H))
    assert fused(b.model()).fused == {"EmbedLayerNorm": 1}


@pytest.mark.parametrize("length", [1, 5])
def test_fixed_length_with_constant_types(length: int) -> None:
    """Types and positions as constants; of length 1 both look alike."""
    b = Builder()
    ids = b.ids(shape=("B", length))
    total = b.op("Add", lookup(b, 97, ids), lookup(b, 2, b.const(np.zeros((1, length), np.int64))))
    b.output(b.layer_norm(b.op("Add", total, lookup(b, P, b.const(np.arange(length)[None]))), H))
    assert fused(b.model()).fused == {"EmbedLayerNorm": 1}


@pytest.mark.parametrize("types", ["given", "folded", "absent"])
@pytest.mark.parametrize("axes", [2, 3])
def test_position_rows_folded_into_a_constant(axes: int, types: str) -> None:
    """A fixed length: what is looked up by position alone is a constant of the model."""
    b = Builder()
    ids = b.ids(shape=("B", 5))
    total = b.op("Add", lookup(b, 97, ids), b.weight(*((1, 5, H) if axes == 3 else (5, H))))
    if types == "given":
        total = b.op("Add", total, lookup(b, 2, b.ids("token_type_ids", shape=("B", 5))))
    elif types == "folded":
        total = b.op("Add", total, b.weight(1, 1, H))
    b.output(b.layer_norm(total, H))
    result = fused(b.model())
    assert result.fused == result.expected == {"EmbedLayerNorm": 1}


@pytest.mark.parametrize("shape", [(2, 5, H), (5, 1), (1, 5, 1)])
def test_constants_that_are_no_rows(shape: tuple[int, ...]) -> None:
    b = Builder()
    ids = b.ids(shape=(2, 5))
    b.output(b.layer_norm(b.op("Add", lookup(b, 97, ids), b.weight(*shape)), H))
    refused(b.model(), "the sum holds a constant", "EmbedLayerNorm")


def test_token_types_made_of_the_ids() -> None:
    """All alike for small ids, not for all."""
    b = Builder()
    ids = b.ids()
    types = b.op("Cast", b.op("Greater", ids, b.const(50)), to=7)
    total = b.op("Add", lookup(b, 97, ids), lookup(b, 2, types))
    b.output(b.layer_norm(b.op("Add", total, lookup(b, P, sliced_positions(b, ids))), H))
    model = b.model()
    result = fused(model)
    feed = feeds(model)
    feed["ids"] = np.arange(10).reshape(2, 5) * 9
    assert_agree(model, result.model, feed, 2e-5)
    assert "token_type_ids" in inputs_of(result)


def test_rows_whose_shape_is_asked_for() -> None:
    """Shape(word rows), as torchscript writes it: the ids have it, too."""
    b = Builder()
    ids = b.ids()
    words = lookup(b, 97, ids)
    y = b.layer_norm(b.op("Add", words, lookup(b, P, sliced_positions(b, ids))), H)
    shape = b.op("Shape", words)
    b.output(b.op("Reshape", b.op("Neg", y), shape))
    b.output(shape, element=7)
    result = fused(b.model())
    assert result.fused == {"EmbedLayerNorm": 1}


def test_tied_tables_and_a_table_used_elsewhere() -> None:
    b = Builder()
    ids, table = b.ids(), b.weight(97, H, name="words")
    y = b.layer_norm(b.op("Add", lookup(b, 97, ids, table), lookup(b, P, sliced_positions(b, ids))), H)
    b.output(b.op("MatMul", y, b.op("Transpose", table, perm=[1, 0])))
    result = fused(b.model())
    assert result.fused == {"EmbedLayerNorm": 1}
    assert [t.name for t in result.model.graph.initializer].count("words") == 1


def test_basic_level_leaves_embeddings() -> None:
    b = Builder()
    b.output(embeddings(b))
    result = fused(b.model(), "basic")
    assert not result.fused and not result.expected


def wrong(name: str, b: Builder) -> str:
    ids = b.ids()
    word = lookup(b, 97, ids)
    if name == "four tables":
        rows = b.op("Add", b.op("Add", word, lookup(b, 2, b.ids("a"))), lookup(b, 3, b.ids("b")))
        return b.op("Add", rows, lookup(b, P, sliced_positions(b, ids)))
    if name == "rows of a tensor that is an input":
        return b.op("Add", word, lookup(b, P, sliced_positions(b, ids), b.input("table", (P, H))))
    if name == "rows multiplied":
        return b.op("Add", b.op("Mul", word, b.const(4.0)), lookup(b, P, sliced_positions(b, ids)))
    if name == "a constant added":
        return b.op("Add", word, b.weight(H))
    if name == "positions of another sequence":
        return b.op("Add", word, lookup(b, P, sliced_positions(b, b.ids("other"))))
    if name == "columns looked up":
        return b.op("Add", word, b.op("Gather", b.weight(H, P), b.ids("columns", (H,)), axis=1))
    raise KeyError(name)


WRONG = {
    "four tables": "",
    "rows of a tensor that is an input": "expected rows of constant tables alone",
    "rows multiplied": "expected rows of constant tables alone",
    "a constant added": "0 of them by position",
}


@pytest.mark.parametrize("name", list(WRONG))
def test_near_misses(name: str) -> None:
    b = Builder()
    b.output(b.layer_norm(wrong(name, b), H))
    refused(b.model(), WRONG[name], "EmbedLayerNorm", sizes={"S": 5})


def test_positions_by_the_length_of_another_input() -> None:
    b = Builder()
    b.output(b.layer_norm(wrong("positions of another sequence", b), H))
    result = fused(b.model())
    assert result.fused or result.misses


@pytest.mark.parametrize("which", ["Gather", "Add"])
@pytest.mark.parametrize("how", ["exposed", "used"])
def test_interior_needed_elsewhere(which: str, how: str) -> None:
    b = Builder()
    y = embeddings(b)
    tensor = [n.output[0] for n in b.nodes if n.op_type == which and n.output[0] != y]
    # The rows of a table, not the Gather of a shape.
    rows = (
        next(t for t in tensor if any(t in n.input for n in b.nodes if n.op_type == "Add"))
        if which == "Gather"
        else tensor[0]
    )
    b.output(y, rows if how == "exposed" else b.op("Neg", rows))
    refused(b.model(), "", "EmbedLayerNorm")


def test_ids_beyond_what_was_probed() -> None:
    b = Builder()
    b.output(embeddings(b))
    model = b.model()
    feed = feeds(model, {"S": P})
    feed["ids"] = np.random.default_rng(0).integers(-97, 97, feed["ids"].shape)
    assert_agree(model, fuse(model).model, feed, 2e-5)
