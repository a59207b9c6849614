"""--padding and --output-rows of fuse, optimize and explain; models with packed rows where they cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.commands import invoke
from tests.tiny_models import LAYERS, exported, save_checkpoint


def _padding(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_fuse_says_what_was_packed_and_compare_takes_it(padding: str, tmp_path: Path) -> None:
    target = tmp_path / "packed.onnx"
    said = invoke("fuse", exported(), "-o", target, "--padding", padding, "--strict").stdout
    assert f"{LAYERS} of {LAYERS} attentions among them" in said
    assert "rows that outputs need: left as it is" in said
    assert _padding(target)["bertfuse.padding"] == padding
    # The file says that it is packed, so a comparison leaves padding out, and says so.
    assert "places are padding" in invoke("compare", exported(), target).stdout


def test_fuse_as_json_and_output_rows(tmp_path: Path) -> None:
    source = exported("text-classification")
    said = json.loads(invoke("fuse", source, "-o", tmp_path / "rows.onnx", "--output-rows", "--json").stdout)
    layers, report = said["passes"]
    assert layers["done"] == ["FusedGemm computes /model/bert/pooler/dense/Gemm, /model/classifier/Gemm"]
    assert report["done"] == ["3 nodes run for the first row of each sequence alone"]
    assert "bertfuse.padding" not in _padding(tmp_path / "rows.onnx")
    shown = invoke("compare", source, tmp_path / "rows.onnx").stdout
    assert "agrees" in shown or "equal bits" in shown


def test_strict_wants_padding_removed(tmp_path: Path) -> None:
    arguments = ["fuse", exported(), "-o", tmp_path / "basic.onnx", "--level", "basic", "--padding", "remove"]
    assert "left as it is: there is no FusedAttention" in invoke(*arguments).stdout
    invoke(*arguments, "--strict", "--overwrite", code=1)


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "none.onnx"
    for arguments, reason in (
        (["--padding", "none"], "padding 'none' is unknown; choose one of keep, remove, ragged"),
        (["--padding", "ragged", "--level", "basic"], "padding 'ragged' is not possible: there is no FusedAttention"),
    ):
        assert reason in " ".join(invoke("fuse", exported(), "-o", target, *arguments, code=2).stderr.split())
        assert not target.exists()


def test_optimize_compares_without_padding(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    arguments = ["optimize", checkpoint, "-o", tmp_path / "made", "--exporter", "torchscript", "--padding", "remove"]
    said = json.loads(invoke(*arguments, "--json").stdout)
    assert said["comparison"]["passed"] and "places are padding" in said["comparison"]["left_out"]
    names = [report["name"] for report in said["fusion"]["passes"]]
    assert names == ["linear layers in no other op", "remove padding", "rows that outputs need"]


def test_explain_shows_what_would_be_packed() -> None:
    said = invoke("explain", exported(), "--padding", "remove").stdout
    assert "remove padding: " in said and "work on real tokens only" in said
    assert "remove padding" not in invoke("explain", exported()).stdout


def test_no_engine_of_packed_rows_without_plugins(tmp_path: Path) -> None:
    target = tmp_path / "packed.onnx"
    invoke("fuse", exported(), "-o", target, "--padding", "remove")
    message = " ".join(invoke("engine", target, "-o", tmp_path / "model.plan", "--no-plugins", code=2).stderr.split())
    assert "packed rows take the TensorRT plugins" in message and "leave --no-plugins out" in message
    assert not (tmp_path / "model.plan").exists()


def test_a_ragged_folder_is_measured_explained_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "text-classification")
    made = tmp_path / "made"
    invoke("optimize", checkpoint, "-o", made, "--exporter", "torchscript", "--padding", "ragged")
    said = " ".join(invoke("bench", made, "--ragged", "3,9,1", "--seconds", "0.01", "-o", made).stdout.split())
    assert "fused, library" in said and "not measured" not in said
    assert "3,9,1: 27 places, 13 tokens, 52% padding; leaving it out" in said
    # Without being told, what was done in this folder is explained, and what it saved.
    said = invoke("explain", made).stdout
    assert "ragged batches: 11 nodes work on real tokens only" in said
    assert "measured: 3,9,1: 27 places, 13 tokens, 52% padding; leaving it out" in said
    assert "ragged batches" not in invoke("explain", made, "--padding", "keep").stdout
    invoke("report", made, "--seconds", "0.01")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "3,9,1: 27 places, 13 tokens, 52% padding; leaving it out" in page and "rows without padding" not in page
    # The drawing of one layer: packed rows' nodes are in their layers, too.
    assert "after: 5 nodes" in page
    (made / "bench.json").unlink()
    invoke("report", made, "--seconds", "0.01", "--sizes", "2x5")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "rows without padding" in page and "fused, library" in page and "not measured" not in page


def test_sizes_and_workloads_exclude_each_other(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    invoke("optimize", checkpoint, "-o", tmp_path / "made", "--exporter", "torchscript")
    message = invoke("bench", tmp_path / "made", "--ragged", "3,9", "--sizes", "1x8", code=2).stderr
    assert "--ragged takes the place of --sizes: give one of them" in " ".join(message.split())
    assert not (tmp_path / "made" / "bench.json").exists()


def test_a_model_that_does_not_run_here_is_written_and_not_compared(tmp_path: Path) -> None:
    """bfloat16 on a CPU: for another machine, but nobody may take it for a model that was found to agree."""
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    arguments = ["optimize", checkpoint, "-o", tmp_path / "made", "--exporter", "torchscript", "--dtype", "bf16"]
    shown = invoke(*arguments, code=1)
    assert "Not compared with the export" in shown.stderr and "run such a model on a GPU" in shown.stderr
    assert "Wrote" in shown.stdout and (tmp_path / "made" / "onnx" / "model.onnx").is_file()
    said = json.loads(invoke(*arguments, "--json", "--overwrite", code=1).stdout)
    assert said["comparison"] is None and "no bfloat16" in said["not_compared"]


@pytest.mark.parametrize("command", ["fuse", "optimize"])
def test_what_is_refused_leaves_folders_as_they_were(command: str, tmp_path: Path) -> None:
    """Whether a model can be had in this form shows late: what was there before it must be there after it."""
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    fine = ["--exporter", "torchscript"]
    invoke("optimize", checkpoint, "-o", tmp_path / "made", *fine)
    before = {path: path.read_bytes() for path in (tmp_path / "made").rglob("*") if path.is_file()}
    (tmp_path / "other").mkdir()
    source, options = (checkpoint, fine) if command == "optimize" else (tmp_path / "made", [])
    for target in ("new", "made" if command == "optimize" else "other"):
        arguments = [
            command,
            source,
            "-o",
            tmp_path / target,
            *options,
            "--level",
            "basic",
            "--padding",
            "ragged",
            "--overwrite",
        ]
        assert "padding 'ragged' is not possible" in " ".join(invoke(*arguments, code=2).stderr.split())
    assert not (tmp_path / "new").exists() and list((tmp_path / "other").iterdir()) == []
    assert {path: path.read_bytes() for path in (tmp_path / "made").rglob("*") if path.is_file()} == before
