"""Calls that an op must refuse: an exception that names node, op and tensor, and a process that lives on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from bertfuse.graph_rewrite.ops import MODEL_OPS, OPS
from tests.cases import Case, cases
from tests.one_node import NODE_NAME, model, session


def _case(op: str) -> Case:
    return next(case for case in cases(op) if case.label == "primes")


def _with(case: Case, *, attributes: dict[str, Any] | None = None, **inputs: np.ndarray | None) -> Case:
    return replace(
        case, inputs={**case.inputs, **inputs}, attributes={**case.attributes, **(attributes or {})}, label="bad"
    )


def _message(case: Case, library: Path) -> str:
    """What ONNX Runtime says when it loads and runs the case; the test fails if it says nothing."""
    for shapes in ("unknown", "free"):
        with pytest.raises(Exception) as caught:  # onnxruntime's exceptions share no public base
            runner = session(model(case, shapes=shapes), library)
            runner.run(None, {name: array for name, array in case.inputs.items() if array is not None})
        assert type(caught.value).__module__.startswith("onnxruntime"), caught.value
    message = str(caught.value)
    assert NODE_NAME in message
    assert case.op in message
    # The library still works in this process.
    good = _case(case.op)
    session(model(good), library).run(None, {k: v for k, v in good.inputs.items() if v is not None})
    return message


def _float_inputs() -> list[tuple[str, str]]:
    return [(op, tensor.name) for op in MODEL_OPS for tensor in OPS[op].inputs if not tensor.by_pass]


TAKES_ANY_SHAPE = ("RotaryTables", "tokens")
SCALARS = [("RotaryTables", "like")]


@pytest.mark.parametrize(("op", "name"), [key for key in _float_inputs() if key != TAKES_ANY_SHAPE])
def test_an_axis_too_many(op: str, name: str, library: Path) -> None:
    case = _case(op)
    array = case.inputs[name]
    assert array is not None
    message = _message(_with(case, **{name: array[..., None]}), library)
    assert "input '" in message


def _fixed_columns() -> list[tuple[str, str]]:
    """Inputs whose last axis another tensor has, too; but for tables, which are as large as these say."""
    every = {op: (*OPS[op].inputs, *OPS[op].outputs) for op in MODEL_OPS if op != "RotaryTables"}
    symbols = {op: Counter(axis.symbol for t in tensors for axis in t.trailing) for op, tensors in every.items()}
    inputs = {(op, tensor.name): tensor for op in every for tensor in OPS[op].inputs}
    keys = [key for key in _float_inputs() if key in inputs]
    return [key for key in keys if symbols[key[0]][inputs[key].trailing[-1].symbol] > 1]


@pytest.mark.parametrize(("op", "name"), _fixed_columns())
def test_a_last_axis_one_too_long(op: str, name: str, library: Path) -> None:
    case = _case(op)
    array = case.inputs[name]
    assert array is not None
    longer = np.concatenate([array, array[..., :1]], axis=-1)
    message = _message(_with(case, **{name: longer}), library)
    assert "axis" in message and "expected" in message


@pytest.mark.parametrize(("op", "name"), [key for key in _float_inputs() if key not in SCALARS])
def test_a_scalar(op: str, name: str, library: Path) -> None:
    case = _case(op)
    array = case.inputs[name]
    assert array is not None
    assert f"input '{name}' has rank 0" in _message(_with(case, **{name: np.zeros((), array.dtype)}), library)


def test_an_axis_says_where_its_size_comes_from(library: Path) -> None:
    case = _case("FusedAttention")
    bias = case.inputs["bias"]
    assert bias is not None
    message = _message(_with(case, bias=bias[:-3]), library)
    assert "input 'bias' axis 0 is 228, expected 3*H = 231 (H from 'qkv')" in message


def test_a_packed_axis_that_three_does_not_divide(library: Path) -> None:
    case = _case("AddQKVBias")
    message = _message(_with(case, qkv=np.zeros((2, 3, 100), np.float32)), library)
    assert "input 'qkv' axis 2 is 100, expected 3*H: a multiple of 3" in message


def test_leading_axes_that_disagree(library: Path) -> None:
    case = _case("FusedGemmLayerNorm")
    residual = case.inputs["residual"]
    assert residual is not None
    message = _message(_with(case, residual=residual[:, :-1]), library)
    assert "'residual' has the leading axes [2, 12], expected [2, 13] (from 'x')" in message


def test_a_rank_beyond_the_limit(library: Path) -> None:
    case = _case("FusedGemmGelu")
    x = np.zeros((1,) * 9 + (31,), np.float32)
    assert "input 'x' has rank 10, expected at most 8" in _message(_with(case, x=x), library)


@pytest.mark.parametrize("op", ["AddQKVBias", "FusedAttention"])
@pytest.mark.parametrize("heads", [2, 78, 4096])
def test_heads_that_do_not_divide(op: str, heads: int, library: Path) -> None:
    message = _message(_with(_case(op), attributes={"num_heads": heads}), library)
    assert f"attribute 'num_heads' is {heads}, expected a divisor of H = 77 (H from 'qkv')" in message


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("FusedAttention", {"num_heads": 0}, "'num_heads' is 0, expected 1 to 4096"),
        ("FusedAttention", {"num_heads": -(2**63)}, "expected 1 to 4096"),
        ("FusedAttention", {"num_heads": 7.0}, "'num_heads' is a float, expected an int"),
        ("FusedAttention", {"scale": -1.0}, "'scale' is -1, expected 0 to 10000"),
        ("FusedAttention", {"scale": float("nan")}, "'scale' is nan, expected 0 to 10000"),
        ("FusedAttention", {"scale": float("inf")}, "'scale' is inf"),
        ("FusedGemmLayerNorm", {"epsilon": 2.0}, "'epsilon' is 2, expected 0 to 1"),
        ("FusedGemmLayerNorm", {"epsilon": 1}, "'epsilon' is an int, expected a float"),
        ("FusedGemmGelu", {"approximate": "sigmoid"}, "'approximate' is 'sigmoid', expected 'none' or 'tanh'"),
        ("FusedGemmGelu", {"approximate": "x" * 5000}, "expected 'none' or 'tanh'"),
        ("FusedGemmGelu", {"approximate": 3}, "'approximate' is an int, expected a string"),
        ("RotaryTables", {"angle": "sum"}, "'angle' is 'sum', expected 'product' or 'quotient'"),
        ("RotaryTables", {"scaling": 2e4}, "'scaling' is 20000, expected -10000 to 10000"),
    ],
)
def test_attributes(op: str, attributes: dict[str, Any], expected: str, library: Path) -> None:
    assert expected in _message(_with(_case(op), attributes=attributes), library)


@pytest.mark.parametrize(("op", "name"), [("FusedAttention", "num_heads"), ("FusedAttention", "scale")])
def test_a_missing_attribute(op: str, name: str, library: Path) -> None:
    case = _case(op)
    case = replace(case, attributes={key: value for key, value in case.attributes.items() if key != name})
    assert f"attribute '{name}' is missing" in _message(case, library)


def test_mixed_dtypes(library: Path) -> None:
    # ONNX Runtime finds no registration with these types, and says so itself: the tensor is not named.
    case = _case("FusedGemmGelu")
    bias = case.inputs["bias"]
    assert bias is not None
    _message(_with(case, bias=bias.astype(np.float16)), library)


def test_a_dtype_that_no_op_takes(library: Path) -> None:
    case = _case("FusedAttention")
    mask = case.inputs["mask"]
    assert mask is not None
    with pytest.raises(Exception, match="FusedAttention"):
        proto = model(case)
        proto.graph.input[2].type.tensor_type.elem_type = 9  # bool
        session(proto, library)


@pytest.mark.parametrize(
    ("name", "value", "table"),
    [
        ("ids", 101, "'ids' holds the index 101, but 'word_table' has 101 rows"),
        ("ids", -102, "'ids' holds the index -102, but 'word_table' has 101 rows"),
        ("ids", 2**62, f"'ids' holds the index {2**62}"),
        ("token_type_ids", 2, "'token_type_ids' holds the index 2, but 'token_type_table' has 2 rows"),
        ("position_ids", 17, "'position_ids' holds the index 17, but 'position_table' has 17 rows"),
    ],
)
def test_an_index_out_of_range(name: str, value: int, table: str, library: Path) -> None:
    case = _case("EmbedLayerNorm")
    ids = case.inputs[name]
    assert ids is not None
    ids = ids.copy()
    ids[1, 2] = value
    assert table in _message(_with(case, **{name: ids}), library)


def test_a_sequence_longer_than_the_position_table(library: Path) -> None:
    case = _case("EmbedLayerNorm")
    positions = case.inputs["position_table"]
    assert positions is not None
    message = _message(_with(case, position_ids=None, position_table=positions[:12]), library)
    assert "the sequence has 13 tokens, but 'position_table' only 12 rows" in message


def test_token_types_without_their_table(library: Path) -> None:
    message = _message(_with(_case("EmbedLayerNorm"), token_type_table=None), library)
    assert "input 'token_type_ids' is given without 'token_type_table', which it needs" in message


def test_a_required_input_left_out(library: Path) -> None:
    with pytest.raises(Exception, match="FusedGemmGelu"):
        session(model(_with(_case("FusedGemmGelu"), bias=None)), library)


def test_more_than_one_registration_in_a_process(library: Path) -> None:
    case = _case("AddQKVBias")
    runners = [session(model(case), library) for _ in range(3)]
    feeds = {name: array for name, array in case.inputs.items() if array is not None}
    first = runners[0].run(None, feeds)
    del runners[0]
    for runner in runners:
        for one, other in zip(first, runner.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
    assert onnxruntime.get_available_providers()


def test_several_rows_of_a_vector(library: Path) -> None:
    case = _case("FusedGemmResidualNorm")
    gamma = case.inputs["product_gamma"]
    assert gamma is not None
    message = _message(_with(case, product_gamma=np.repeat(gamma, 2, axis=0)), library)
    assert "input 'product_gamma' has 2 rows, expected 1" in message
