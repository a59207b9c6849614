"""`bertfuse triton`: what it writes, that docs/deployment.md shows it, and its one line for mistakes.

That Triton loads it is tested in tests/ecosystem.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from bertfuse.serving.triton.config import Name, tensor, text
from bertfuse.serving.triton.repository import copy_onnx
from tests.checkpoints import save
from tests.commands import invoke, said
from tests.engine_stand_in import plan_of
from tests.tiny_models import sentence_files

BLOCKS = re.findall(
    r"```protobuf\n(.*?)```", (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(), re.DOTALL
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    base = tmp_path_factory.mktemp("triton")

    def folder(name: str) -> Path:
        padding = "ragged" if name == "ragged" else "keep"
        if not (base / name).exists():
            source = save("encoder", base / f"{name}-source")
            sentence_files(source, "Normalize")
            said("optimize", source, "-o", base / name, "--padding", padding, "--exporter", "torchscript")
        return base / name

    return folder


def test_the_documents_configurations_are_those_that_are_written(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    said("triton", folders("minilm"), "-o", tmp_path)
    said("triton", folders("ragged"), "-o", tmp_path, "--name", "minilm-ragged")
    engine = ("--backend", "tensorrt", "--plan", plan_of(tmp_path / "minilm.plan"), "--name", "engine")
    said("triton", folders("minilm"), "-o", tmp_path, *engine)
    padded, ragged, plan = (
        (tmp_path / name / "config.pbtxt").read_text() for name in ("minilm_onnx", "minilm-ragged_onnx", "engine_plan")
    )
    shown, batching = (block.replace("384", "32") for block in BLOCKS)
    assert padded == shown
    inputs = shown[shown.index("input [") : shown.index("output [")]
    allowed = re.sub(r".*attention_mask.*\n", "", inputs).replace(" }", " allow_ragged_batch: true }")
    before, ops, after = shown.replace("minilm", "minilm-ragged").replace(inputs, allowed).partition("model_operations")
    assert ragged == before + batching + ops + after
    without = re.sub(r"model_operations.*\n", "", shown.replace("minilm_onnx", "engine_plan"))
    for of_onnx, of_engine in {"onnxruntime": "tensorrt", "FP32": "FP16", "size: 64": "size: 24"}.items():
        without = without.replace(of_onnx, of_engine)
    assert plan == without


def test_an_engine_without_int64_is_sent_none(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """As TensorRT 8's, whose inputs are int32 where the model's are int64."""
    inputs = {name: {"dtype": "int32", "shape": [-1, -1]} for name in ("input_ids", "attention_mask", "token_type_ids")}
    plan = plan_of(tmp_path / "older.plan", inputs=inputs)
    said("triton", folders("minilm"), "-o", tmp_path / "models", "--backend", "tensorrt", "--plan", plan, "--name", "m")
    assert (tmp_path / "models" / "m_plan" / "config.pbtxt").read_text().count("TYPE_INT32") == 3
    called = json.loads((tmp_path / "models" / "m" / "1" / "pipeline.json").read_text())["runs"]
    assert [value["type"] for value in called["inputs"]] == ["tensor(int32)"] * 3


def test_a_cpu_server_gets_the_library_only_where_nothing_else_runs_the_model(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    bare = shutil.copytree(folders("minilm"), tmp_path / "bare")
    model = onnx.load(bare / "onnx" / "model.onnx")
    assert len(model.functions) > 0
    del model.functions[:]
    onnx.save(model, bare / "onnx" / "model.onnx")
    for folder, needed in ((folders("minilm"), False), (bare, True)):
        said("triton", folder, "-o", tmp_path / "repository", "--provider", "cpu")
        config = (tmp_path / "repository" / f"{folder.name}_onnx" / "config.pbtxt").read_text()
        assert "KIND_CPU" in config and ("op_library_filename" in config) == needed


def test_an_interrupted_or_repeated_command_leaves_no_half(folders: Callable[[str], Path], tmp_path: Path) -> None:
    said("triton", folders("minilm"), "-o", tmp_path / "new")
    before = {file: file.read_bytes() for file in (tmp_path / "new").rglob("*") if file.is_file()}
    result = invoke("triton", folders("minilm"), "-o", tmp_path / "new", code=2)
    assert "minilm: is there already; give another --name, or write over it with --overwrite" in result.stderr
    assert before == {file: file.read_bytes() for file in (tmp_path / "new").rglob("*") if file.is_file()}
    rtx = plan_of(tmp_path / "rtx.plan", backend="rtx")
    invoke("triton", folders("minilm"), "-o", tmp_path / "none", "--backend", "tensorrt", "--plan", rtx, code=2)
    assert not (tmp_path / "none").exists()


def test_mistakes(folders: Callable[[str], Path], tmp_path: Path) -> None:
    model = folders("minilm")
    plan = plan_of(tmp_path / "a.plan")
    other = plan_of(tmp_path / "b.plan", inputs={"ids": {"dtype": "int64", "shape": [-1, -1]}})
    alone = plan_of(tmp_path / "c.plan")
    alone.with_name("c.plan.json").unlink()
    for arguments, message in (
        (("--backend", "torch"), "--backend torch: choose from onnxruntime, tensorrt, python"),
        (("--plan", plan), "--plan FILE.plan goes with --backend tensorrt"),
        (("--backend", "tensorrt"), "--plan FILE.plan goes with --backend tensorrt"),
        (("--backend", "tensorrt", "--plan", tmp_path / "no.plan"), "no.plan: no such file"),
        (("--backend", "tensorrt", "--plan", alone), "has no c.plan.json beside it"),
        (("--backend", "tensorrt", "--plan", other), "b.plan: takes ids, unlike"),
        (("--name", "a/b"), "letters, digits, dots, - and _"),
        (("--provider", "tpu"), "provider 'tpu' is unknown"),
    ):
        result = invoke("triton", model, "-o", tmp_path / "out", *arguments, code=2)
        lines = [line for line in result.stderr.splitlines() if line.startswith("bertfuse:")]
        assert len(lines) == 1 and message in lines[0], result.stderr
        assert not (tmp_path / "out").exists()


def test_weights_beside_the_file_are_copied(tmp_path: Path) -> None:
    import numpy as np

    weight = onnx.numpy_helper.from_array(np.arange(600, dtype=np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [600])],
        [weight],
    )
    source = tmp_path / "model.fused.onnx"
    onnx.save(onnx.helper.make_model(graph), source, save_as_external_data=True, location="some.data", size_threshold=0)
    copy_onnx(source, tmp_path / "new" / "model.onnx")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"model.onnx", "some.data"}
    onnx.checker.check_model(tmp_path / "new" / "model.onnx")


def test_text_format() -> None:
    message = {
        "name": 'a"b',
        "input": [tensor("x", "tensor(float16)", ["n", 3])],
        "flag": True,
        "of": {"kind": Name("K")},
    }
    assert text(message) == (
        'name: "a\\"b"\ninput [\n  { name: "x" data_type: TYPE_FP16 dims: [ -1, 3 ] }\n]\nflag: true\nof { kind: K }\n'
    )
