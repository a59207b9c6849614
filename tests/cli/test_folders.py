"""Both layouts of a model folder are one to every command: DIR/onnx/model.onnx, and DIR/model.fused.onnx."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertfuse.model_folder.files import find_model, folder_of, model_pair
from bertfuse.model_folder.tokenizer import longest_text
from tests.commands import ORIGINAL, invoke, said
from tests.tiny_models import inputs, save_checkpoint, sentence_files


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One sentence encoder in both layouts."""
    base = tmp_path_factory.mktemp("layouts")
    source = save_checkpoint(base / "source")
    sentence_files(source)
    report = said("optimize", source, "-o", base / "nested", "--exporter", "torchscript", "--strict")
    assert report["task"] == "sentence-similarity" and report["comparison"]["passed"]
    shutil.copytree(base / "nested", base / "flat")
    (base / "flat" / ORIGINAL).replace(base / "flat" / "model.onnx")
    (base / "flat" / "onnx" / "model.onnx").replace(base / "flat" / "model.fused.onnx")
    (base / "flat" / "onnx").rmdir()
    return {"nested": base / "nested", "flat": base / "flat", "source": source}


@pytest.mark.parametrize("layout", ["nested", "flat"])
def test_commands_understand_it(
    layout: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders[layout]
    monkeypatch.chdir(tmp_path)
    before = sorted(folder.rglob("*"))
    original, fused = model_pair(folder)
    assert find_model(folder) == fused and find_model(folder, prefer_fused=False) == original
    assert folder_of(fused) == folder_of(original) == folder
    assert said("explain", folder)["fused"]["FusedAttention"] == 2
    assert said("compare", original, folder, "--text", "word1 word2")["passed"]
    np.savez(tmp_path / "in.npz", **inputs(1, 3))
    invoke("run", folder, "--input", tmp_path / "in.npz")
    bench = said("bench", folder, "--sizes", "1x4", "--seconds", 0.01, "-o", tmp_path)
    assert bench["absent"] == {}
    assert {file.name for file in tmp_path.iterdir()} == {"in.npz", "bench.json", "bench.png"}
    page = Path(said("report", folder, "--seconds", 0)["page"])
    assert page == Path("report.html") and f"<title>bertfuse: {folder.name}<" in page.read_text()
    assert said("bench", folder, "--sizes", "1x4", "--seconds", 0.01)["timings"]
    assert sorted(folder.rglob("*")) == before  # looking at a model writes nothing into its folder
    weights = {name: note.rsplit(", ", 1)[-1] for name, note in bench["notes"].items()}
    assert (
        weights.pop("PyTorch") == "since the weights make no difference to time"
        and "random" in bench["notes"]["PyTorch"]
    )
    assert weights.pop("ORT optimizer") and set(weights.values()) == {"the model's own weights"}, bench["notes"]


@pytest.mark.parametrize("layout", ["nested", "flat"])
def test_fuse_of_a_folder_is_a_folder(layout: str, folders: dict[str, Path], tmp_path: Path) -> None:
    report = said("fuse", folders[layout], "-o", tmp_path / "out", "--dtype", "fp16", "--strict")
    assert Path(report["model"]) == tmp_path / "out" / "onnx" / "model.onnx"
    for name in ("modules.json", "1_Pooling/config.json", "tokenizer.json", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folders["source"] / name).read_bytes()
    assert said("compare", tmp_path / "out" / ORIGINAL, tmp_path / "out")["passed"]
    # A file, where a file is asked for.
    said("fuse", folders[layout], "-o", tmp_path / "alone.onnx")
    assert said("compare", tmp_path / "alone.onnx", folders[layout], "--text", "word1")["passed"]


def test_nothing_overwrites_what_it_reads(folders: dict[str, Path]) -> None:
    folder = folders["nested"]
    before = {file: file.read_bytes() for file in folder.parent.rglob("*") if file.is_file()}
    for arguments in (
        ("optimize", folders["source"], "-o", folders["source"]),
        ("export", folders["source"], "-o", folders["source"] / ".." / "source"),
        ("fuse", folder, "-o", folder),
        ("fuse", folder / ORIGINAL, "-o", folder / ORIGINAL),
        ("fuse", folders["flat"] / "model.onnx", "-o", folders["flat"] / ".." / "flat" / "model.onnx"),
    ):
        result = invoke(*arguments, code=2)
        assert "read; name another" in result.stderr, result.stderr
    assert {file: file.read_bytes() for file in folder.parent.rglob("*") if file.is_file()} == before


def test_models_are_written_over_only_where_that_is_asked_for(folders: dict[str, Path], tmp_path: Path) -> None:
    folder, target = tmp_path / "minilm", tmp_path / "out"
    shutil.copytree(folders["nested"], folder)
    for name in ("bench.json", "report.html"):
        (folder / name).write_text("{}")
    said("fuse", folder, "-o", target)
    (target / "mine.txt").write_text("mine")
    alone = tmp_path / "alone.onnx"
    said("fuse", folder, "-o", alone)
    said("triton", folder, "-o", tmp_path / "repository", "--provider", "cpu")
    for name in ("bench.json", "report.html"):  # of the model that is read
        assert not list((tmp_path / "repository").rglob(name)) and not list(target.rglob(name))
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    for arguments in (
        ("optimize", folders["source"], "-o", target),
        ("export", folders["source"], "-o", target),
        ("fuse", folder, "-o", target),
        ("fuse", folder, "-o", alone),
        ("engine", folder, "-o", alone),
        ("triton", folder, "-o", tmp_path / "repository", "--provider", "cpu"),
    ):
        error = invoke(*arguments, code=2).stderr
        assert "--overwrite" in error.splitlines()[-1] and "Traceback" not in error, error
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()} == before
    stale = tmp_path / "repository" / folder.name / "1" / "stale.txt"
    stale.write_text("of the model before")
    said("triton", folder, "-o", tmp_path / "repository", "--provider", "cpu", "--overwrite")
    said("fuse", folder, "-o", target, "--overwrite")
    said("fuse", folder, "-o", alone, "--overwrite")
    assert not stale.exists() and (target / "mine.txt").exists()
    changed = [file for file, when in before.items() if file.suffix == ".onnx" and file.stat().st_mtime_ns != when]
    assert len(changed) >= 3


def test_what_is_fused_already_is_not_fused_into_a_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    lonely = tmp_path / "lonely"
    shutil.copytree(folders["nested"], lonely)
    (lonely / ORIGINAL).unlink()
    assert "is fused already" in invoke("fuse", lonely, "-o", tmp_path / "out", code=2).stderr
    assert not (tmp_path / "out").exists()
    assert "needs both" in invoke("bench", lonely, code=2).stderr


@pytest.mark.parametrize(
    ("settings", "tokenizer", "want"),
    [
        ({"max_seq_length": 9}, 20, 9),
        ({}, 20, 20),
        ({"max_seq_length": None}, 10**30, 40),
        ({"max_seq_length": 99}, 20, 40),
    ],
)
def test_texts_are_cut_where_the_folder_says(settings: dict, tokenizer: int, want: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 40}))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": tokenizer}))
    assert longest_text(tmp_path) == want
