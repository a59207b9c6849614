"""A whole model against its original: on the CPU here, with the library's kernels; on a GPU by the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from bertfuse.cli import app
from bertfuse.qualify import whole
from bertfuse.qualify.whole import whole_model
from tests.tiny_models import exported


def test_a_right_model_has_no_findings() -> None:
    report = whole_model(Path(exported("fill-mask")), provider="cpu", dtypes=("fp32", "fp16"), sizes=5, seed=3)
    assert len(report.runs) == 2 * (5 + 5 + 3) and not report.findings and not report.absent
    assert {run.dtype for run in report.runs} == {
        f"{d}{p}" for d in ("fp32", "fp16") for p in ("", " remove", " ragged")
    }
    assert {(run.batch, run.sequence) for run in report.runs} >= {(1, 1), (200, 2)}
    assert max(run.error for run in report.runs if run.dtype == "fp16") > 1e-6  # it was not float32 that ran


def test_a_wrong_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that fusion would have changed."""
    fuse = whole.fuse_file

    def spoilt(source: Path, target: Path, **options: object) -> object:
        result = fuse(source, target, **options)
        model = onnx.load(str(target))
        weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
        array = numpy_helper.to_array(weight).copy()
        array[: len(array) // 2] *= np.float32(1.5)
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
        onnx.save(model, str(target))
        return result

    monkeypatch.setattr(whole, "fuse_file", spoilt)
    report = whole_model(Path(exported("fill-mask")), provider="cpu", dtypes=("fp32",), sizes=3, seed=3)
    assert {run.dtype for run in report.findings} == {"fp32", "fp32 remove", "fp32 ragged"}
    assert report.findings and "of the largest output off" in report.findings[0].wrong


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_a_row_beside_the_real_ones_is_found(padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that are cut one row too early, in the packed model alone."""
    fuse = whole.fuse_file

    def spoilt(source: Path, target: Path, **options: object) -> object:
        result = fuse(source, target, **options)
        model = onnx.load(str(target))
        (packed,) = {node.input[3] for node in model.graph.node if node.op_type == "FusedAttention"}
        shift = onnx.helper.make_node("Sub", [packed, "one_at_the_end"], ["cut"])
        one = onnx.helper.make_node("Constant", [], ["one"], value_ints=[1])
        model.graph.node.extend(
            [
                one,
                onnx.helper.make_node("Shape", [packed], ["length"]),
                onnx.helper.make_node("Sub", ["length", "one"], ["last"]),
                onnx.helper.make_node("ConstantOfShape", ["last"], ["zeros"]),
                onnx.helper.make_node("Cast", ["one"], ["one_32"], to=onnx.TensorProto.INT32),
                onnx.helper.make_node("Cast", ["zeros"], ["zeros_32"], to=onnx.TensorProto.INT32),
                onnx.helper.make_node("Concat", ["zeros_32", "one_32"], ["one_at_the_end"], axis=0),
                shift,
            ]
        )
        for node in model.graph.node:
            if node.op_type == "FusedAttention":
                node.input[3] = "cut"
        onnx.save(model, str(target))
        return result

    monkeypatch.setattr(whole, "fuse_file", spoilt)
    path = Path(exported("fill-mask"))
    report = whole_model(path, provider="cpu", dtypes=("fp32",), paddings=(padding,), sizes=4, seed=3)
    assert report.findings and not report.absent


def test_what_cannot_be_packed_is_said_and_not_run(tmp_path: Path) -> None:
    """A model without a mask has no padding to remove."""
    model = onnx.load(exported("fill-mask"))
    inputs = [value for value in model.graph.input if value.name != "attention_mask"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    ones = onnx.helper.make_tensor("ones", onnx.TensorProto.INT64, [1], [1])
    model.graph.node.insert(0, onnx.helper.make_node("ConstantOfShape", ["ids_shape"], ["attention_mask"], value=ones))
    model.graph.node.insert(0, onnx.helper.make_node("Shape", ["input_ids"], ["ids_shape"]))
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    report = whole_model(path, provider="cpu", dtypes=("fp32",), sizes=2, seed=3)
    assert not report.findings and {run.dtype for run in report.runs} == {"fp32"}
    assert "has no mask" in report.absent["fp32 remove"] and "is not possible" in report.absent["fp32 ragged"]


def test_a_device_without_packed_kernels_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def run(self, *_: object) -> None:
            raise RuntimeError("FusedGemm: packed rows are not yet supported by the CUDA kernels: input 'row_count'")

    session = whole._session

    def refusing(*arguments: object) -> object:
        return session(*arguments) if arguments[3] == "keep" else Refusing()

    monkeypatch.setattr(whole, "_session", refusing)
    report = whole_model(Path(exported("fill-mask")), provider="cpu", dtypes=("fp32",), sizes=2, seed=3)
    assert not report.findings and {run.dtype for run in report.runs} == {"fp32"}
    assert set(report.absent) == {"fp32 remove", "fp32 ragged"} and "not supported" in report.absent["fp32 remove"]


def test_a_model_too_large_for_mutants_is_reported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertfuse.qualify.mutants.hunting._MOST_BYTES", 0)
    monkeypatch.setattr("bertfuse.cli.qualify._FEW", 1)
    result = CliRunner().invoke(app, ["qualify", str(exported("fill-mask")), "--seed", "3"])
    assert result.exit_code == 0, result.output
    assert "Whole model in fp32 on cpu, seed 3: largest error" in result.stdout
    assert "Mutants: not run: " in result.stdout and "copies take long" in result.stdout
