"""Comparison: equal models agree, a model that was tampered with does not, and per node says where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from polygraphy.exception import PolygraphyException

from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.graph_rewrite import fuse_file
from bertfuse.measuring.compare import compare_models
from bertfuse.measuring.differences import difference
from bertfuse.runtime.session import ort_errors
from tests.tiny_models import exported, inputs, save_checkpoint


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fused") / "model.fused.onnx"
    fuse_file(exported(), path)
    return path


def tampered(source: Path, target: Path, name: str) -> Path:
    """A copy of the model with the first element of the initialiser `name` changed."""
    model = onnx.load(source)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] += 1.0
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("library", ["never", "always"])
@pytest.mark.parametrize("per_node", [False, True])
def test_fused_model_agrees(fused: Path, library: str, per_node: bool) -> None:
    comparison = compare_models(exported(), fused, library=library, per_node=per_node)
    assert comparison.passed and comparison.first_difference is None
    assert [entry.name for entry in comparison.outputs] == ["last_hidden_state", "pooler_output"]
    for entry in comparison.outputs:
        assert entry.absolute < 1e-4 and entry.relative < 1e-4 and entry.cosine > 0.999999
    assert bool(comparison.tensors) == per_node


def test_library_is_really_compared(fused: Path) -> None:
    """Its kernels round differently: a difference of exactly 0 would mean that one model ran twice."""
    assert compare_models(exported(), fused, library="always").outputs[0].absolute > 0


def test_tampered_model_differs_where_it_was_tampered_with(fused: Path, tmp_path: Path) -> None:
    name = "encoder.layer.1.output.LayerNorm.bias"
    other = tampered(exported(), tmp_path / "tampered.onnx", name)
    comparison = compare_models(exported(), other, per_node=True)
    assert not comparison.passed
    first = comparison.first_difference
    assert first is not None and not first.passed and first.absolute == pytest.approx(1.0, abs=1e-3)
    producer = next(node for node in onnx.load(other).graph.node if first.name in node.output)
    assert name in producer.input
    position = [entry.name for entry in comparison.tensors].index(first.name) if comparison.tensors else -1
    assert all(entry.passed for entry in comparison.tensors[:position])
    assert comparison.to_dict()["first_difference"] == first.name


def test_given_inputs_and_tolerances(fused: Path) -> None:
    feed = inputs(3, 5)
    assert compare_models(exported(), fused, inputs=feed).outputs[0].shape == (3, 5, 32)
    assert not compare_models(exported(), fused, inputs=feed, library="always", atol=0.0, rtol=0.0).passed
    with pytest.raises(BertfuseError, match="no input 'attention_mask'"):
        compare_models(exported(), fused, inputs={"input_ids": feed["input_ids"]})


def test_text_by_the_tokenizer_beside_the_model(tmp_path: Path) -> None:
    path = export_model(save_checkpoint(tmp_path / "source"), tmp_path / "out", exporter="torchscript")
    fused = path.with_name("model.fused.onnx")
    fuse_file(path, fused)
    comparison = compare_models(path, fused, texts=["word1 word2 word3", "word4"])
    assert comparison.passed and comparison.outputs[0].shape == (2, 5, 32)  # with [CLS] and [SEP]
    with pytest.raises(BertfuseError, match=r"has no tokenizer\.json"):
        compare_models(exported(), exported(), texts=["word1"])


def changed_inputs(target: Path, rename: dict[str, str] | None = None, shape: Sequence[int | str] = ()) -> Path:
    """A copy of the exported model whose inputs are named otherwise or of this shape."""
    model = onnx.load(exported())
    for value in model.graph.input:
        for node in model.graph.node:
            node.input[:] = [(rename or {}).get(name, name) for name in node.input]
        value.name = (rename or {}).get(value.name, value.name)
        if shape:
            kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, shape)
            value.type.CopyFrom(kind)
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("given", [False, True])
def test_models_that_take_other_inputs(given: bool, tmp_path: Path) -> None:
    """Of names that it does not know polygraphy makes its own sense."""
    feed = inputs(3, 5) if given else None
    swapped = {"input_ids": "ids", "token_type_ids": "kinds"}
    other = changed_inputs(tmp_path / "renamed.onnx", swapped)
    with pytest.raises(BertfuseError, match=rf"^{other}, given the inputs of .*: no input 'ids'; it has input_ids"):
        compare_models(exported(), other, inputs=feed)
    other = changed_inputs(tmp_path / "extra.onnx")
    model = onnx.load(other)
    model.graph.input.append(onnx.helper.make_tensor_value_info("extra", onnx.TensorProto.FLOAT, [1]))
    onnx.save(model, other)
    with pytest.raises(BertfuseError, match=rf"^{other}, given the inputs of .*: no input 'extra'"):
        compare_models(exported(), other, inputs=feed)
    other = changed_inputs(tmp_path / "ranks.onnx", shape=("batch", "sequence", 1))
    with pytest.raises(BertfuseError, match=rf"^{other}, given the inputs of .*: input 'input_ids' has shape"):
        compare_models(exported(), other, inputs=feed)


def test_what_polygraphy_raises_is_one_line() -> None:
    with pytest.raises(BertfuseError, match=r"^a\.onnx: .*: first line second line$"), ort_errors("a.onnx"):
        raise PolygraphyException("first line\n  second line")


def test_models_of_fixed_shape(tmp_path: Path) -> None:
    """Without a config.json, too, which says how long a sequence may be."""
    fixed, same = (changed_inputs(tmp_path / name, shape=(3, 36)) for name in ("fixed.onnx", "same.onnx"))
    for first, second in ((fixed, same), (exported(), fixed), (fixed, exported())):
        assert compare_models(first, second).outputs[0].shape == (3, 36, 32)
    row = changed_inputs(tmp_path / "row.onnx", shape=(1, "sequence"))
    assert compare_models(exported(), row).passed
    with pytest.raises(BertfuseError, match=r"fixed\.onnx and .*row\.onnx: take no batch and sequence in common"):
        compare_models(fixed, row)
    with pytest.raises(BertfuseError, match=rf"^{fixed}, given .*: input 'input_ids' has shape \[3, 5\], .*\[3, 36\]"):
        compare_models(exported(), fixed, inputs=inputs(3, 5))


def test_models_without_a_common_output(fused: Path) -> None:
    with pytest.raises(BertfuseError, match="share no output"):
        compare_models(exported(), exported("fill-mask"))


@pytest.mark.parametrize(
    ("other", "passed"),
    [
        ([[1.0, 2.0]], True),
        ([[1.0, 2.00001]], True),
        ([[1.0, 2.1]], False),
        ([[1.0, np.nan]], False),
        ([[1.0, np.inf]], False),
        ([[1.0, 2.0, 3.0]], False),
    ],
)
def test_difference_of_arrays(other: list[list[float]], passed: bool) -> None:
    entry = difference("y", np.array([[1.0, 2.0]], np.float32), np.array(other, np.float32))
    assert entry.passed == bool(entry) == passed
    assert bool(entry.reason) != passed


def test_difference_in_figures() -> None:
    entry = difference("y", np.array([[3.0, 4.0]], np.float32), np.array([[4.0, 3.0]], np.float32))
    assert (entry.absolute, entry.relative) == (1.0, 0.25)
    assert entry.cosine == pytest.approx(24 / 25)
    same = difference("y", np.zeros((1, 2)), np.zeros((1, 2)))
    assert same.cosine == 1.0 and same.verdict == "equal bits"
    assert difference("y", np.zeros((1, 2)), np.full((1, 2), -0.0)).verdict == "agrees"  # other bits
    masks = np.array([[0.0, -np.inf]], np.float32)
    assert difference("mask", masks, masks).passed
    assert not difference("ids", np.array([1, 2]), np.array([1, 3])).passed
    assert difference("empty", np.zeros((0, 3)), np.zeros((0, 3))).passed
