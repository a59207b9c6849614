"""Whole models from every exporter, attention and task: all that is expected is fused, and computes the same."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from bertfuse.errors import BertfuseError
from bertfuse.export import TASKS
from bertfuse.graph_rewrite import fuse, fuse_file
from bertfuse.graph_rewrite.pipeline import count_nodes
from bertfuse.graph_rewrite.spec import DOMAIN, NODE_MARKERS
from tests.graph_rewrite.running import counts, run, session
from tests.tiny_models import ATTENTIONS, EXPORTERS, LAYERS, LONGEST, exported, inputs

MATRIX = list(itertools.product(EXPORTERS, ATTENTIONS))
SHAPES = ((1, 1), (2, 7), (3, LONGEST))
# Linear layers in no other op: pooler, classifier, vocabulary.
HEADS = {
    "feature-extraction": 1,
    "fill-mask": 1,
    "text-classification": 2,
    "token-classification": 1,
    "question-answering": 1,
}
FULL = {"EmbedLayerNorm": 1, "FusedAttention": LAYERS, "FusedGemmLayerNorm": 2 * LAYERS, "FusedGemmGelu": LAYERS}
BASIC = {"AddQKVBias": LAYERS, "FusedGemmLayerNorm": 2 * LAYERS, "FusedGemmGelu": LAYERS}
# Two layers of float32 sums in another order, on values of order 1.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


def expected_counts(level: str, task: str) -> dict[str, int]:
    head = {"FusedGemmGeluLayerNorm": 1} if task == "fill-mask" else {}
    return (FULL if level == "full" else BASIC) | head


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize(("exporter", "attention"), MATRIX)
@pytest.mark.parametrize("task", list(TASKS))
def test_matrix(task: str, exporter: str, attention: str, level: str, library) -> None:
    path = exported(task, exporter, attention)
    result = fuse(path, level=level)
    assert result.misses == []
    assert result.fused == result.expected == expected_counts(level, task)
    # One FusedGemm beside each attention, not counted: it takes the place of one MatMul.
    heads = HEADS.get(task, 0) if level == "full" else 0
    assert counts(result.model) == result.fused | {"FusedGemm": LAYERS + heads}
    onnx.checker.check_model(result.model, full_check=True)
    original, stock, ours = session(str(path)), session(result.model), session(result.model, library)
    for batch, sequence in SHAPES:
        feed = inputs(batch, sequence)
        want = run(original, feed)
        for runner in (stock, ours):
            for got, expected in zip(run(runner, feed), want, strict=True):
                np.testing.assert_allclose(got, expected, **TOLERANCE)


@pytest.mark.parametrize(("exporter", "attention"), MATRIX)
def test_a_layer_is_at_most_six_nodes(exporter: str, attention: str) -> None:
    """The whole encoder: the layers, the embeddings, and the pooler's three nodes."""
    result = fuse(exported("feature-extraction", exporter, attention))
    assert result.nodes[1] == count_nodes(result.model) <= 6 * LAYERS + 1 + 3
    assert not any(node.op_type == "MatMul" for node in result.model.graph.node)


def test_inputs_outputs_and_metadata_stay() -> None:
    path = exported()
    original, fused = onnx.load(path), fuse(path).model
    assert list(fused.graph.input) == list(original.graph.input)
    assert list(fused.graph.output) == list(original.graph.output)
    assert list(fused.metadata_props) == list(original.metadata_props) and len(original.metadata_props) > 0
    assert all(entry in fused.opset_import for entry in original.opset_import)
    assert (fused.producer_name, fused.doc_string) == (original.producer_name, original.doc_string)


def test_nodes_carry_what_tensorrt_looks_for() -> None:
    for node in fuse(exported()).model.graph.node:
        if node.domain == DOMAIN:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            assert {name: attributes[name].decode() for name in NODE_MARKERS} == NODE_MARKERS


def test_one_function_for_each_op_type() -> None:
    model = fuse(exported("fill-mask")).model
    assert sorted(f.name for f in model.functions) == sorted(counts(model))
    assert model.ir_version == onnx.load(exported("fill-mask")).ir_version < 10


def test_without_functions_only_the_library_runs_it(library) -> None:
    model = fuse(exported(), functions=False).model
    assert not model.functions
    with pytest.raises(Exception, match=r"bertfuse"):
        session(model)
    feed = inputs(2, 9)
    for got, want in zip(run(session(model, library), feed), run(session(str(exported())), feed), strict=True):
        np.testing.assert_allclose(got, want, **TOLERANCE)


@pytest.mark.parametrize("level", ["full", "basic"])
def test_fusing_twice_changes_nothing(level: str, tmp_path) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    first = fuse_file(exported(), once, level=level)
    second = fuse_file(once, twice, level=level)
    assert once.read_bytes() == twice.read_bytes()
    assert second.fused == second.expected == first.fused
    assert "already" in second.messages[0]


def test_the_models_given_are_not_changed() -> None:
    model = onnx.load(exported())
    before = model.SerializeToString(deterministic=True)
    fuse(model, dtype="fp16")
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp16", 3e-2), ("bf16", 2e-1)])
def test_conversion(dtype: str, tolerance: float, library) -> None:
    """Half precision through the library; outputs of order 1 after two layers keep two digits, or one."""
    element = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[dtype]
    model = fuse(exported(), dtype=dtype).model
    assert {value.type.tensor_type.elem_type for value in model.graph.output} == {element}
    floats = {t.data_type for t in model.graph.initializer} & {TensorProto.FLOAT, TensorProto.DOUBLE}
    assert not floats
    onnx.checker.check_model(model, full_check=True)
    if dtype == "bf16":
        return  # onnxruntime's CPU provider has no bfloat16 MatMul for the packed product; the ops are tested alone
    feed = inputs(2, 9)
    want = run(session(str(exported())), feed)
    for runner in (session(model), session(model, library)):
        for got, expected in zip(run(runner, feed), want, strict=True):
            assert got.dtype == np.float16
            assert np.abs(got.astype(np.float32) - expected).max() < tolerance


def test_converting_to_what_it_is_changes_nothing() -> None:
    assert fuse(exported(), dtype="fp32").model == fuse(exported()).model


@pytest.mark.parametrize("options", [{"level": "most"}, {"dtype": "fp8"}])
def test_an_unknown_option_names_the_choices(options: dict[str, str]) -> None:
    with pytest.raises(BertfuseError, match=r"is unknown; choose one of .*(full|fp16)"):
        fuse(exported(), **options)


def test_progress_names_the_steps(tmp_path) -> None:
    steps: list[str] = []
    fuse_file(exported(), tmp_path / "out.onnx", progress=steps.append)
    assert steps[0] == "read" and steps[-1] == "write" and len(steps) > 3
