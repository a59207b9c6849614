"""Several processes at a corpus: the rows that one process gives, and what happens when one dies or all are killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.inference.corpus import processes
from tests.checkpoints import texts
from tests.commands import command, invoke, said, started_as_by_a_terminal
from tests.corpora import model_folder, write_rows, written


@pytest.fixture(scope="module")
def model() -> Path:
    return model_folder("encoder")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.devices_of(None) == [None] == processes.devices_of("all")
    assert processes.devices_of("cpu, cpu") == ["cpu", "cpu"]
    with pytest.raises(BertfuseError, match="--devices 0: there is no GPU 0; there are 0"):
        processes.devices_of("0")
    with pytest.raises(BertfuseError, match="'tpu' is not a device; write all, numbers of GPUs"):
        processes.devices_of("tpu")
    monkeypatch.setattr(processes, "gpu_count", lambda: 3)
    assert processes.devices_of("all") == ["cuda:0", "cuda:1", "cuda:2"]
    assert processes.devices_of("0,2") == ["cuda:0", "cuda:2"]


def test_two_processes_write_what_one_does(model: Path, tmp_path: Path) -> None:
    given = texts(200, seed=31)
    path = write_rows(tmp_path / "c.csv", [{"text": text} for text in given])
    report = said("embed", path, "--model", model, "-o", tmp_path / "out", "--shard-rows", "30", "--devices", "cpu,cpu")
    assert (report["rows"], report["new_rows"], report["shards"]) == (200, 200, 7)
    ids, columns = written(tmp_path / "out")
    assert ids == list(range(200))
    want = bertfuse.Encoder(model, device="cpu").encode(given)
    np.testing.assert_allclose(columns["embedding"], want, atol=2e-6)


def test_an_error_in_a_process_is_one_line(model: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "c.csv", [{"text": "a"}])
    arguments = ("embed", path, "--model", model, "-o", tmp_path / "out", "--devices", "cpu,cpu", "--column", "b")
    assert "has no column 'b'; it has text; what was done is kept" in invoke(*arguments, code=2).stderr


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Those that live. Beside them there is multiprocessing's resource tracker."""
    children = psutil.Process(process.pid).children() if process.poll() is None else []
    return [c for c in children if c.status() != "zombie" and "spawn_main" in " ".join(c.cmdline())]


def test_killed_processes(model: Path, tmp_path: Path) -> None:
    """First a worker: the other goes on, and the command says so. Then the first process: no worker outlives it."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    given = texts(24_000, seed=seed)
    path = write_rows(tmp_path / "c.parquet", [{"text": text} for text in given])
    out = tmp_path / "out"
    options = ["embed", path, "--model", model, "-o", out, "--shard-rows", "120", "--devices", "cpu,cpu", "--json"]
    line = [sys.executable, "-m", "bertfuse.cli", *map(str, options)]

    def started(shards: int) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and len(list((out / ".bertfuse").glob("0*.json"))) < shards:
            time.sleep(0.005)
        return process, workers_of(process)

    process, workers = started(5)
    assert len(workers) == 2, workers
    os.kill(workers[0].pid, signal.SIGKILL)
    said_last, errors = process.communicate()
    assert process.returncode == 2 and "the process on cpu ended with exit code -9" in errors
    assert json.loads(said_last)["error"].endswith("call the command again to go on")
    kept = len(list((out / ".bertfuse").glob("0*.json")))
    assert 100 <= kept < 200  # the other's half, and what the killed one had done

    process, workers = started(kept + 1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive, "workers outlive the process that started them"
    ran = subprocess.run(line, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["rows"] == 24_000
    ids, columns = written(out)
    assert ids == list(range(24_000))
    want = bertfuse.Encoder(model, device="cpu").encode(given)
    np.testing.assert_allclose(columns["embedding"], want, atol=2e-6)


def test_a_ctrl_c_while_workers_start_is_for_the_first_process(model: Path, tmp_path: Path) -> None:
    """Workers import for a second before any code of theirs runs. Interrupted alone they go on, in that time, too."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    path = write_rows(tmp_path / "c.txt", [{"text": text} for text in texts(30_000, seed=seed)])
    for patience in (0.0, chance.random(), chance.random()):
        out = tmp_path / str(patience)
        line = command("embed", path, "--model", model, "-o", out, "--shard-rows", "200", "--devices", "cpu,cpu")
        process = started_as_by_a_terminal(line)
        while process.poll() is None and len(workers_of(process)) < 2:
            time.sleep(0.002)
        time.sleep(patience)
        for worker in workers_of(process):
            worker.send_signal(signal.SIGINT)
        while process.poll() is None and len(list(out.glob(".bertfuse/0*.json"))) < 3:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        said_last = process.communicate(timeout=60)[1]
        assert process.returncode == 130, said_last
        assert re.fullmatch(r"Interrupted: .* are kept in .*; the same command goes on from there\n", said_last)
