"""embed, rerank and classify: every format, rows in order, bad rows told, runs resumed, memory bounded."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertfuse
from bertfuse.inference.corpus.job import Tally
from tests.checkpoints import texts
from tests.commands import command, invoke, said, started_as_by_a_terminal
from tests.corpora import model_folder, write_rows, written


@pytest.fixture(scope="module")
def models() -> Callable[[str], Path]:
    return model_folder


def rows_of(count: int, seed: int) -> list[dict[str, Any]]:
    return [{"text": text, "key": f"k{row}"} for row, text in enumerate(texts(count, seed=seed))]


def error_of(*arguments: object) -> str:
    """The one line that a command says of bad input."""
    lines = invoke(*arguments, code=2).stderr.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("output", ["parquet", "npy", "jsonl"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "txt"])
def test_every_format(kind: str, output: str, models: Callable[[str], Path], tmp_path: Path) -> None:
    rows = rows_of(60, seed=21)
    path = write_rows(tmp_path / f"corpus.{kind}", rows)
    keys = () if kind == "txt" else ("--id-column", "key")
    arguments = ("embed", path, "--model", models("encoder"), "-o", tmp_path / "out", "--format", output)
    report = said(*arguments, *keys, "--shard-rows", "17")
    ids, columns = written(tmp_path / "out")
    assert ids == ([row["key"] for row in rows] if keys else list(range(60)))
    want = bertfuse.Encoder(models("encoder"), device="cpu").encode([row["text"] for row in rows])
    np.testing.assert_allclose(columns["embedding"], want, atol=2e-6)
    assert (report["rows"], report["shards"], report["bad_rows"]) == (60, 4, 0)


def test_folders_are_read_by_name_and_rows_counted_through(models: Callable[[str], Path], tmp_path: Path) -> None:
    rows = rows_of(50, seed=22)
    (tmp_path / "in" / "b").mkdir(parents=True)
    write_rows(tmp_path / "in" / "a.parquet", rows[:20])
    write_rows(tmp_path / "in" / "b" / "a.jsonl", rows[20:35])
    write_rows(tmp_path / "in" / "c.csv", rows[35:])
    (tmp_path / "in" / "README.md").write_text("no corpus")
    said("embed", tmp_path / "in", "--model", models("encoder"), "-o", tmp_path / "out", "--shard-rows", "9")
    ids, columns = written(tmp_path / "out")
    assert ids == list(range(50))
    want = bertfuse.Encoder(models("encoder"), device="cpu").encode([row["text"] for row in rows])
    np.testing.assert_allclose(columns["embedding"], want, atol=2e-6)


def test_bad_rows_are_told_by_number(models: Callable[[str], Path], tmp_path: Path) -> None:
    lines = [
        '{"text": "a house"}',
        '{"text": null}',
        '{"text": ""}',
        "",
        '{"text": 7}',
        '{"other": "a"}',
        "[1]",
        '{"text": "a',
        json.dumps({"text": "a" * 10_000_001}),
        '{"text": "\\ud800"}',
        '{"text": "   "}',
        '{"text": "the river"}',
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_bytes("\n".join(lines).encode() + b'\n{"text": "\xff"}\n')
    report = said("embed", path, "--model", models("encoder"), "-o", tmp_path / "out", "--shard-rows", "4")
    ids, columns = written(tmp_path / "out")
    assert ids == [0, 11] and columns["embedding"].shape == (2, 32)
    found = {row["row"]: row["reason"] for row in report["first_bad_rows"]}
    assert found == {
        1: "null",
        2: "empty",
        3: "empty",
        4: "int, not text",
        5: "no column 'text'",
        6: "no JSON object",
        7: "no JSON",
        8: "10000001 characters, more than 1000000",
        9: "no UTF-8",
        10: "empty",
        12: "no UTF-8",
    }
    kept = [json.loads(line) for line in (tmp_path / "out" / "bad_rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in kept] == list(found)
    again = invoke("embed", path, "--model", models("encoder"), "-o", tmp_path / "out", "--shard-rows", "4")
    assert "11 bad rows left out: 1 (null), 2 (empty)" in again.stdout


def test_marks_of_byte_order_and_other_names(models: Callable[[str], Path], tmp_path: Path) -> None:
    """As Windows writes files: a mark before the first row, capitals in names; and another name of jsonl."""
    (tmp_path / "in").mkdir()
    good = texts(6, seed=26)
    rows = [json.dumps({"text": text}) for text in good]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(rows[:2]), encoding="utf-8-sig")
    (tmp_path / "in" / "b.TXT").write_text("\n".join(good[2:4]), encoding="utf-8-sig")
    (tmp_path / "in" / "c.ndjson").write_text(rows[4])
    (tmp_path / "in" / "d.Csv").write_text(f'text\n"{good[5]}"\n', encoding="utf-8-sig")
    (tmp_path / "in" / "dataset_info.json").write_text('{"text": "about the data"}')
    report = said("embed", tmp_path / "in", "--model", models("encoder"), "-o", tmp_path / "out")
    assert report["bad_rows"] == 0 and report["rows"] == 6
    vectors = bertfuse.Encoder(models("encoder"), device="cpu").encode(good)
    np.testing.assert_allclose(written(tmp_path / "out")[1]["embedding"], vectors, atol=2e-6)


@pytest.mark.parametrize("kind", ["csv", "parquet", "txt"])
def test_bad_rows_of_other_formats(kind: str, models: Callable[[str], Path], tmp_path: Path) -> None:
    good = texts(5, seed=23)
    if kind == "csv":
        (tmp_path / "c.csv").write_bytes(f'n,text\n1,"{good[0]}"\n2\n3,\n4,\xff\n5,"a\nhouse"\n'.encode("latin-1"))
        want, kept = {1: "null", 2: "empty", 3: "no UTF-8"}, [good[0], "a\nhouse"]
    elif kind == "txt":
        (tmp_path / "c.txt").write_bytes(f"{good[0]}\n\n\xff\n{'a' * 5_000_000}\n{good[1]}".encode("latin-1"))
        want = {1: "empty", 2: "no UTF-8", 3: "5000001 bytes in one line"}
        kept = [good[0], good[1]]
    else:
        write_rows(tmp_path / "c.parquet", [{"text": text} for text in (good[0], None, "", "a" * 2_000_000, good[1])])
        want = {1: "null", 2: "empty", 3: "2000000 characters, more than 1000000"}
        kept = [good[0], good[1]]
    report = said("embed", tmp_path / f"c.{kind}", "--model", models("encoder"), "-o", tmp_path / "out")
    assert {row["row"]: row["reason"] for row in report["first_bad_rows"]} == want
    vectors = bertfuse.Encoder(models("encoder"), device="cpu").encode(kept)
    np.testing.assert_allclose(written(tmp_path / "out")[1]["embedding"], vectors, atol=2e-6)


def test_rerank_and_classify(models: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [{"question": q, "text": t} for q, t in zip(texts(40, seed=24), texts(40, seed=25), strict=True)]
    path = write_rows(tmp_path / "pairs.parquet", rows)
    reranker = bertfuse.Reranker(models("reranker"), device="cpu")
    given = ("--model", models("reranker"), "--shard-rows", "11")
    said("rerank", path, *given, "--query-column", "question", "-o", tmp_path / "pairs")
    want = reranker.predict([(row["question"], row["text"]) for row in rows])
    np.testing.assert_allclose(written(tmp_path / "pairs")[1]["score"], want, atol=1e-5)
    said("rerank", path, *given, "--query", "see a house", "-o", tmp_path / "query", "--format", "jsonl")
    want = reranker.predict([("see a house", row["text"]) for row in rows])
    np.testing.assert_allclose(written(tmp_path / "query")[1]["score"], want, atol=1e-5)

    report = said("classify", path, "--model", models("classifier"), "-o", tmp_path / "labels", "--shard-rows", "7")
    found = written(tmp_path / "labels")[1]
    best = bertfuse.Classifier(models("classifier"), device="cpu")([row["text"] for row in rows])
    assert found["label"].tolist() == [row["label"] for row in best] and report["labels"] == ["bad", "so so", "good"]
    np.testing.assert_allclose(found["score"], [row["score"] for row in best], atol=1e-5)
    np.testing.assert_allclose(found["scores"].sum(axis=1), 1, atol=1e-5)


def test_what_is_refused(models: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "c.parquet", [{"text": "a house", "n": 1}])
    model = ("--model", models("encoder"))

    def refused(*arguments: object) -> str:
        return error_of("embed", *arguments)

    assert refused(tmp_path / "no.txt", *model, "-o", tmp_path / "o").endswith("no such file or folder; check the path")
    assert "has no column 'body'; it has text, n" in refused(path, *model, "-o", tmp_path / "o", "--column", "body")
    assert "column n is int64, not text" in refused(path, *model, "-o", tmp_path / "o", "--column", "n")
    said("embed", path, *model, "-o", tmp_path / "o")  # nothing was done that hinders it
    assert "its name ends in none of parquet, jsonl, csv, txt" in refused(
        write_rows(tmp_path / "c.txt", [{"text": "a"}]).rename(tmp_path / "c.log"), *model, "-o", tmp_path / "o"
    )
    assert "--format 'xml' is unknown" in refused(path, *model, "-o", tmp_path / "q", "--format", "xml")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    assert "holds other files" in refused(path, *model, "-o", tmp_path / "full")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read as parquet" in refused(tmp_path / "bad.parquet", *model, "-o", tmp_path / "r")
    assert "give one of --query" in error_of("rerank", path, *model, "-o", tmp_path / "s")


def test_a_run_is_resumed_with_what_it_was_begun_with_only(models: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "c.txt", rows_of(30, seed=26))
    given = ("embed", path, "--model", models("encoder"), "-o", tmp_path / "out", "--shard-rows")
    assert said(*given, "10")["new_rows"] == 30
    assert said(*given, "10")["new_rows"] == 0
    assert error_of(*given, "11").endswith("was begun with shard_rows 10, not 11; name a new folder")
    assert "was begun with normalize False, not True" in error_of(*given, "10", "--normalize")
    record = next((tmp_path / "out" / ".bertfuse").glob("000001.json"))
    record.unlink()
    assert said(*given, "10", "--max-batch-tokens", "64")["new_rows"] == 10  # speed alone
    changed = next((models("encoder") / "onnx").glob("*.onnx")).stat()
    os.utime(models("encoder") / "onnx" / "model.onnx")
    assert "was begun with another model: its files were changed" in error_of(*given, "10")
    os.utime(models("encoder") / "onnx" / "model.onnx", ns=(changed.st_atime_ns, changed.st_mtime_ns))
    with path.open("a") as handle:
        handle.write("one more\n")
    assert "was begun with another input" in error_of(*given, "10")


def test_standard_input_is_resumed_if_it_is_the_same(models: Callable[[str], Path], tmp_path: Path) -> None:
    given = texts(40, seed=27)
    line = command("embed", "-", "--model", models("encoder"), "-o", tmp_path / "out", "--shard-rows", "10", "--json")

    def fed(sentences: list[str], code: int) -> dict[str, Any]:
        ran = subprocess.run(line, input="\n".join(sentences), capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stderr
        return json.loads(ran.stdout)

    assert fed(given, 0)["rows"] == 40
    (tmp_path / "out" / ".bertfuse" / "000001.json").unlink()
    assert fed([*given[:5], "other", *given[6:]], 2)["error"].endswith(
        "was begun with another input; name a new folder"
    )
    assert fed(given, 0)["new_rows"] == 10
    want = bertfuse.Encoder(models("encoder"), device="cpu").encode(given)
    np.testing.assert_allclose(written(tmp_path / "out")[1]["embedding"], want, atol=2e-6)


def test_a_killed_run_neither_loses_nor_repeats_a_row(models: Callable[[str], Path], tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    rows = rows_of(24_000, seed=seed)
    for row in chance.sample(range(24_000), 20):
        rows[row]["text"] = None
    path = write_rows(tmp_path / "c.parquet", rows)
    line = command("embed", path, "--model", models("encoder"), "-o", tmp_path / "out", "--shard-rows", "300", "--json")
    records = tmp_path / "out" / ".bertfuse"
    kills = 0
    for _ in range(3):
        before = len(list(records.glob("0*.json")))
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
        wanted = before + chance.randint(1, 12)
        while process.poll() is None and len(list(records.glob("0*.json"))) < wanted:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills, "every run ended before it was killed: more rows are needed"
    ran = subprocess.run(line, capture_output=True, text=True, check=True)
    report = json.loads(ran.stdout)
    good = [row for row, entry in enumerate(rows) if entry["text"] is not None]
    assert 0 < report["new_rows"] < report["rows"] == len(good) and report["bad_rows"] == 20
    ids, columns = written(tmp_path / "out")
    assert ids == good
    want = bertfuse.Encoder(models("encoder"), device="cpu").encode([rows[row]["text"] for row in good])
    np.testing.assert_allclose(columns["embedding"], want, atol=2e-6)
    assert not list((tmp_path / "out").glob(".part-*")) and not list(records.glob(".0*"))


def test_a_corpus_without_a_row_that_can_be_used(models: Callable[[str], Path], tmp_path: Path) -> None:
    given = ("--model", models("encoder"), "-o", tmp_path / "out")
    rows = write_rows(tmp_path / "c.jsonl", [{"text": "a house"}, {"text": "the river"}])
    said_of = error_of("embed", rows, *given, "--column", "body")
    assert "c.jsonl: none of 2 rows can be used, the first (row 0) because: no column 'body'; --column" in said_of
    for name, content in (("empty.txt", ""), ("empty.jsonl", ""), ("empty.csv", "text\n")):
        (tmp_path / name).write_text(content)
        assert f"{name}: no rows in it; nothing was written" in error_of("embed", tmp_path / name, *given)
    write_rows(tmp_path / "empty.parquet", [{"text": "a"}])
    import pyarrow.parquet as parquet

    parquet.write_table(parquet.read_table(tmp_path / "empty.parquet").slice(0, 0), tmp_path / "empty.parquet")
    assert "empty.parquet: no rows in it" in error_of("embed", tmp_path / "empty.parquet", *given)
    assert not (tmp_path / "out").exists()
    assert said("embed", rows, *given)["rows"] == 2  # no trace of the other runs hinders it


def test_the_line_of_progress() -> None:
    from bertfuse.cli.corpus import Rate

    line = Rate(silent=True)._line(Tally(rows=0, running=5000, tokens=50_000, done=0.625, begun=0.5, seconds=100))
    assert line == "5,000 texts, 50 a second, 500 tokens a second, 62%, 0:05:00 left"
    assert "%" not in Rate(silent=True)._line(Tally(running=5000, seconds=100))  # of standard input


@pytest.mark.parametrize("output", ["parquet", "npy", "jsonl"])
def test_a_full_disk(output: str, models: Callable[[str], Path], tmp_path: Path) -> None:
    """A limit of the process on the size of files stands for it: the same calls fail, in the same places."""
    path = write_rows(tmp_path / "c.txt", rows_of(3000, seed=29))
    line = command("embed", path, "--model", models("encoder"), "-o", tmp_path / "out", "--format", output)
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        "from bertfuse.cli import main; main()"
    )
    ran = subprocess.run([line[0], "-c", limited, *line[3:]], capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran.stderr
    said_of = ran.stderr.strip().splitlines()
    assert len(said_of) == 1 and "cannot be written: " in said_of[0] and "large" in said_of[0], said_of
    assert "None" not in said_of[0]
    assert not [name for name in os.listdir(tmp_path / "out") if name != ".bertfuse"]


def test_interrupted(models: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "c.txt", rows_of(30_000, seed=30))
    for devices in ("cpu", "cpu,cpu"):
        folder = tmp_path / devices
        line = command("embed", path, "--model", models("encoder"), "-o", folder, "--shard-rows", "200")
        process = started_as_by_a_terminal([*line, "--devices", devices])
        while process.poll() is None and len(list(folder.glob(".bertfuse/0*.json"))) < 3:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        err = process.communicate(timeout=60)[1]
        assert process.returncode == 130, err
        found = re.fullmatch(
            rf"Interrupted: ([\d,]+) rows in (\d+) files are kept in {folder}; the same command goes on from there\n",
            err,
        )
        assert found, err
        assert int(found[1].replace(",", "")) == 200 * int(found[2]) and int(found[2]) >= 3


_STREAM = """
import resource, sys, threading, os
read, write = os.pipe()
def feed():
    with os.fdopen(write, "w") as pipe:
        for row in range(int(sys.argv[1])):
            pipe.write(f"row {row} " + "house river " * 40 + "\\n")
os.dup2(read, 0)
threading.Thread(target=feed, daemon=True).start()
from bertfuse.cli import app
options = ["--model", sys.argv[2], "-o", sys.argv[3], "--shard-rows", "2000", "--max-seq-length", "6"]
app(["embed", "-", *options], standalone_mode=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_corpus(models: Callable[[str], Path], tmp_path: Path) -> None:
    """70,000 more rows are 35 MB of text alone."""
    peaks = []
    for count in (10_000, 80_000):
        arguments = [sys.executable, "-c", _STREAM, str(count), str(models("encoder")), str(tmp_path / str(count))]
        ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert f"{count:,} rows" in ran.stdout
        peaks.append(int(ran.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 20, f"peaks of {peaks} MB"
