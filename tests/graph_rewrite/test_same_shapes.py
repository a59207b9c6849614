"""Axes without names: shown to be of one size, made to be, or not relied on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from attentions import HIDDEN, Attention, attend
from encoders_of_ids import encoder, ids_and_mask
from graphs import Builder, refused, run
from tiny_models import EXPORTERS, exported

from bertfuse.graph_rewrite import fuse


def without_names(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_inputs_of_other_shapes_end_the_run(exporter: str, optimise: bool) -> None:
    """A mask [1, S] beside ids [2, S] is broadcast by some exports and read beyond its end by others."""
    model = without_names(onnx.load(exported("feature-extraction", exporter, "sdpa")))
    result = fuse(model)
    assert result.complete
    random = np.random.default_rng(0)
    names = [value.name for value in model.graph.input]

    def feed(*shapes: tuple[int, int]) -> dict[str, np.ndarray]:
        return {name: random.integers(0, 2, shape) for name, shape in zip(names, shapes, strict=True)}

    for shape in ((2, 7), (1, 1), (3, 1), (1, 5)):
        same = feed(*[shape] * len(names))
        same["attention_mask"][:, 0] = 1
        for a, b in zip(run(model, same), run(result.model, same, optimise), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    for shape, other in (((2, 7), (1, 7)), ((1, 7), (2, 7)), ((6, 1), (1, 6)), ((1, 6), (6, 1)), ((2, 6), (3, 4))):
        for odd in range(len(names)):
            shapes = [other if index == odd else shape for index in range(len(names))]
            with pytest.raises(Exception, match=r"Reshape|Expand"):
                run(result.model, feed(*shapes), optimise)


def test_a_mask_of_other_names_than_x() -> None:
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask", ("R", "S"))
    b.output(attend(b, x, Attention(mask="where"), mask))
    refused(b.model(), "[B, 1 or 4, 1 or S, S], as the scores are", "FusedAttention")


@pytest.mark.parametrize("axes", [(None, None), ("B", None), (None, "S")])
def test_a_mask_without_names_beside_hidden_states(axes: tuple[str | None, str | None]) -> None:
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask", axes)
    b.output(attend(b, x, Attention(mask="where"), mask))
    refused(b.model(), "as the scores are", "FusedAttention")


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("odd", ["ids", "attention_mask", "token_type_ids"])
def test_packed_inputs_of_other_shapes_end_the_run(odd: str, optimise: bool) -> None:
    """The original broadcasts a mask [1, S]. Of two real tokens fewer would come out, in another shape."""
    model = encoder(token_types=True)
    packed = fuse(model, padding="remove").model
    for shape in ((2, 7), (1, 1), (3, 1), (1, 5), (0, 5), (2, 0), (0, 0)):
        feed = ids_and_mask(*shape, token_types=True)
        given, wanted = run(packed, feed, optimise), run(model, feed)
        np.testing.assert_allclose(given[0], wanted[0], rtol=1e-4, atol=1e-5)
        assert given[1].shape == wanted[1].shape
    for shape, other in (((2, 7), (1, 7)), ((1, 7), (2, 7)), ((2, 7), (2, 1)), ((6, 1), (1, 6)), ((1, 6), (6, 1))):
        feed = ids_and_mask(*shape, token_types=True) | {odd: ids_and_mask(*other, token_types=True)[odd]}
        with pytest.raises(Exception, match=r"Reshape.*of_one_shape_with_ids"):
            run(packed, feed, optimise)


def test_nothing_is_checked_of_sizes_that_the_runtime_checks() -> None:
    model = fuse(encoder((2, 7)), padding="remove").model
    assert not any("of_one_shape" in name for node in model.graph.node for name in node.output)
