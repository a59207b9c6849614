"""Models that other tools quantised: fused whole where the formula is an op's, and equal; else refused by node."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import bertfuse
from bertfuse.graph_rewrite import explain, fuse_file
from bertfuse.graph_rewrite.io import load_model
from bertfuse.graph_rewrite.spec import DOMAIN
from tests import foreign_quantization as foreign
from tests import tiny_models

COUNT = 3


def _seeds() -> list[int]:
    start = int(os.environ.get("BERTFUSE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"BERTFUSE_TEST_SEED={start}")
    return [start + index for index in range(int(os.environ.get("BERTFUSE_TEST_COUNT", COUNT)))]


def _int8(source: Path, target: Path, rng: np.random.Generator) -> None:
    foreign.by_model_optimizer(source, target, rng, np.dtype(np.int8))


def _fp8(source: Path, target: Path, rng: np.random.Generator) -> None:
    foreign.by_model_optimizer(source, target, rng, np.dtype(ml_dtypes.float8_e4m3fn))


def _plain(path: Path, library: bool = False) -> onnxruntime.InferenceSession:
    if library:
        return bertfuse.InferenceSession(path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _apart(fused: Path, original: Path, folder: Path) -> tuple[Path, Path, list[str]]:
    """Both models with every output of a fused node that the original has, too, as an output; the fused one reads
    them as inputs: so no number on the border between two integers, which falls to the other side, is handed on.
    """
    model, theirs = load_model(fused), load_model(original)
    known = {name for node in theirs.graph.node for name in node.output}
    made = [n.output[0] for n in model.graph.node if n.domain == DOMAIN and n.output[0] in known]
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name in made:
                node.input[index] = f"{name}_given"
    for graph in (model.graph, theirs.graph):
        del graph.output[:]
        graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in made)
    for name in made:
        model.graph.input.append(onnx.helper.make_tensor_value_info(f"{name}_given", onnx.TensorProto.FLOAT, None))
    onnx.save(model, folder / "ours.onnx")
    onnx.save(theirs, folder / "theirs.onnx")
    return folder / "ours.onnx", folder / "theirs.onnx", made


def _check_equal(fused: Path, original: Path, folder: Path, seed: int) -> None:
    ours, theirs, names = _apart(fused, original, folder)
    assert len(names) >= 4
    reference = _plain(theirs)
    feed = tiny_models.inputs(3, 13, seed)
    feed = {value.name: feed[value.name] for value in reference.get_inputs()}
    expected = dict(zip(names, reference.run(names, feed), strict=True))
    given = feed | {f"{name}_given": array for name, array in expected.items()}
    for library in (False, True):
        session = _plain(ours, library)
        read = {value.name for value in session.get_inputs()}
        for name, got in zip(names, session.run(names, {n: a for n, a in given.items() if n in read}), strict=True):
            size = np.abs(expected[name]).max()
            assert np.abs(got - expected[name]).max() <= 2e-5 * max(size, 1), (seed, library, name)


FORMS = {"dynamic": foreign.dynamic, "static": foreign.static, "int8 pairs": _int8, "fp8 pairs": _fp8}


@pytest.mark.parametrize("form", FORMS)
def test_fused_whole_and_equal(form: str, tmp_path: Path) -> None:
    make: Callable = FORMS[form]
    source = tiny_models.exported()
    floats = explain(source)
    for seed in _seeds():
        options = make(source, tmp_path / "theirs.onnx", np.random.default_rng(seed))
        result = fuse_file(tmp_path / "theirs.onnx", tmp_path / "fused.onnx")
        assert result.fused == floats.fused == result.expected, (seed, options, result.misses)
        model = onnx.load(tmp_path / "fused.onnx")
        left = [node for node in model.graph.node if node.op_type in ("MatMulInteger", "MatMul", "DequantizeLinear")]
        readers = {(n.op_type, i) for n in model.graph.node for i, name in enumerate(n.input) for d in left
                   if name in d.output}  # fmt: skip
        # quantize_static has residuals rounded as well, for which an op has nothing.
        assert readers <= {("FusedGemmLayerNorm", 3)}, (seed, options, readers)
        (kind,) = (entry.value for entry in model.metadata_props if entry.key == "bertfuse.quantized")
        assert kind == ("fp8" if form == "fp8 pairs" else "int8")
        _check_equal(tmp_path / "fused.onnx", tmp_path / "theirs.onnx", tmp_path, seed)


def test_a_tensor_of_its_own_ends_keeps_its_padding(tmp_path: Path) -> None:
    """One scale for all rows, padding's too: without padding it would be another."""
    foreign.dynamic(tiny_models.exported(), tmp_path / "theirs.onnx", np.random.default_rng(1))
    result = fuse_file(tmp_path / "theirs.onnx", tmp_path / "fused.onnx", padding="remove")
    (report,) = (report for report in result.passes if report.changes_padding)
    assert not report.done and report.left, report


