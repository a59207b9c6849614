"""A corpus from files to shards in a folder, resumed where an earlier run ended.

A shard is `shard_rows` neighbouring rows of the input. When its file is in place, a record of it is written to
FOLDER/.bertfuse: only then it counts as done. So a run that is killed loses what it had of unfinished shards, and the
next one writes these anew, whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.io import replacing
from bertfuse.runtime.folder import read_json

from .read import Bad, Piece, Source
from .tasks import Task, Wanted
from .write import Results, check_format, shard_name, write_shard

RECORDS = ".bertfuse"
SHOWN_BAD = 20
_VERSION = 1


@dataclass
class Tally:
    """What has been done: rows with results, bad rows, tokens."""

    rows: int = 0
    bad: int = 0
    tokens: int = 0
    running: int = 0  # rows with results, those of unfinished shards too
    done: float = 0.0  # how much of the input has been read, of 1
    seconds: float = 0.0  # since the first row was asked for; loading the model is before


@dataclass
class Job:
    """What is read, computed and written."""

    source: Source
    wanted: Wanted
    folder: Path
    format: str = "parquet"

    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        source = self.source
        return {
            "version": _VERSION,
            "input": source.fingerprint(),
            "columns": list(source.columns),
            "id_column": source.id_column,
            "shard_rows": source.shard_rows,
            "max_characters": source.max_characters,
            "format": self.format,
            **self.wanted.settings(),
        }

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The folder, made or taken up again, for this process and those that it starts.

        Raises BertfuseError where it is of other settings, of another input, in use, or holds something else.
        """
        check_format(self.format)
        settings = json.loads(json.dumps(self.settings()))
        if self.folder.exists() and not self.folder.is_dir():
            raise BertfuseError(f"{self.folder}: is a file; name a folder to write to")
        records = self.folder / RECORDS
        if not records.is_dir() and self.folder.is_dir() and any(self.folder.iterdir()):
            raise BertfuseError(f"{self.folder}: holds other files; name a new folder")
        records.mkdir(parents=True, exist_ok=True)
        with (records / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BertfuseError(f"{self.folder}: another process is writing to it") from error
            before = read_json(records / "settings.json")
            begun = any(records.glob("[0-9]*.json"))
            if begun and before != settings:
                raise BertfuseError(f"{self.folder}: {_difference(before, settings)}; name a new folder")
            if not begun:
                with replacing(records / "settings.json") as temporary:
                    temporary.write_text(json.dumps(settings, indent=1), encoding="utf-8")
            for left in [*self.folder.glob(".part-*"), *records.glob(".*")]:  # of a run that was killed
                left.unlink()
            yield

    def record(self, shard: int) -> Path:
        return self.folder / RECORDS / f"{shard:06d}.json"

    def is_done(self, shard: int) -> bool:
        return self.record(shard).exists()

    def records(self) -> list[dict[str, Any]]:
        return [read_json(path) for path in sorted((self.folder / RECORDS).glob("[0-9]*.json"))]

    def summary(self) -> dict[str, Any]:
        """What the folder holds; bad rows go to bad_rows.jsonl in it, too."""
        records = self.records()
        bad = [row for record in records for row in record["bad"]]
        if bad:
            with replacing(self.folder / "bad_rows.jsonl") as temporary, temporary.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in bad)
        return {
            "folder": str(self.folder),
            "rows": sum(record["rows"] for record in records),
            "shards": len(records),
            "bad_rows": len(bad),
            "first_bad_rows": bad[:SHOWN_BAD],
            "labels": records[0]["labels"] if records else [],
        }


@dataclass
class _Shard:
    """The results of a shard, as they come."""

    number: int
    begin: int  # position of its first text among all that are run
    ids: list[Any] = field(default_factory=list)
    bad: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    digest: str = ""
    ended: bool = False

    def put(self, places: np.ndarray, found: dict[str, np.ndarray], rows: int) -> None:
        for name, values in found.items():
            if name not in self.columns:
                self.columns[name] = np.empty((rows, *values.shape[1:]), values.dtype)
            self.columns[name][places] = values


