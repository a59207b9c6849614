"""Several models at once, how each is run, engines' limits, bisection, and the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from bertfuse.analysis.compare_page import render
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.measuring import compare
from bertfuse.measuring import subjects as subjects_module
from bertfuse.measuring.compare import compare_models, compare_subjects
from bertfuse.measuring.subjects import Subject
from bertfuse.runtime.trt import build_engine
from bertfuse.runtime.trt import run as engine_run
from tests.engines import fused, ops_in
from tests.tiny_models import exported


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fused") / "model.fused.onnx"
    fuse_file(exported(), path)
    return path


def with_changed_weight(source: Path, target: Path, op: str, index: int, factor: float) -> str:
    """A copy whose `index`th node of that op has its bias scaled; returns the node's output."""
    model = onnx.load(source)
    node = [node for node in model.graph.node if node.domain == DOMAIN and node.op_type == op][index]
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[2])
    changed = onnx.numpy_helper.to_array(bias) * np.float32(factor)
    bias.CopyFrom(onnx.numpy_helper.from_array(changed, bias.name))
    onnx.save(model, target)
    return node.output[0]


def test_what_an_engine_lacks_is_said_before_the_others_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "model.plan"
    build_engine(model, plan, backend="rtx", shapes=["1x1:2x8:4x40"])
    subjects = [Subject.parse(str(file)) for file in (exported(), model, plan)]
    monkeypatch.setattr(engine_run, "compute_capability", lambda: None)
    monkeypatch.setattr(compare, "run_and_compare", lambda *_: pytest.fail("a model ran"))
    with pytest.raises(BertfuseError, match=r"model\.plan: running an engine needs an NVIDIA GPU"):
        compare_subjects(subjects)


def test_subjects_from_text(model: Path, tmp_path: Path) -> None:
    assert Subject.parse(str(model)) == Subject(model, ("CPUExecutionProvider",))
    assert Subject.parse(f"{model}@cpu+library").library == "always"
    assert Subject.parse(str(model), library="never").library == "never"
    assert [str(Subject.parse(f"{model}{how}")) for how in ("@cpu", "@cpu+library")] == [
        str(model),
        f"{model} (cpu+library)",
    ]
    odd = tmp_path / "odd@cpu"
    odd.write_bytes(b"")
    assert Subject.parse(str(odd)).path == odd
    with pytest.raises(BertfuseError, match="choose one of cpu, cpu\\+library, cuda, cuda-library"):
        Subject.parse(f"{model}@tpu")
    (tmp_path / "m.plan").write_bytes(b"")
    with pytest.raises(BertfuseError, match=r"m\.plan@cuda: an engine runs in TensorRT .*leave @cuda out"):
        Subject.parse(f"{tmp_path}/m.plan@cuda")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(BertfuseError, match="this onnxruntime has no CUDAExecutionProvider"):
            Subject.parse(f"{model}@cuda")