def test_half_precision(tmp_path: Path) -> None:
    """Scales stay float32, and what they are found of."""
    for make in (foreign.dynamic, foreign.static):
        make(tiny_models.exported(), tmp_path / "theirs.onnx", np.random.default_rng(2))
        fuse_file(tmp_path / "theirs.onnx", tmp_path / "half.onnx", dtype="fp16")
        fuse_file(tmp_path / "theirs.onnx", tmp_path / "single.onnx")
        feed = tiny_models.inputs(2, 9, 3)
        answers = []
        for name in ("half", "single"):
            session = bertfuse.InferenceSession(tmp_path / f"{name}.onnx")
            answers.append(session.run(None, {v.name: feed[v.name] for v in session.get_inputs()})[0].ravel())
        assert answers[0].dtype == np.float16
        cosine = (
            answers[0].astype(np.float64) @ answers[1] / np.prod([np.linalg.norm(a.astype(float)) for a in answers])
        )
        assert cosine > 0.99, make


def _refused(path: Path) -> str:
    result = explain(path)
    assert len(result.misses) == sum(result.expected.values()) - sum(result.fused.values())
    return " ".join(str(miss) for miss in result.misses)


def test_what_is_refused(tmp_path: Path) -> None:
    """By node, with what was found: another formula than the op's is no formula of the op's."""
    from onnxruntime import quantization

    source, target, rng = tiny_models.exported(), tmp_path / "theirs.onnx", np.random.default_rng(5)
    quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QUInt8)
    assert "of 0 to 255, expected 128" in _refused(target)
    foreign.static(source, target, rng, extra_options={})
    assert "our ops round what a product multiplies, and nothing else" in _refused(target)
    foreign.static(source, target, rng, nodes_to_exclude=[])
    assert "both of what it multiplies is rounded to 8 bits" in _refused(target)
    everything = {"extra_options": {}, "nodes_to_exclude": [], "op_types_to_quantize": None}
    foreign.static(source, target, rng, quant_format=quantization.QuantFormat.QOperator, **everything)
    assert "int8 quantised (QLinearSoftmax)" in _refused(target)
    assert "write QuantizeLinear and DequantizeLinear around products alone" in _refused(target)
    foreign.static(source, target, rng, activation_type=quantization.QuantType.QUInt16, extra_options={
        "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"], "UseQDQContribOps": False})  # fmt: skip
    assert "uint16" in _refused(target)


@pytest.mark.parametrize("name, value, wanted", [
    ("x_scale", 0.0, "a scale above 0"),
    ("x_scale", np.nan, "a scale above 0"),
    ("weight_scale", -1.0, "a scale above 0"),
    ("x_zero", 3, None),
    ("weight_zero", 3, None),
])  # fmt: skip
def test_scales_and_zeros_that_are_odd(name: str, value: float, wanted: str | None, tmp_path: Path) -> None:
    target = tmp_path / "theirs.onnx"
    foreign.by_model_optimizer(tiny_models.exported(), target, np.random.default_rng(5), np.dtype(np.int8))
    model = onnx.load(target)
    for tensor in model.graph.initializer:
        if tensor.name.endswith(f"_{name}"):
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.full(array.shape, value, array.dtype), tensor.name))
    onnx.save(model, target)
    if wanted is None:
        assert not fuse_file(target, tmp_path / "fused.onnx").misses
        _check_equal(tmp_path / "fused.onnx", target, tmp_path, 5)
    else:
        assert wanted in _refused(target)


def test_without_zero_points(tmp_path: Path) -> None:
    """What is rounded without one is unsigned, with 0 for 0."""
    source, target = tiny_models.exported(), tmp_path / "theirs.onnx"
    foreign.by_model_optimizer(source, target, np.random.default_rng(5), np.dtype(np.int8))
    model = onnx.load(target)
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.name.endswith(("_x/Q", "_x/DQ")):
            del node.input[2]
    onnx.save(model, target)
    result = fuse_file(target, tmp_path / "fused.onnx")
    assert not result.misses
    _check_equal(tmp_path / "fused.onnx", target, tmp_path, 5)
