"""`bertfuse embed --ray`: a local cluster of several workers, of which one is killed."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import bertfuse
from tests.checkpoints import texts
from tests.commands import command, invoke, started_as_by_a_terminal
from tests.corpora import model_folder, page_commands, page_folder, write_rows, written

ray = pytest.importorskip("ray", reason="Ray is not installed (bertfuse[ray])")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=3, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model() -> Path:
    return model_folder("encoder")


def done(*arguments: object) -> dict[str, Any]:
    """What the command says; Ray may say on stderr that a worker was lost."""
    return json.loads(invoke(*arguments, "--json").stdout)


def workers() -> list[psutil.Process]:
    """The processes that hold a session, while they work."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "MapBatches(Worker)" in " ".join(process.cmdline()) or "MapWorker" in process.cmdline()[0]:
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return found


def test_a_worker_is_killed_and_no_row_is_lost_or_repeated(model: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rows = [{"text": text} for text in texts(40_000, seed=seed)]
    rows[12_345]["text"] = None
    path = write_rows(tmp_path / "c.parquet", rows)
    out = tmp_path / "out"
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            there = len(list((out / ".bertfuse").glob("0*.json")))
            found = workers() if there >= 10 else []
            if len(found) > 1:
                os.kill(found[seed % len(found)].pid, signal.SIGKILL)
                killed.append(there)
            time.sleep(0.01)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    report = done("embed", path, "--model", model, "-o", out, "--shard-rows", "200", "--ray", "local", "--workers", "3")
    assert killed and killed[0] < 150, f"killed with {killed} of 200 shards done: that is no test"
    assert (report["rows"], report["bad_rows"], report["shards"]) == (39_999, 1, 200)
    ids, columns = written(out)
    assert ids == [row for row in range(40_000) if row != 12_345]
    want = bertfuse.Encoder(model, device="cpu").encode([row["text"] for row in rows if row["text"]])
    np.testing.assert_allclose(columns["embedding"], want, atol=2e-6)

    (out / ".bertfuse" / "000077.json").unlink()  # as if it had been begun and not ended
    again = done("embed", path, "--model", model, "-o", out, "--shard-rows", "200", "--ray", "local")
    assert (again["rows"], again["new_rows"]) == (39_999, 200)


def test_text_files_and_other_tasks(tmp_path: Path) -> None:
    given = texts(70, seed=51)
    path = write_rows(tmp_path / "c.csv", [{"text": text} for text in given])
    folder = model_folder("classifier")
    done("classify", path, "--model", folder, "-o", tmp_path / "out", "--shard-rows", "9", "--ray", "local")
    ids, columns = written(tmp_path / "out")
    assert ids == list(range(70))
    assert columns["label"].tolist() == [row["label"] for row in bertfuse.Classifier(folder, device="cpu")(given)]


def test_interrupted(model: Path, tmp_path: Path) -> None:
    """Ctrl-C, of the whole group as terminals do it: what is complete stays, and the same command goes on."""
    path = write_rows(tmp_path / "c.csv", [{"text": text} for text in texts(30_000, seed=53)])
    out = tmp_path / "out"
    line = command("embed", path, "--model", model, "-o", out, "--shard-rows", "200", "--ray", "local")
    process = started_as_by_a_terminal(line)
    while process.poll() is None and len(list(out.glob(".bertfuse/0*.json"))) < 3:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, ""), errors
    # Ray's own log, and how far it is every half a minute, may stand before.
    last = errors.strip().splitlines()[-1]
    found = re.fullmatch(rf"Interrupted: ([\d,]+) rows in (\d+) files are kept in {out}; .* goes on from there", last)
    assert found and "Traceback" not in errors and "ray.kill" not in errors, errors
    ids, columns = written(out)
    assert len(ids) == len(columns["embedding"]) == int(found[1].replace(",", "")) == 200 * int(found[2]) >= 600


def test_errors_are_one_line(model: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "c.csv", [{"text": "a"}])
    given = ("embed", path, "--model", model, "-o", tmp_path / "out", "--ray", "local")
    errors = invoke(*given, "--column", "b", code=2).stderr
    assert len(errors.splitlines()) == 1 and "has no column 'b'; it has text" in errors


@pytest.mark.parametrize("command", [line for line in page_commands() if "--ray" in line])
def test_command_of_the_page(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page_folder(tmp_path))
    assert "40 rows in 1 files in on-ray" in invoke(*shlex.split(command)[1:]).stdout
