"""What `bertfuse tune` measures, chooses and writes; measuring itself needs a GPU (tests/gpu/test_tuning.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed

import bertfuse
from bertfuse.analysis import tuning
from bertfuse.analysis.model_calls import model_calls
from bertfuse.analysis.tuning import Choice, TuningReport, choose, merged, tune
from bertfuse.errors import BertfuseError, RuntimeLibraryError
from bertfuse.export import export_model
from bertfuse.graph_rewrite import OPS, fuse_file
from bertfuse.graph_rewrite.ops import FAMILY_OPS, MODEL_OPS
from bertfuse.qualify.measure import Measured, problem_of
from bertfuse.qualify.problem import parse
from bertfuse.quantization import quantize
from bertfuse.runtime import native
from tests.foreign_quantization import static
from tests.tiny_models import HEADS, HIDDEN, LAYERS, build, exported, inputs


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tuning") / "model.fused.onnx"
    fuse_file(exported("fill-mask"), path, dtype="fp16")
    return path


def test_calls_of_a_model(fused: Path) -> None:
    calls = {(op, tuple(call.inputs[1].shape[:2])): (call, count) for op, call, count in model_calls(fused, 3, 7)}
    assert {op for op, _ in calls} == set(MODEL_OPS) - {"AddQKVBias", *FAMILY_OPS}
    call, count = calls["FusedGemmLayerNorm", (HIDDEN, 64)]
    assert count == LAYERS and call.tactic == -1
    residual, output = call.inputs[OPS["FusedGemmLayerNorm"].input_index("residual")], call.outputs[0]
    for tensor in (residual, output):
        assert (tensor.dtype, list(tensor.shape[: tensor.rank])) == (10, [3, 7, HIDDEN])
    assert call.constant_inputs == 0b110110  # weight, bias, gamma, beta
    call, _ = calls["FusedAttention", (3 * HIDDEN, 0)]
    assert call.attributes[0].i == HEADS and abs(call.attributes[1].f - (HIDDEN / HEADS) ** -0.5) < 1e-6
    assert call.inputs[2].dtype == 7 and list(call.inputs[2].shape[:2]) == [3, 7]


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_calls_of_a_model_without_padding(padding: str, tmp_path: Path) -> None:
    """As many rows as with padding, and the same products; attention of packed sequences."""
    fuse_file(exported("fill-mask"), tmp_path / "m.onnx", dtype="fp16", padding=padding)
    calls = {
        (op, tuple(call.inputs[1].shape[:2])): (call, count)
        for op, call, count in model_calls(tmp_path / "m.onnx", 3, 7)
    }
    leading = [3, 7] if padding == "remove" else [1, 21]
    call, count = calls["FusedGemmLayerNorm", (HIDDEN, 64)]
    assert count == LAYERS and list(call.outputs[0].shape[: call.outputs[0].rank]) == [*leading, HIDDEN]
    row_count = call.inputs[OPS["FusedGemmLayerNorm"].input_index("row_count")]
    assert (row_count.dtype, row_count.rank) == ((6, 0) if padding == "remove" else (native.ABSENT, 0))
    call, count = calls["FusedAttention", (3 * HIDDEN, 0)]
    offsets = call.inputs[OPS["FusedAttention"].input_index("cu_seqlens")]
    assert count == LAYERS and (offsets.dtype, list(offsets.shape[: offsets.rank])) == (6, [4])
    assert list(call.inputs[0].shape[:3]) == [*leading, 3 * HIDDEN] and call.inputs[2].dtype == native.ABSENT


@pytest.mark.parametrize(("to", "activations"), [("int8", "token"), ("int8", "tensor"), ("fp8", "token")])
def test_calls_of_a_quantized_model(to: str, activations: str, tmp_path: Path) -> None:
    """Each as a problem that workers can draw: of what weights, from what x, and in what y is written."""
    calibration = {name: np.concatenate([array] * 4) for name, array in inputs(4, 32).items()}
    plain = export_model(build(), tmp_path, opset=20, dtype="fp16")
    options = {"to": to, "activations": activations, "calibration": calibration, "results": True}
    quantize(plain, tmp_path / "m.onnx", **options)
    problems = [problem_of(op, call) for op, call, _ in model_calls(tmp_path / "m.onnx", 4, 32)]
    assert all(parse(str(problem)) == problem for problem in problems)
    weights = {"int8": "int8", "fp8": "float8e4m3fn"}[to]
    products = {p.op: p for p in problems if p.weights == weights}
    assert {"FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm"} <= set(products)
    assert products["FusedGemmGelu"].writes == weights
    assert "x_quantized" in products["FusedGemmGelu"].given
    norms = [p for p in problems if p.op == "FusedGemmLayerNorm" and p.writes]
    assert norms and all(("y_tensor_scale" in p.without) == (activations == "token") for p in norms)
    assert next(p for p in problems if p.op == "FusedAttention").writes == weights


def test_a_model_of_fixed_size(fused: Path, tmp_path: Path) -> None:
    model = onnx.load(fused)
    make_dim_param_fixed(model.graph, "sequence", 16)
    onnx.save(model, tmp_path / "fixed.onnx")
    assert model_calls(tmp_path / "fixed.onnx", 2, 16)
    with pytest.raises(BertfuseError, match="has a fixed size of 16, not 8"):
        model_calls(tmp_path / "fixed.onnx", 2, 8)


def test_refused(fused: Path, tmp_path: Path) -> None:
    with pytest.raises(BertfuseError, match="has no fused op"):
        model_calls(exported("fill-mask"), 1, 8)
    with pytest.raises(BertfuseError, match=r"no CUDA kernels|there is no GPU 99"):
        tune(fused, [(1, 8)], tmp_path / "tuning.tsv", device=99)
    assert not (tmp_path / "tuning.tsv").exists()
    with pytest.raises(BertfuseError, match="no tactic runs"):
        choose("FusedGemmGelu float16 1x1x1", [])


def test_only_a_real_gain_is_chosen() -> None:
    assert choose("p", [("fast", 8.0, False), ("slow", 10.0, True)]).tactic == "fast"
    kept = choose("p", [("fast", 9.2, False), ("slow", 10.0, True), ("slower", 11.0, False)], launches=4)
    assert kept == Choice("p", "slow", 10.0, "slow", 10.0, 3, 4)


def report(device: str, *choices: tuple[str, str]) -> TuningReport:
    return TuningReport("", device, [Choice(problem, tactic, 1.0, "mma", 2.0, 2, 1) for problem, tactic in choices])


def test_rows_of_other_devices_and_problems_stay(tmp_path: Path) -> None:
    path = tmp_path / "tuning.tsv"
    path.write_text(merged(path, report("GPU A", ("p", "x"), ("q", "y"))))
    path.write_text(merged(path, report("GPU B", ("p", "z"))))
    text = merged(path, report("GPU A", ("p", "w")))
    rows = [line.split("\t") for line in text.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["GPU A", "p", "w"], ["GPU A", "q", "y"], ["GPU B", "p", "z"]]
    assert text.splitlines()[0] == tuning.HEADER and all(len(row) == 5 for row in rows)
    # What another release measured says nothing of this one; what is no tuning file is not ours to write.
    path.write_text(text.replace(tuning.HEADER, "bertfuse tuning 1, library 0.0.1"))
    assert merged(path, report("GPU B", ("p", "z"))).count("GPU") == 1
    path.write_text("a shopping list\n")
    with pytest.raises(BertfuseError, match="is not a tuning file, so it is left as it is"):
        merged(path, report("GPU A", ("p", "x")))


def test_rows_that_the_library_does_not_take_are_left_out(
    fused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is measured, and nothing else is."""

    def read(text: str, name: str) -> str:
        rows = [line.split("\t") for line in text.splitlines()[1:]]
        if any(len(row) < 3 for row in rows):
            raise native.NativeError("no row")
        strange = any(row[0] in gpus and row[2] == "gone" for row in rows)
        return "not here" if strange or not any(row[0] in gpus for row in rows) else ""

    def measure(*_: object) -> Measured:
        return Measured([("mma", 1.0, True)], {"simt": "wrong: y is not what it should be"})

    gpus, path = ["GPU A", "GPU B"], tmp_path / "tuning.tsv"
    monkeypatch.setattr(tuning, "_gpus", lambda device: gpus)
    monkeypatch.setattr(native, "read_tuning", read)
    monkeypatch.setattr(native, "problem", lambda op, call: op if op == "FusedAttention" else None)
    monkeypatch.setattr(tuning.Measurer, "measure", measure)
    rows = [f"{device}\t{problem}\t{tactic}" for device in ("GPU A", "GPU B", "GPU C")
            for problem, tactic in (("p", "here"), ("q", "gone"))]  # fmt: skip
    path.write_text("\n".join([tuning.HEADER, *rows, "half a row"]))
    found = tune(fused, [(1, 8)], path)
    assert found.left_out == ["GPU A\tq\tgone", "GPU B\tq\tgone", "half a row"]
    assert found.rejected == {"FusedAttention": {"simt": "wrong: y is not what it should be"}}
    kept = [row for row in rows if row not in found.left_out]
    assert path.read_text().splitlines()[2:] == [*kept, "GPU A\tFusedAttention\tmma\t1.00\t1.00"]
    assert tune(fused, [(1, 8)], path).left_out == []


