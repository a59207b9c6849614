"""Shards in parts: rows in order whatever a run was ended by, and progress; with a model that computes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertfuse.inference.corpus import job as jobs
from bertfuse.inference.corpus.job import Job, Tally, run
from bertfuse.inference.corpus.read import Source
from bertfuse.inference.corpus.tasks import Wanted
from bertfuse.inference.model import Batch

WINDOW = 32  # texts


class Killed(Exception):
    """In place of a signal."""


class Task:
    """Gives each text, which is a number, as its vector; in windows, and in these in batches of no order."""

    outputs = ("vector",)
    labels: tuple[str, ...] = ()

    def __init__(self, chance: random.Random, texts: int | None = None) -> None:
        self.model, self._chance, self._left = self, chance, texts

    def text(self, row: tuple[str, ...]) -> str:
        return row[0]

    def run(self, texts: Iterable[str], outputs: object) -> Iterator[Batch]:
        source, first = iter(texts), 0
        while window := list(islice(source, WINDOW)):
            order = self._chance.sample(range(len(window)), len(window))
            while order:
                taken, order = order[:5], order[5:]
                if self._left is not None:
                    self._left -= len(taken)
                    if self._left < 0:
                        raise Killed
                values = np.array([[float(window[row])] for row in taken], np.float32)
                lengths = np.ones(len(taken), np.int64)
                complete = 0 if order else first + len(window)
                yield Batch(np.array(taken) + first, lengths, [], {"vector": values}, complete)
            first += len(window)

    def columns(self, batch: Batch) -> dict[str, np.ndarray]:
        return {"embedding": batch.outputs["vector"]}


def corpus(folder: Path, kind: str, count: int, bad: set[int]) -> Path:
    rows = [{"text": None if row in bad else str(row)} for row in range(count)]
    path = folder / f"corpus.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=70)
    return path


def written(folder: Path) -> tuple[list[int], list[float]]:
    """Ids and vectors of all files, in the order of their names."""
    ids: list[int] = []
    values: list[float] = []
    for file in sorted(folder.glob("part-*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            ids.append(row["id"])
            values += row["embedding"]
    for file in sorted(folder.glob("part-*.ids.npy")):
        ids += np.load(file).tolist()
        values += np.load(file.with_name(file.name.replace(".ids.npy", ".npy")))[:, 0].tolist()
    return ids, values


@pytest.mark.parametrize("output", ["npy", "jsonl"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_runs_that_end_anywhere(kind: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between a file and its record; with files by time now and again, and rows that cannot be used."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    count, shard_rows = chance.randint(300, 900), chance.randint(40, 300)
    bad = set(chance.sample(range(count), count // 8))
    bad |= set(range(shard_rows, min(count, 2 * shard_rows))) if chance.random() < 0.3 else set()
    path = corpus(tmp_path, kind, count, bad)
    monkeypatch.setattr("bertfuse.inference.corpus.read._PIECE", 24)
    write = jobs.replacing

    def unreliable(place: Path) -> Any:
        if place.name[:1].isdigit() and chance.random() < 0.05:
            raise Killed
        return write(place)

    monkeypatch.setattr(jobs, "replacing", unreliable)
    runs = kills = 0
    while runs == 0 or kills == runs:
        source = Source([str(path)], shard_rows=shard_rows)
        seconds = 0.0 if chance.random() < 0.8 else 1e9
        job = Job(source, Wanted("embed", "no-model"), tmp_path / "out", output, seconds)
        limit = chance.randint(0, count) if runs < 8 else None
        runs += 1
        with job.opened():
            try:
                run(job, Task(chance, limit), lambda shard: True, lambda tally: None)
                summary = job.summary()
            except Killed:
                kills += 1
        assert runs < 200
    good = [row for row in range(count) if row not in bad]
    assert written(tmp_path / "out") == (good, [float(row) for row in good])
    assert summary["rows"] == len(good) and summary["bad_rows"] == len(bad)
    told = [json.loads(line)["row"] for line in (tmp_path / "out" / "bad_rows.jsonl").read_text().splitlines()]
    assert told == sorted(bad)


@pytest.mark.parametrize("output", ["npy", "jsonl"])
def test_files_end_by_time(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run that is ended keeps what it has computed, however many rows a shard is to have."""
    monkeypatch.setattr("bertfuse.inference.corpus.read._PIECE", 24)
    path = corpus(tmp_path, "jsonl", 700, set())
    source = Source([str(path)], shard_rows=100_000)
    kept = {}
    for seconds in (0.0, 1e9):
        job = Job(source, Wanted("embed", "no-model"), tmp_path / str(seconds), output, seconds)
        with job.opened(), pytest.raises(Killed):
            run(job, Task(random.Random(0), 600), lambda shard: True, lambda tally: None)
        kept[seconds] = len(written(tmp_path / str(seconds))[0])
    assert kept[0.0] > 400 and kept[1e9] == 0


def _tell(told: list[Tally], tally: Tally) -> None:
    told.append(Tally(**vars(tally)))


def _later(calls: list[None]) -> float:
    """A clock on which a second passes between looks."""
    calls.append(None)
    return float(len(calls))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_progress_is_what_was_computed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was read ahead, which of a small file is all of it; and a resumed run knows what it need not do."""
    count = 900
    source = Source([str(corpus(tmp_path, kind, count, set()))], shard_rows=300)
    job = Job(source, Wanted("embed", "no-model"), tmp_path / "out", "npy")
    monkeypatch.setattr(jobs.time, "monotonic", partial(_later, []))
    every: Callable[[int], bool] = lambda shard: True  # noqa: E731
    with job.opened():
        for left in (900, 600):
            told: list[Tally] = []
            run(job, Task(random.Random(0)), every, partial(_tell, told))
            begun = 1 - left / count
            assert len(told) > 50
            for tally in told[:-1]:
                assert abs(tally.begun - begun) < 0.03
                assert abs(tally.done - begun - tally.running / count) < 0.03, tally
            assert told[-1].done == 1
            for shard in (1, 2):
                job.record(shard).unlink()