def run(
    job: Job, task: Task, mine: Callable[[int], bool], report: Callable[[Tally], None], last: int | None = None
) -> Tally:
    """Computes and writes the shards that are `mine` and not yet done; `report` is told from time to time.

    Nothing is read behind the shard `last`.
    """
    tally, start = Tally(), time.monotonic()
    open_shards: deque[_Shard] = deque()
    position = 0

    def missing(shard: int) -> bool:
        return mine(shard) and not job.is_done(shard)

    def texts() -> Iterator[Any]:
        nonlocal position
        pieces = (
            _new_of_stdin(job) if job.source.is_stdin else job.source.pieces(lambda s: mine(s) and not job.is_done(s))
        )
        for piece in pieces:
            if not open_shards or open_shards[-1].number != piece.shard:
                for shard in open_shards:
                    shard.ended = True
                open_shards.append(_Shard(piece.shard, position))
            shard = open_shards[-1]
            if job.source.is_stdin:
                shard.digest = _digest(shard.digest, piece)
            for offset, (identity, row) in enumerate(zip(piece.ids, piece.texts, strict=True)):
                if isinstance(row, Bad):
                    shard.bad.append({"row": piece.first + offset, "id": _plain(identity), "reason": row.reason})
                    continue
                shard.ids.append(identity)
                position += 1
                yield task.text(row)
        for shard in open_shards:
            shard.ended = True

    with ThreadPoolExecutor(1) as writing:
        waiting: deque[Future[None]] = deque()

        def finish(complete: int) -> None:
            while open_shards and open_shards[0].ended and open_shards[0].begin + len(open_shards[0].ids) <= complete:
                shard = open_shards.popleft()
                tally.rows, tally.bad = tally.rows + len(shard.ids), tally.bad + len(shard.bad)
                waiting.append(writing.submit(_write, job, task, shard))
                while len(waiting) > 1:  # no more than that many results wait for the disk
                    waiting.popleft().result()

        said = start
        for batch in task.model.run(texts(), task.outputs):
            found = task.columns(batch)
            for shard in open_shards:
                here = (batch.rows >= shard.begin) & (batch.rows < shard.begin + len(shard.ids))
                if here.all():
                    shard.put(batch.rows - shard.begin, found, job.source.shard_rows)
                    break
                if here.any():
                    part = {name: values[here] for name, values in found.items()}
                    shard.put(batch.rows[here] - shard.begin, part, job.source.shard_rows)
            tally.tokens += int(batch.lengths.sum())
            tally.running += len(batch.rows)
            finish(batch.complete)
            if time.monotonic() - said > 0.2:
                said, tally.done = time.monotonic(), job.source.done
                tally.seconds = said - start
                report(tally)
        finish(position)
        for future in waiting:
            future.result()
    tally.done, tally.seconds = 1.0, time.monotonic() - start
    report(tally)
    return tally


def _new_of_stdin(job: Job) -> Iterator[Piece]:
    """What is not done of standard input, which has no name or date: what is done must be the same texts as before."""
    shard, digest = -1, ""

    def check() -> None:
        if shard >= 0 and digest != read_json(job.record(shard))["digest"]:
            raise BertfuseError(f"{job.folder}: was begun with another input; name a new folder")

    for piece in job.source.pieces():
        if not job.is_done(piece.shard):
            yield piece
            continue
        if piece.shard != shard:
            check()
            shard, digest = piece.shard, ""
        digest = _digest(digest, piece)
    check()


def _digest(before: str, piece: Piece) -> str:
    made = hashlib.blake2b(before.encode(), digest_size=16)
    for row in piece.texts:
        made.update(f"\0{len(row)}".encode() if isinstance(row, tuple) else b"\1")
        for text in row if isinstance(row, tuple) else (row.reason,):
            made.update(text.encode() + b"\0")
    return made.hexdigest()


def _write(job: Job, task: Task, shard: _Shard) -> None:
    count = len(shard.ids)
    if count:
        columns = {name: values[:count] for name, values in shard.columns.items()}
        results = Results(shard.ids, job.source.id_kind, columns, task.labels)
        write_shard(job.folder, shard.number, job.format, results)
    record = {
        "file": shard_name(shard.number, job.format) if count else None,
        "rows": count,
        "bad": shard.bad,
        "labels": task.labels,
        "digest": shard.digest,
    }
    with replacing(job.record(shard.number)) as temporary:
        temporary.write_text(json.dumps(record), encoding="utf-8")


def _plain(identity: Any) -> Any:
    return identity if isinstance(identity, int | str | None) else str(identity)


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What is not as it was in an earlier run, in words."""
    name = next(name for name in {**before, **now} if before.get(name) != now.get(name))
    if name == "input":
        return "was begun with another input: files were added, taken away or changed"
    if name == "model_files":
        return "was begun with another model: its files were changed"
    return f"was begun with {name} {before.get(name)!r}, not {now.get(name)!r}"