def test_activations_with_a_zero_point_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no CUDA kernel; everything else of the model is measured."""
    options = {"OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"], "ActivationSymmetric": False}
    static(exported("fill-mask"), tmp_path / "qdq.onnx", np.random.default_rng(0), extra_options=options)
    fuse_file(tmp_path / "qdq.onnx", tmp_path / "m.onnx")
    monkeypatch.setattr(tuning, "_gpus", lambda device: ["GPU"])
    monkeypatch.setattr(tuning, "_not_taken", lambda path, gpus: [])
    monkeypatch.setattr(native, "problem", lambda op, call: op)
    monkeypatch.setattr(tuning.Measurer, "measure", lambda *_: Measured([("mma", 1.0, True)]))
    said: list[str] = []
    found = tune(tmp_path / "m.onnx", [(4, 32)], tmp_path / "tuning.tsv", progress=said.append)
    measured = {choice.problem for choice in found.choices}
    assert "FusedGemmGelu" not in measured and "FusedAttention" in measured
    (line,) = (line for line in said if line.startswith("Leaving "))
    assert line.endswith(" products of activations with a zero point: they have no CUDA kernel")


def test_the_library_is_asked_about_rows(tmp_path: Path) -> None:
    path = tmp_path / "tuning.tsv"
    path.write_text(merged(path, report("GPU A", ("FusedGemmGelu float16 8x8x8", "gone"))) + "half a row\n")
    if native.gpu_architectures():
        assert tuning._not_taken(path, []) == ["half a row"]
        with pytest.raises(native.NativeError, match="line 4 is not a row"):
            native.read_tuning(path.read_text(), "tuning.tsv")
    assert native.read_tuning(tuning.HEADER + " and a half", "tuning.tsv")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("num_heads", None, "missing, expected int"),
        ("num_heads", 2.0, "of type float, expected int"),
        ("scale", 1, "of type int, expected float"),
        ("scale", [0.5], "of type floats, expected float"),
    ],
)
def test_attributes_that_the_op_does_not_have(
    name: str, value: object, found: str, fused: Path, tmp_path: Path
) -> None:
    model = onnx.load(fused)
    node = next(node for node in model.graph.node if node.op_type == "FusedAttention")
    node.attribute.remove(next(attribute for attribute in node.attribute if attribute.name == name))
    if value is not None:
        node.attribute.append(onnx.helper.make_attribute(name, value))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(BertfuseError, match=f"node '{node.name}': FusedAttention: attribute '{name}' is {found}"):
        model_calls(tmp_path / "m.onnx", 1, 8)


def test_a_session_says_what_is_wrong_with_its_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BertfuseError, match=r"nothing\.tsv: the tuning file cannot be read"):
        bertfuse.register(onnxruntime.SessionOptions(), tuning=tmp_path / "nothing.tsv")
    path = tmp_path / "tuning.tsv"
    path.write_text(merged(path, report("GPU A", ("FusedGemmGelu float16 8x8x8", "mma"))))
    for _ in range(2):
        bertfuse.register(onnxruntime.SessionOptions(), tuning=path)
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "tuning.tsv: ignored what does not fit: " in said, said


def test_tf32_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_TF32", "yes")
    with pytest.raises(BertfuseError, match="is 'yes', expected '0' or '1'"):
        bertfuse.register(onnxruntime.SessionOptions())
    bertfuse.register(onnxruntime.SessionOptions(), tf32=True)


@pytest.mark.parametrize("setting", ["row_hints", "deterministic_rows", "cublaslt"])
def test_other_settings_are_0_or_1(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"BERTFUSE_{setting.upper()}", "yes")
    with pytest.raises(BertfuseError, match=f"bertfuse.{setting} .*is 'yes', expected '0' or '1'"):
        bertfuse.register(onnxruntime.SessionOptions())


def test_the_library_says_what_it_holds(tmp_path: Path) -> None:
    names = native.gpu_architectures()
    assert all(name[:2].isdigit() for name in names)
    assert (native.find_kernel("FusedAttention") is not None) == bool(names)
    kernel = native.find_kernel("FusedAttention", native.CPU)
    assert kernel is not None and kernel.op == b"FusedAttention"
    assert native.find_kernel("Nothing", native.CPU) is None
    with pytest.raises(RuntimeLibraryError, match="is not a library of this release"):
        native.gpu_architectures("libc.so.6")
