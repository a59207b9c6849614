"""Every kind of bad input: exit code 2, one line on stderr that names it, no traceback, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_models import LONGEST, exported, inputs, save_checkpoint
from typer.testing import CliRunner

from bertfuse.cli import app


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refused(arguments: Sequence[object], culprit: object, folder: Path) -> str:
    """Runs the command, in this process, and returns its one line."""
    before = contents(folder), sorted(folder.rglob("*"))
    for extra in ([], ["--json"]):
        result = CliRunner().invoke(app, [str(argument) for argument in [*arguments, *extra]])
        assert result.exit_code == 2, (result.exit_code, result.stdout, result.stderr, result.exception)
        # Steps that were begun and failed stay on the screen, before the line.
        lines = [line for line in result.stderr.splitlines() if not line.startswith(("done ", "failed "))]
        assert len(lines) == 1 and lines[0].startswith("bertfuse: "), result.stderr
        assert str(culprit) in lines[0], lines[0]
        if extra:
            assert json.loads(result.stdout) == {"error": lines[0].removeprefix("bertfuse: ")}
        else:
            assert result.stdout == ""
    assert (contents(folder), sorted(folder.rglob("*"))) == before
    return lines[0]


def cut(path: Path) -> None:
    path.write_bytes(exported().read_bytes()[:3000])


def external(path: Path, location: str, length: int | None = None) -> None:
    """The tiny model with its word table in an external file."""
    model = onnx.load(exported())
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("word_embeddings.weight"))
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": 0, "length": len(data)}.items():
        tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())
    if length is not None:
        (path.parent / location).write_bytes(data[:length])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "no such file"),
    "folder": (lambda path: path.mkdir(), ""),
    "empty": (lambda path: path.write_bytes(b""), ""),
    "text": (lambda path: path.write_text("This is a text, no model.\n" * 50), "not an ONNX model"),
    "truncated": (cut, "cut short"),
    "data missing": (lambda path: external(path, "weights.bin"), "weights.bin"),
    "data cut": (lambda path: external(path, "weights.bin", 100), "weights.bin"),
    "data outside": (lambda path: external(path, "../weights.bin", 100_000), "outside the model's folder"),
    "data absolute": (lambda path: external(path, "/etc/passwd"), "outside the model's folder"),
}


@pytest.mark.parametrize("command", ["fuse", "compare", "run"])
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_models_that_cannot_be_read(command: str, damage: str, tmp_path: Path) -> None:
    make, message = DAMAGES[damage]
    folder = tmp_path / "inner"
    folder.mkdir()
    model = folder / "model.onnx"
    make(model)
    np.savez(tmp_path / "in.npz", **inputs(1, 3))
    arguments = {
        "fuse": ["fuse", model, "-o", folder / "out.onnx"],
        "compare": ["compare", exported(), model, "--per-node"],
        "run": ["run", model, "--input", tmp_path / "in.npz"],
    }[command]
    line = refused(arguments, model, tmp_path)
    if command == "fuse":
        assert message in line


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", tokenizer=False)
    file = tmp_path / "file"
    file.write_text("kept")
    (tmp_path / "folder").mkdir()
    for target in (file / "out.onnx", tmp_path / "folder", Path("/proc/out.onnx")):
        refused(["fuse", exported(), "-o", target], target, tmp_path)
    for target in (file, file / "below", Path("/proc/below")):
        refused(["export", source, "-o", target, "--exporter", "torchscript"], target, tmp_path)
    np.savez(tmp_path / "in.npz", **inputs(1, 3))
    target = file / "out.npz"
    refused(["run", exported(), "--input", tmp_path / "in.npz", "-o", target], target, tmp_path)


def test_options_and_inputs_that_do_not_do(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", tokenizer=False)
    out = ["-o", tmp_path / "out"]
    refused(["export", source, *out, "--task", "poetry"], "task 'poetry' is unknown", tmp_path)
    refused(["export", source, *out, "--opset", 3], "opset 3: the dynamo exporter", tmp_path)
    refused(["export", source, *out, "--static-shape", "8"], "--static-shape '8'", tmp_path)
    refused(["optimize", source, *out, "--static-shape", "1x8,2x8"], "give one batch x sequence", tmp_path)
    refused(["export", source, *out, "--dtype", "fp12"], "dtype 'fp12' is unknown", tmp_path)
    refused(["export", source, *out, "--task", "fill-mask"], "no weights for cls.", tmp_path)
    refused(["export", tmp_path / "absent", *out], "no such folder", tmp_path)
    refused(["optimize", source, *out, "--exporter", "magic"], "exporter 'magic' is unknown", tmp_path)
    refused(["fuse", exported(), *out, "--level", "most"], "level 'most' is unknown", tmp_path)
    refused(["fuse", exported(), *out, "--dtype", "fp12"], "dtype 'fp12' is unknown", tmp_path)
    refused(["run", exported()], "either --text or --input", tmp_path)
    refused(["run", exported(), "--text", "word"], "has no tokenizer.json", tmp_path)
    refused(["run", tmp_path, "--text", "word"], "holds neither model.fused.onnx nor model.onnx", tmp_path)
    refused(["bench", tmp_path], "has no model.onnx", tmp_path)
    refused(["compare", exported(), exported("fill-mask")], "share no output", tmp_path)
    ids = {"input_ids": np.ones((2, 3), np.int64)}
    np.savez(tmp_path / "in.npz", **ids)
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "no input 'attention_mask'", tmp_path)
    np.savez(tmp_path / "in.npz", **inputs(1, 3) | {"input_ids": np.ones(3, np.int64)})
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "'input_ids' has shape [3]", tmp_path)
    np.savez(tmp_path / "in.npz", **inputs(1, 3) | {"input_ids": np.full((1, 3), 9999)})
    refused(["run", exported(), "--input", tmp_path / "in.npz"], exported(), tmp_path)
    (tmp_path / "in.npz").write_bytes(b"nothing")
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "not an .npz file", tmp_path)


def test_bench_sizes_that_do_not_do(tmp_path: Path) -> None:
    for name in ("model.onnx", "model.fused.onnx"):
        (tmp_path / name).write_bytes(exported().read_bytes())
    (tmp_path / "config.json").write_text((exported().parent / "config.json").read_text())
    refused(["bench", tmp_path, "--sizes", "1by2"], "--sizes '1by2'", tmp_path)
    refused(["bench", tmp_path, "--sizes", f"1x{LONGEST + 1}"], f"sequence 1 to {LONGEST}", tmp_path)
    refused(["bench", tmp_path, "--sizes", "1x4", "--provider", "tpu"], "provider 'tpu' is unknown", tmp_path)
    refused(["bench", tmp_path, "--sizes", "1x4", "--cuda-graph"], "--cuda-graph is for GPUs", tmp_path)
    options = ["--provider", "cuda", "--dtype", "fp8"]
    refused(["bench", tmp_path, "--sizes", "1x4", *options], "--dtype 'fp8' is unknown", tmp_path)


def test_tuning_that_does_not_do(tmp_path: Path) -> None:
    refused(["tune", tmp_path], "holds neither model.fused.onnx nor model.onnx", tmp_path)
    refused(["tune", exported(), "--shapes", "0x8"], "--shapes '0x8'", tmp_path)
    options = ["-o", tmp_path / "tuning.tsv", "--device", 99]  # no GPU, or none of that number
    refused(["tune", exported(), *options], "", tmp_path)


def test_usage_errors_keep_exit_code_2() -> None:
    for arguments in (["fuse"], ["no-such-command"], ["export", "--no-such-option"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2


# With a limit on file sizes, writing fails half-way as it does on a full disk.
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from bertfuse.cli import main
sys.argv = ["bertfuse", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("command", ["export", "fuse", "run"])
def test_a_disk_that_fills_up(command: str, tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", tokenizer=False)
    np.savez(tmp_path / "in.npz", **inputs(40, LONGEST))
    target = tmp_path / "out"
    arguments = {
        "export": ["export", source, "-o", target, "--exporter", "torchscript"],
        "fuse": ["fuse", exported(), "-o", target],
        "run": ["run", exported(), "--input", tmp_path / "in.npz", "-o", target],
    }[command]
    before = contents(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.returncode == 2, ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"bertfuse: {target}: ") and "File too large" in last
    assert "Traceback" not in ran.stderr and contents(tmp_path) == before


def test_a_real_process(tmp_path: Path) -> None:
    """As a user sees it: nothing on stdout, one line on stderr, also from native code."""
    cut(tmp_path / "cut.onnx")
    for arguments in (
        ["fuse", "absent.onnx", "-o", "out.onnx"],
        ["run", "cut.onnx", "--text", "x"],
        ["compare", "cut.onnx", "cut.onnx"],
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "bertfuse.cli", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert (ran.returncode, ran.stdout) == (2, "")
        lines = [line for line in ran.stderr.splitlines() if not line.startswith(("done ", "failed "))]
        assert len(lines) == 1 and lines[0].startswith("bertfuse: "), ran.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["cut.onnx"]
