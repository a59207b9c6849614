"""Both layouts of a model folder are one to every command: DIR/onnx/model.onnx, and DIR/model.fused.onnx."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import ORIGINAL, invoke, said
from tiny_models import inputs, save_checkpoint, sentence_files

from bertfuse.runtime.folder import find_model, folder_of, longest_text, model_pair


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
def test_commands_understand_it(layout: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders[layout]
    original, fused = model_pair(folder)
    assert find_model(folder) == fused and find_model(folder, prefer_fused=False) == original
    assert folder_of(fused) == folder_of(original) == folder
    assert said("explain", folder)["fused"]["FusedAttention"] == 2
    assert said("compare", original, folder, "--text", "word1 word2")["passed"]
    np.savez(tmp_path / "in.npz", **inputs(1, 3))
    invoke("run", folder, "--input", tmp_path / "in.npz")
    bench = said("bench", folder, "--sizes", "1x4", "--seconds", 0.01, "-o", tmp_path)
    assert bench["absent"] == {}
    page = Path(said("report", folder, "--seconds", 0)["page"])
    assert page == folder / "report.html" and f"<title>bertfuse: {folder.name}<" in page.read_text()
    page.unlink()


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
