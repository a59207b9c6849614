"""Names and axes of a model's own that are called as those of the packed interface are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.encoders_of_ids import encoder, rename
from tests.graph_rewrite.graphs import run

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
REAL = MASK.astype(bool)


def _agrees(model: onnx.ModelProto) -> onnx.ModelProto:
    """The ragged model, after it has given the same as the padded one."""
    ids = np.random.default_rng(0).integers(1, 50, MASK.shape)
    wanted = run(model, {"ids": ids, "attention_mask": MASK})
    ragged = fuse(model, padding="ragged").model
    onnx.checker.check_model(ragged, full_check=True)
    made = bertfuse.ragged({"input_ids": ids, "attention_mask": MASK})
    rows, pooled = run(ragged, {"ids": made.pop("input_ids")} | made)
    np.testing.assert_allclose(rows, wanted[0][REAL], 1e-4, 1e-4)
    np.testing.assert_allclose(pooled, wanted[1], 1e-4, 1e-4)
    return ragged


@pytest.mark.parametrize("name", ["cu_seqlens", "max_seqlen", "token_index", "row_count"])
@pytest.mark.parametrize("what", ["weight", "Erf", "ReduceSum"])
def test_a_weight_or_an_interior_tensor_of_that_name(what: str, name: str) -> None:
    model = encoder()
    if what == "weight":
        old = next(t.name for t in model.graph.initializer if list(t.dims) == [16, 32])
    else:
        old = next(n.output[0] for n in model.graph.node if n.op_type == what)
    _agrees(rename(model, old, name))


@pytest.mark.parametrize("name", ["cu_seqlens", "max_seqlen"])
def test_an_output_of_that_name(name: str) -> None:
    model = encoder()
    model = rename(model, model.graph.output[1].name, name)
    with pytest.raises(BertfuseError, match=f"the model has an output '{name}' of its own"):
        fuse(model, padding="ragged")


def test_an_input_that_is_an_output() -> None:
    model = encoder()
    model.graph.output.append(model.graph.input[0])
    with pytest.raises(BertfuseError, match="'ids' is an input and an output"):
        fuse(model, padding="ragged")


@pytest.mark.parametrize(
    "axes",
    [
        ("sequences", "tokens"),
        ("tokens", "sequences"),
        ("tokens", "longest"),
        ("longest", "sequences_plus_1"),
        ("packed_sequence", "packed_batch"),
    ],
)
def test_axes_of_those_names(axes: tuple[str, str]) -> None:
    """Axes of the ragged interface have names of their own: two that are called the same are of one size."""
    ragged = _agrees(encoder(axes)).graph
    rows, pooled = ([d.dim_param for d in v.type.tensor_type.shape.dim] for v in ragged.output)
    new = {v.name: v.type.tensor_type.shape.dim[0].dim_param for v in ragged.input}
    assert rows[0] == new["ids"] and pooled[0] == axes[0]
    assert len({*axes, *new.values()}) == 5
