"""Every kind of bad input: exit code 2, one line on stderr that names it, no traceback, nothing left behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from bertfuse.cli import app
from bertfuse.graph_rewrite import fuse_file
from tests.tiny_models import LONGEST, exported, inputs, save_checkpoint


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


# What is wrong with the file; what fuse, compare and run say of it. run leaves the reading to ONNX Runtime.
_NO_MODEL, _OUTSIDE = "not an ONNX model", "lies outside the model's folder"
_MISSING, _CUT = "'weights.bin' is missing", "'weights.bin' is cut short: 100 bytes"
DAMAGES: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "missing": (lambda path: None, *["no such file"] * 3),
    "folder": (lambda path: path.mkdir(), *["holds neither onnx/model.onnx nor model.onnx"] * 3),
    "empty": (lambda path: path.write_bytes(b""), _NO_MODEL, _NO_MODEL, "No graph was found"),
    "text": (lambda path: path.write_text("No model.\n" * 100), _NO_MODEL, _NO_MODEL, "Protobuf parsing failed"),
    "truncated": (cut, "cut short", "cut short", "Protobuf parsing failed"),
    "data missing": (lambda path: external(path, "weights.bin"), _MISSING, _MISSING, "does not exist"),
    "data cut": (lambda path: external(path, "weights.bin", 100), _CUT, _CUT, "file_length: 100 are out of bounds"),
    "data outside": (
        lambda path: external(path, "../weights.bin", 100_000), _OUTSIDE, _OUTSIDE, "escapes model directory",
    ),
    "data absolute": (lambda path: external(path, "/etc/passwd"), _OUTSIDE, _OUTSIDE, "Absolute path not allowed"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["fuse", "compare", "run"])
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_models_that_cannot_be_read(command: str, damage: str, tmp_path: Path) -> None:
    make, *messages = DAMAGES[damage]
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
    assert messages[["fuse", "compare", "run"].index(command)] in line


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


def test_models_are_not_overwritten_by_what_is_made_of_them(tmp_path: Path) -> None:
    model, fused = tmp_path / "model.onnx", tmp_path / "model.fused.onnx"
    shutil.copy(exported(), model)
    fuse_file(model, fused)
    (tmp_path / "config.json").write_text("{}")
    batch = tmp_path / "in.npz"
    np.savez(batch, **inputs(1, 3))
    for target in (model, fused):
        refused(["compare", model, fused, "--html", target], target, tmp_path)
        refused(["report", tmp_path, "-o", target, "--seconds", 0], target, tmp_path)
    for target in (fused, tmp_path / "config.json", batch):
        refused(["run", model, "--input", batch, "-o", target], target, tmp_path)
    for target in (model, tmp_path / "config.json"):
        refused(["engine", fused, "-o", target, "--backend", "rtx"], target, tmp_path)
    plan = tmp_path / "new.plan"
    refused(["engine", fused, "-o", plan, "--save-onnx", plan, "--backend", "rtx"], plan, tmp_path)


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
    assert "Exporting" not in refused(
        ["optimize", source, *out, "--level", "most"], "level 'most' is unknown", tmp_path
    )
    refused(["fuse", exported(), "-o", "."], ".: is a folder", tmp_path)
    refused(["compare", exported(), exported(), "--atol", -1], "atol -1 is not a tolerance", tmp_path)
    refused(["compare", exported(), exported(), "--rtol", "nan"], "rtol nan is not a tolerance", tmp_path)
    (tmp_path / "some.plan").write_text("plan")
    refused(["run", tmp_path / "some.plan", "--input", "in.npz"], "is an engine, not a model", tmp_path)
    refused(["bench", exported()], "is a file; give the folder", tmp_path)
    refused(["fuse", exported(), *out, "--level", "most"], "level 'most' is unknown", tmp_path)
    refused(["fuse", exported(), *out, "--dtype", "fp12"], "dtype 'fp12' is unknown", tmp_path)
    refused(["run", exported()], "give one of --text, --text-file and --input", tmp_path)
    refused(["run", exported(), "--text", "word"], "has no tokenizer.json", tmp_path)
    refused(["run", tmp_path, "--text", "word"], "holds neither onnx/model.onnx nor model.onnx", tmp_path)
    refused(["bench", tmp_path], "has no model, needs both", tmp_path)
    refused(["compare", exported(), exported("fill-mask")], "share no output", tmp_path)
    ids = {"input_ids": np.ones((2, 3), np.int64)}
    np.savez(tmp_path / "in.npz", **ids)
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "no input 'attention_mask'", tmp_path)
    np.savez(tmp_path / "in.npz", **inputs(1, 3) | {"input_ids": np.ones(3, np.int64)})
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "'input_ids' has shape [3]", tmp_path)
    np.savez(tmp_path / "in.npz", **inputs(1, 3) | {"input_ids": np.full((1, 3), 9999)})
    refused(["run", exported(), "--input", tmp_path / "in.npz"], exported(), tmp_path)
    np.savez(tmp_path / "in.npz", **inputs(1, 3) | {"input_ids": np.array([["a", "b", "c"]])})
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "'input_ids' holds <U1, the model takes", tmp_path)
    np.savez(tmp_path / "in.npz", **inputs(1, 3) | {"input_ids": np.full((1, 3), 1.7)})
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "'input_ids' holds float64", tmp_path)
    refused(["run", exported(), "--input", tmp_path / "in.npz", "--text-pair", "a"], "--text-pair", tmp_path)
    (tmp_path / "in.npz").write_bytes(b"nothing")
    refused(["run", exported(), "--input", tmp_path / "in.npz"], "not an .npz file", tmp_path)
    refused(["compare", exported(), exported(), "--seed", -1], "seed -1", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", "{", "cannot be read"),
        ("config.json", "[1]", "does not hold a JSON object"),
        ("config.json", '{"max_position_embeddings": "many"}', "max_position_embeddings is 'many'"),
        ("config.json", '{"vocab_size": [7]}', "vocab_size is [7]"),
    ],
)
def test_files_beside_the_model(name: str, content: str, message: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model")
    (folder / "model.onnx").write_bytes(exported().read_bytes())
    (folder / name).write_text(content)
    assert message in refused(["run", folder, "--text", "word1"], f"{folder / name}: ", tmp_path)


def test_bench_sizes_that_do_not_do(tmp_path: Path) -> None:
    for name in ("model.onnx", "model.fused.onnx"):
        (tmp_path / name).write_bytes(exported().read_bytes())
    (tmp_path / "config.json").write_text((exported().parent / "config.json").read_text())
    refused(["bench", tmp_path, "--sizes", "1by2"], "--sizes '1by2'", tmp_path)
    refused(["bench", tmp_path, "--sizes", f"{10**20 - 1}x8"], f"--sizes '{10**20 - 1}x8'", tmp_path)
    refused(["bench", tmp_path, "--sizes", f"1x{LONGEST + 1}"], f"sequence 1 to {LONGEST}", tmp_path)
    refused(["bench", tmp_path, "--sizes", "1x4", "--provider", "tpu"], "provider 'tpu' is unknown", tmp_path)
    refused(["bench", tmp_path, "--sizes", "1x4", "--cuda-graph"], "--cuda-graph is for GPUs", tmp_path)
    options = ["--provider", "cuda", "--dtype", "fp8"]
    refused(["bench", tmp_path, "--sizes", "1x4", *options], "--dtype 'fp8' is unknown", tmp_path)
    for seconds in ("nan", "inf", "-1"):
        for command in ("bench", "report"):
            refused(
                [command, tmp_path, "--seconds", seconds],
                f"--seconds must be a number of at least 0, not {seconds}",
                tmp_path,
            )
    refused(["bench", tmp_path, "--threads", -3], "--threads must be at least 1, not -3", tmp_path)
    refused(["bench", tmp_path, "--threads", 2, "--provider", "cuda"], "leave --threads out", tmp_path)


def test_targets_are_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("began")

    for name in ("analysis.bench.bench", "analysis.report.write_report", "runtime.trt.build.prepare"):
        monkeypatch.setattr(f"bertfuse.{name}", work)
    for name in ("model.onnx", "model.fused.onnx"):
        (tmp_path / name).write_bytes(exported().read_bytes())
    folder, file = tmp_path / "folder", tmp_path / "file"
    (folder / "m.plan.json").mkdir(parents=True)
    file.write_text("kept")
    refused(["bench", tmp_path, "-o", file], file / "bench.json", tmp_path)
    refused(["report", tmp_path, "-o", folder], f"{folder}: is a folder", tmp_path)
    engine = ["engine", exported(), "--backend", "rtx", "-o"]
    refused([*engine, file / "x.plan"], file / "x.plan", tmp_path)
    refused([*engine, folder / "m.plan"], f"{folder / 'm.plan.json'}: is a folder", tmp_path)
    refused([*engine, tmp_path / "m.plan", "--save-onnx", folder], f"{folder}: is a folder", tmp_path)
    refused(["tune", exported(), "-o", folder], f"{folder}: is a folder", tmp_path)
    refused(["tune", exported(), "-o", file], f"{file}: is not a tuning file", tmp_path)


def test_a_page_that_cannot_be_written_beside_the_model(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    refused(["fuse", exported(), "-o", page, "--report"], f"{page}: --report would write its page over", tmp_path)
    page.write_bytes(exported().read_bytes())
    refused(["fuse", page, "-o", tmp_path / "page.onnx", "--report"], f"{page}: --report would", tmp_path)
    fused = tmp_path / "model.fused.onnx"
    fuse_file(exported(), fused)
    refused(["fuse", fused, "-o", tmp_path / "x.onnx", "--report"], f"{fused}: is fused already", tmp_path)
    (tmp_path / "x.html").mkdir()
    refused(["fuse", exported(), "-o", tmp_path / "x.onnx", "--report"], "x.html: is a folder", tmp_path)


def test_tuning_that_does_not_do(tmp_path: Path) -> None:
    refused(["tune", exported(), "--milliseconds", "inf"], "--milliseconds must be a finite number, not inf", tmp_path)
    refused(["tune", tmp_path], "holds neither onnx/model.onnx nor model.onnx", tmp_path)
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


def test_a_process_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", tokenizer=False)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "bertfuse.cli", "export", str(source), "-o", str(out)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not list(out.glob(".bertfuse-*")) and process.poll() is None:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not out.exists()


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
