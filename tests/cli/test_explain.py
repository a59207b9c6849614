"""bertfuse explain and bertfuse report, and the --report of fuse and optimize."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from bertfuse.graph_rewrite import fuse_file
from tests.commands import invoke
from tests.tiny_models import LAYERS, exported, save_checkpoint


def test_explain_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is exported for that, and nothing of it stays."""
    source = save_checkpoint(tmp_path / "checkpoint")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = sorted(tmp_path.rglob("*"))
    report = json.loads(invoke("explain", source, "--json").stdout)
    assert report["fused"]["FusedAttention"] == LAYERS and report["model"] == str(source)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """model.onnx of a BERT whose first layer's attention squares its scores and whose second layer scales them."""
    model = onnx.load(exported("feature-extraction", "dynamo", "eager"))
    for layer, softmax in enumerate([node for node in model.graph.node if node.op_type == "Softmax"]):
        name, made = f"constant_{layer}", f"changed_{layer}"
        model.graph.initializer.append(onnx.helper.make_tensor(name, 1, [], [2.0]))
        changed = onnx.helper.make_node(("Pow", "Div")[layer], [softmax.input[0], name], [made], name=f"extra_{layer}")
        model.graph.node.insert(list(model.graph.node).index(softmax), changed)
        softmax.input[0] = made
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_explain_walks_the_layers(broken: Path) -> None:
    lines = invoke("explain", broken).stdout.splitlines()
    headings = [line for line in lines if not line.startswith(" ")]
    assert headings[: LAYERS + 1] == ["embeddings", "layer 1", "layer 2"]
    first = lines[lines.index("layer 1") + 1 : lines.index("layer 2")]
    assert first[0].split()[:2] == ["FusedAttention", "missed"]
    assert first[1].split(maxsplit=2)[:2] == ["broke", "at"] and "extra_0: Pow to 2 between " in first[1]
    assert first[2].split() == ["found", "Pow", "of", "the", "scores"] and first[3].split()[0] == "expected"
    assert [line.split()[:2] for line in first[4:]] == [
        ["FusedGemmLayerNorm", "matched"], ["FusedGemmGelu", "matched"], ["FusedGemmLayerNorm", "matched"],
    ]  # fmt: skip
    second = lines[lines.index("layer 2") + 1 :]
    assert second[0].split()[:2] == ["FusedAttention", "matched"] and "num_heads 4, scale 0.176777" in second[0]
    assert second[1].split(maxsplit=1) == ["note", "scale 0.176777 = 1/5.65685, expected 1/sqrt(8); kept as it is"]
    assert "8 of 9 expected ops match in 2 layers" in lines[-1]
    assert list(broken.parent.iterdir()) == [broken]


def test_explain_as_json(broken: Path) -> None:
    result = invoke("explain", broken.parent, "--json")
    report = json.loads(result.stdout)
    assert result.stderr == "" and report["layers"] == LAYERS and report["model"] == str(broken)
    parts = {(part["layer"], part["op"]): part for part in report["parts"]}
    miss = parts[1, "FusedAttention"]["miss"]
    assert miss["node"] == "extra_0" and miss["found"] == "Pow of the scores" and miss["layer"] == 1
    assert miss["reason"] == f"{miss['found']}, expected {miss['wanted']}"
    assert parts[2, "FusedAttention"]["miss"] is None and parts[2, "FusedAttention"]["note"]
    basic = json.loads(invoke("explain", broken, "--level", "basic", "--json").stdout)
    assert {part["op"] for part in basic["parts"]} >= {"AddQKVBias"} and "EmbedLayerNorm" not in basic["expected"]


def test_explain_a_fused_model(tmp_path: Path) -> None:
    fuse_file(exported(), tmp_path / "fused.onnx")
    assert "holds bertfuse ops already" in invoke("explain", tmp_path / "fused.onnx").stdout


def test_explain_with_kernels(tmp_path: Path) -> None:
    """Which kernels run needs a GPU; tests/plugins/test_launches.py has the answer for one that is not there."""
    fuse_file(exported(), tmp_path / "fused.onnx")
    for arguments, said in (
        (["--shapes", "1x"], "--shapes '1x': write batch x sequence"),
        (["--shapes", "1x8", "--device", 99], "there is no GPU 99 to choose for"),
    ):
        result = invoke("explain", tmp_path / "fused.onnx", *arguments, code=2)
        assert said in " ".join(result.stderr.split()), result.stderr


def test_report(broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse_file(broken, tmp_path / "model.fused.onnx")
    monkeypatch.chdir(tmp_path)
    assert invoke("report", tmp_path, "--seconds", 0).stdout.split() == ["Wrote", "report.html"]
    assert "extra_0: Pow to 2 between " in (tmp_path / "report.html").read_text(encoding="utf-8")
    target = tmp_path / "elsewhere" / "page.html"
    said = json.loads(invoke("report", tmp_path, "-o", target, "--sizes", "1x4", "--seconds", 0.01, "--json").stdout)
    assert said == {"page": str(target)} and "1 x 4" in target.read_text(encoding="utf-8")


def test_the_page_beside_what_fuse_and_optimize_write(tmp_path: Path) -> None:
    result = invoke("fuse", exported(), "-o", tmp_path / "small.onnx", "--report")
    assert f"Wrote {tmp_path / 'small.onnx'} and {tmp_path / 'small.html'}" in " ".join(result.stdout.split())
    source = save_checkpoint(tmp_path / "source")
    arguments = ("optimize", source, "-o", tmp_path / "out", "--exporter", "torchscript", "--report", "--json")
    said = json.loads(invoke(*arguments).stdout)
    assert said["report"] == str(tmp_path / "out" / "report.html")
    for page in (tmp_path / "small.html", tmp_path / "out" / "report.html"):
        assert "Everything that was expected was fused" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "absent.onnx"], "absent.onnx: no such file"),
        (["explain", "empty"], "holds neither"),
        (["explain", "text.onnx"], "text.onnx: not an ONNX model"),
        (["explain", "model.onnx", "--level", "most"], "level 'most' is unknown"),
        (["report", "absent"], "absent: has no model, needs both onnx/model.onnx.original and"),
        (["report", "."], ".: has model.onnx alone, needs both"),
        (["report", "both", "--sizes", "4"], "--sizes '4'"),
        (["report", "both", "-o", "text.onnx/page.html"], "page.html: cannot be written"),
    ],
)
def test_bad_input(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "both"):
        folder.mkdir(exist_ok=True)
        (folder / "model.onnx").write_bytes(exported().read_bytes())
    fuse_file(exported(), tmp_path / "both" / "model.fused.onnx")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.onnx").write_text("This is a text, no model.\n" * 50)
    before = sorted(tmp_path.rglob("*"))
    timing = ["--seconds", "0"] if arguments[0] == "report" else []
    result = invoke(*arguments, *timing, code=2)
    lines = [line for line in result.stderr.splitlines() if not line.startswith(("done ", "failed "))]
    assert len(lines) == 1 and lines[0].startswith("bertfuse: ") and message in lines[0], result.stderr
    assert sorted(tmp_path.rglob("*")) == before
