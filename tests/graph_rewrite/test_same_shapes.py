"""Axes of one name, and those without: shown to be of one size, compared when the model runs, or not relied on."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import functions, fuse
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.same_shapes import COMPARED
from bertfuse.graph_rewrite.spec import DOMAIN
from tests.cases import cases
from tests.graph_rewrite.attentions import HIDDEN, Attention, attend
from tests.graph_rewrite.encoders_of_ids import encoder, ids_and_mask
from tests.graph_rewrite.graphs import Builder, refused, run
from tests.graph_rewrite.running import run as run_session
from tests.graph_rewrite.running import session as session_of
from tests.one_node import model as one_node
from tests.one_node import session
from tests.tiny_models import EXPORTERS, exported


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
    model = encoder(token_types=True, opset=13 if optimise else 17)
    packed = fuse(model, padding="remove").model
    for shape in ((2, 7), (1, 1), (3, 1), (1, 5), (0, 5), (2, 0), (0, 0)):
        feed = ids_and_mask(*shape, token_types=True)
        given, wanted = run(packed, feed, optimise), run(model, feed)
        np.testing.assert_allclose(given[0], wanted[0], rtol=1e-4, atol=1e-5)
        assert given[1].shape == wanted[1].shape
    for shape, other in (((2, 7), (1, 7)), ((1, 7), (2, 7)), ((2, 7), (2, 1)), ((6, 1), (1, 6)), ((1, 6), (6, 1))):
        feed = ids_and_mask(*shape, token_types=True) | {odd: ids_and_mask(*other, token_types=True)[odd]}
        with pytest.raises(Exception, match="Reshape"):
            run(packed, feed, optimise)


def test_nothing_is_compared_of_sizes_that_the_runtime_compares() -> None:
    model = fuse(encoder((2, 7)), padding="remove").model
    assert not any("of_one_size" in name for node in model.graph.node for name in node.output)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_nothing_is_compared_twice(exporter: str, attention: str) -> None:
    """The embedding compares ids and token types, attention the mask with x: a model fused as a whole has no more."""
    model = fuse(exported("feature-extraction", exporter, attention)).model
    assert not any("of_one_size" in name for node in model.graph.node for name in node.output)


@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for op, (_, *names) in COMPARED.items() if op in OPS for name in names]
)
def test_kernels_and_bodies_compare(op: str, name: str, library: Path) -> None:
    case = next(c for c in cases(op) if c.label == "primes" and c.inputs[name] is not None)
    case = replace(case, attributes={a.name: a.default for a in case.spec.attributes} | dict(case.attributes))
    array = case.inputs[name]
    assert min(array.shape) > 1
    given = {n: a for n, a in case.inputs.items() if a is not None}
    for other in (array[:1], array[:, :1], np.repeat(array, 2, 0), np.repeat(array, 2, 1), array.T.copy()):
        with pytest.raises(Exception, match=rf"{op}: input"):
            session(one_node(case), library).run(None, given | {name: other})
        for opset in (13, 17, 21):
            with pytest.raises(Exception, match="Reshape"):
                run(_body(case, opset), given | {name: other})
    for opset in (13, 17, 21):
        run(_body(case, opset), given)


def _body(case: Any, opset: int) -> onnx.ModelProto:
    model = one_node(case)
    del model.opset_import[:]
    model.opset_import.extend([onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(DOMAIN, 1)])
    functions.attach(model, {node.output[0]: onnx.TensorProto.FLOAT for node in model.graph.node})
    return model


def _two_hidden_states() -> onnx.ModelProto:
    """x and y [B, S, 16], of which y is the residual, and a weight for each row of y's batch."""
    b = Builder()
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    total = b.op("Add", b.linear(x, HIDDEN, HIDDEN), y)
    b.output(b.op("Mul", b.layer_norm(total, HIDDEN), b.input("of_each", ("B", 1, 1))))
    return b.model()


def _square() -> onnx.ModelProto:
    """A batch of as many texts as they have tokens, by its names."""
    return encoder(("N", "N"), token_types=True)


def _length_of_the_mask() -> onnx.ModelProto:
    """The rows are made of the mask's sizes, which are called as those of x."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask", ("B", "S"))
    sizes = b.op("Concat", b.op("Shape", mask), b.const([HIDDEN]), axis=0)
    y = b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), sizes)
    b.output(b.layer_norm(b.op("Add", y, x), HIDDEN))
    return b.model()


MODELS = {
    "encoder": lambda: encoder(token_types=True),
    "two hidden states": _two_hidden_states,
    "square": _square,
    "length of the mask": _length_of_the_mask,
}


@pytest.mark.parametrize("options", [{}, {"level": "basic"}, {"padding": "remove"}, {"dtype": "fp16"}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_equal_or_ended_whatever_the_sizes(name: str, options: dict[str, str], library: Path) -> None:
    """Every input of sizes of its own, 1 more often than not: what broadcasts in the original is equal or ends."""
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    model = MODELS[name]()
    fused = fuse(model, **options).model
    runners = [session_of(fused), session_of(fused, library)]
    ended = 0
    for _ in range(60):
        batch, length = (int(n) for n in random.integers(1, 7, 2))
        feed = {}
        for value in model.graph.input:
            tensor = value.type.tensor_type
            sizes = [int(random.choice([n, n, 1])) for n in (batch, length)]
            shape = [d.dim_value or sizes[axis] for axis, d in enumerate(tensor.shape.dim)]
            whole = tensor.elem_type == onnx.TensorProto.INT64
            feed[value.name] = random.integers(0, 2, shape) if whole else random.standard_normal(shape, np.float32)
            if "mask" in value.name:
                feed[value.name][:, 0] = 1
        try:
            wanted = run(model, feed)
        except Exception:
            continue
        halves = {n: a.astype(np.float16) for n, a in feed.items() if a.dtype.kind == "f"} if "dtype" in options else {}
        for runner in runners:
            kinds = {i.name: i.type for i in runner.get_inputs()}
            given = {n: halves[n] if "float16" in kinds[n] else a for n, a in feed.items()}
            try:
                outputs = run_session(runner, given)
            except Exception:
                ended += 1
                continue
            _equal_where_real(feed, wanted, outputs, options)
    assert ended or name == "length of the mask"  # of which the original ends mostly, too


def _equal_where_real(feed: dict, wanted: list, outputs: list, options: dict[str, str]) -> None:
    """Rows of padding are zeros where padding is removed."""
    tolerance = 3e-2 if "dtype" in options else 1e-4
    for a, b in zip(wanted, outputs, strict=True):
        assert a.shape == b.shape
        if "padding" in options and "attention_mask" in feed and a.ndim == 3:
            real = np.broadcast_to(feed["attention_mask"] != 0, a.shape[:2])
            a, b = a[real], b[real]
        np.testing.assert_allclose(b.astype(np.float64), a, rtol=tolerance, atol=tolerance)