def test_several_against_the_first(model: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    fuse_file(exported(), half, dtype="fp16")
    subjects = [Subject(exported()), Subject(model), Subject(model, library="always"), Subject(half)]
    bodies, kernels, rounded = compare_subjects(subjects, per_node=True)
    assert all(comparison.passed for comparison in (bodies, kernels, rounded))
    assert kernels.other == f"{model} (cpu+library)" and {entry.dtype for entry in rounded.outputs} == {"float16"}
    assert max(bodies.outputs[0].absolute, kernels.outputs[0].absolute) < rounded.outputs[0].absolute
    assert len(bodies.tensors) == len(rounded.tensors) > 9


@pytest.mark.parametrize("op", ["FusedGemmGelu", "FusedGemmLayerNorm"])
@pytest.mark.parametrize("index", [0, 1])
def test_bisection_finds_the_node_that_was_changed(op: str, index: int, model: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.onnx"
    output = with_changed_weight(model, wrong, op, index, 1.5)
    comparison = compare_models(exported(), wrong, bisection=True)
    found = comparison.bisection
    assert not comparison.passed and found is not None and found.tensor == output
    assert [node.split(" (")[1] for node in found.nodes] == [f"{op})"]
    assert found.own is not None and not found.own.passed and found.difference is not None
    assert found.own.absolute == pytest.approx(found.difference.absolute, rel=0.05)
    assert found.runs <= 6  # of 12 tensors: the outputs once, then halves
    assert comparison.to_dict()["bisection"]["tensor"] == output


def test_bisection_tells_rounding_that_adds_up(model: Path) -> None:
    """With a tolerance between one op's rounding and two layers' the first tensor beyond it is not at fault."""
    per_node = compare_models(exported(), model, library="always", per_node=True, atol=0.0, rtol=0.0)
    errors = [entry.absolute for entry in per_node.tensors]
    atol = sorted(errors)[len(errors) // 2]
    found = compare_models(exported(), model, library="always", bisection=True, atol=atol, rtol=0.0).bisection
    assert found is not None and found.tensor and found.own is not None and found.difference is not None
    assert found.own.absolute <= found.difference.absolute + atol
    agreeing = compare_models(exported(), model, library="always", bisection=True).bisection
    assert agreeing is not None and agreeing.tensor == "" and agreeing.nodes == ()


def test_engines_bound_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine itself needs a GPU; here ONNX Runtime stands in for it, and sees which shapes it would be given."""
    source = fused("bert", tmp_path)
    plan = tmp_path / "model.plan"
    shapes = ["3x10:4x12:5x20"]
    build_engine(source, plan, backend="rtx", plugins=False, expose=True, shapes=shapes)
    engine = Subject(plan)
    assert engine.is_engine and engine.bounds() == ((3, 10), (5, 20)) and str(engine) == f"{plan} (TensorRT)"
    with pytest.raises(BertfuseError, match=rf"{plan}: .*GPU|{plan}: built for"):
        compare_subjects([Subject(source), engine])
    with pytest.raises(BertfuseError, match="cannot be bisected; bisect the fused file"):
        compare_subjects([Subject(source), engine], bisection=True)
    monkeypatch.setattr(Subject, "runner", lambda self, prefix, file=None: _stand_in(source, prefix, file))
    (comparison,) = compare_subjects([Subject(source), engine], per_node=True)
    assert comparison.passed and comparison.outputs[0].shape[:2] in {(3, 10), (3, 20)}
    # What the engine was built to put out: every fused op's tensor, and the logits if they are none of them.
    assert len(comparison.tensors) in (sum(ops_in(source).values()), sum(ops_in(source).values()) + 1)
    with pytest.raises(BertfuseError, match="is an engine; name the ONNX file first"):
        compare_subjects([engine, Subject(source)], per_node=True)
    Path(f"{plan}.json").unlink()
    with pytest.raises(BertfuseError, match=r"model\.plan\.json is missing beside it"):
        compare_subjects([Subject(source), engine])


def _stand_in(source: Path, prefix: str, file: Path | None) -> Any:
    path = file if file is not None and file.suffix == ".onnx" else source
    if path == source:  # in the engine's place: with what it was built to put out
        from bertfuse.measuring.tensors import computed_tensors, expose

        path = source.with_name("exposed.onnx")
        expose(source, computed_tensors(source), path)
    return subjects_module.session_runner(path, prefix)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "circle"):
            assert self.open.pop() == tag


def test_page(model: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "<wrong>&.onnx"
    output = with_changed_weight(model, wrong, "FusedGemmGelu", 0, 1.5)
    comparisons = compare_subjects([Subject(exported()), Subject(model), Subject(wrong)], per_node=True, bisection=True)
    text = render(comparisons)
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|url\(|src=", text)  # nothing is loaded
    assert "&lt;wrong&gt;&amp;.onnx" in text and "<wrong>" not in text
    dots = [attributes for tag, attributes in page.tags if tag == "circle"]
    assert len(dots) == sum(len(comparison.tensors) for comparison in comparisons)
    assert sum(dot["class"] == "bad" for dot in dots) == sum(not entry.passed for entry in comparisons[1].tensors) > 0
    assert f"{output} differs first" in text and "beyond tolerance by themselves" in text
    for entry in comparisons[1].outputs:
        assert f"{entry.absolute:.2e}" in text and f"{entry.relative:.2e}" in text and f"{entry.cosine:.8f}" in text
