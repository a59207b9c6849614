"""A corpus from files to shards in a folder, resumed where an earlier run ended.

A shard is `shard_rows` neighbouring rows of the input, in one file; one that takes longer than `shard_seconds` is
written in parts, a file each. When a file is in place, a record of it is written to FOLDER/.bertfuse: only then it
counts as done. So a run that is killed loses what it had of unfinished files, and the next one goes on behind the
finished ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.files import replacing
from bertfuse.model_folder.files import read_json

from .calibrate import RANGES
from .read import Bad, Piece, Source
from .tasks import Task, Wanted
from .write import Results, check_format, file_name, write_part

RECORDS = ".bertfuse"
SHOWN_BAD = 20
_VERSION = 1


@dataclass
class Tally:
    """What has been done: rows with results, bad rows, tokens."""

    rows: int = 0
    bad: int = 0
    tokens: int = 0
    running: int = 0  # rows with results, those of unfinished files too
    done: float = 0.0  # how much of the input is behind us, of 1; 0 where its size is not known
    begun: float = 0.0  # `done` as it was at the start: of an earlier run
    seconds: float = 0.0  # since the first row was asked for; loading the model is before


@dataclass
class Job:
    """What is read, computed and written."""

    source: Source
    wanted: Wanted
    folder: Path
    format: str = "parquet"
    shard_seconds: float = math.inf

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
            if self.wanted.ranges is not None and not (self.folder / RANGES).is_file():
                with replacing(self.folder / RANGES) as temporary, temporary.open("wb") as handle:
                    np.save(handle, np.array(self.wanted.ranges, np.float32))
            recorded = {record["file"] for record in self.records()}
            files = [file for file in self.folder.glob("part-*") if _of_npy(file.name) not in recorded]
            for left in [*files, *self.folder.glob(".part-*"), *records.glob(".*")]:  # of a run that was killed
                left.unlink()
            yield

    def discard(self) -> None:
        """Takes away what an opened job without any results wrote, and the folder where nothing else is in it."""
        for name in ("bad_rows.jsonl", RANGES):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / RECORDS)
        with suppress(OSError):
            self.folder.rmdir()

    def record(self, shard: int) -> Path:
        """Of a shard that is done."""
        return self._record(f"{shard:06d}")

    def _record(self, part: str) -> Path:
        return self.folder / RECORDS / f"{part}.json"

    def next_row(self, shard: int) -> int:
        """The row of the input from which on an unfinished shard is to be done."""
        parts = sorted((self.folder / RECORDS).glob(f"{shard:06d}-*.json"))
        return read_json(parts[-1])["end"] if parts else shard * self.source.shard_rows

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
    """The results of a shard, as they come, from the input's row `row` on."""

    number: int
    row: int
    begin: int  # position of its first text among all that are run
    rows: list[int] = field(default_factory=list)  # of the input, those with a text
    ids: list[Any] = field(default_factory=list)
    bad: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    written: int = 0  # texts in parts
    digest: str = ""
    ended: bool = False

    def put(self, places: np.ndarray, found: dict[str, np.ndarray], rows: int) -> None:
        for name, values in found.items():
            if name not in self.columns:
                self.columns[name] = np.empty((rows, *values.shape[1:]), values.dtype)
            self.columns[name][places] = values

    def part(self, texts: int, job: Job) -> _Part:
        """What is to be written where `texts` of the shard's texts, or all of them, are done."""
        whole = self.ended and texts == len(self.ids)
        first, end = self.row, self.rows[texts] if texts < len(self.ids) else None
        bad = [row for row in self.bad if end is None or row["row"] < end]
        self.bad = self.bad[len(bad) :]
        taken = slice(self.written, texts)
        columns = {name: values[taken] for name, values in self.columns.items()}
        start = self.number * job.source.shard_rows
        name = f"{self.number:06d}" if whole and first == start else f"{self.number:06d}-{first - start:08d}"
        record = f"{self.number:06d}" if whole else name
        self.written, self.row = texts, first if end is None else end
        return _Part(name, record, self.ids[taken], columns, bad, end, self.digest)


@dataclass(frozen=True)
class _Part:
    """A file: all of a shard, or the rows of one from where the part before ends to the input's row `end`."""

    name: str
    record: str
    ids: list[Any]
    columns: dict[str, np.ndarray]
    bad: list[dict[str, Any]]
    end: int | None
    digest: str


def run(
    job: Job, task: Task, mine: Callable[[int], bool], report: Callable[[Tally], None], last: int | None = None
) -> Tally:
    """Computes and writes the shards that are `mine` and not yet done; `report` is told from time to time.

    Nothing is read behind the shard `last`.
    """
    tally, start = Tally(), time.monotonic()
    open_shards: deque[_Shard] = deque()
    position = 0
    marks: deque[tuple[int, float]] = deque()  # behind each piece: how many texts there were, and how much of the input

    def texts() -> Iterator[Any]:
        nonlocal position
        pieces = (
            _new_of_stdin(job)
            if job.source.is_stdin
            else job.source.pieces(lambda s: mine(s) and not job.is_done(s), last)
        )
        for piece in pieces:
            if not marks:
                marks.append((0, piece.begin))
                tally.begun = piece.begin
            if not open_shards or open_shards[-1].number != piece.shard:
                for shard in open_shards:
                    shard.ended = True
                open_shards.append(_Shard(piece.shard, job.next_row(piece.shard), position))
            shard = open_shards[-1]
            if job.source.is_stdin:
                shard.digest = _digest(shard.digest, piece)
            numbered = enumerate(zip(piece.ids, piece.texts, strict=True), piece.first)
            left = [entry for entry in numbered if entry[0] >= shard.row]  # not in a part of an earlier run
            usable = sum(not isinstance(text, Bad) for _, (_, text) in left)
            marks.append((position + usable, piece.end))
            for row, (identity, text) in left:
                if isinstance(text, Bad):
                    shard.bad.append({"row": row, "id": _plain(identity), "reason": text.reason})
                    continue
                shard.rows.append(row)
                shard.ids.append(identity)
                position += 1
                yield task.text(text)
        for shard in open_shards:
            shard.ended = True

    with ThreadPoolExecutor(1) as writing:
        waiting: deque[Future[None]] = deque()
        cut = start

        def write(shard: _Shard, texts: int) -> None:
            nonlocal cut
            part, cut = shard.part(texts, job), time.monotonic()
            tally.rows, tally.bad = tally.rows + len(part.ids), tally.bad + len(part.bad)
            while waiting:  # or a record of this part would hide that the one before it failed
                waiting.popleft().result()
            waiting.append(writing.submit(_write, job, task, part))

        def finish(complete: int) -> None:
            while open_shards and open_shards[0].ended and open_shards[0].begin + len(open_shards[0].ids) <= complete:
                shard = open_shards.popleft()
                write(shard, len(shard.ids))
            # The texts of finished rows are not kept, so that standard input can be compared as whole shards alone.
            if open_shards and not job.source.is_stdin and time.monotonic() - cut >= job.shard_seconds:
                texts = complete - open_shards[0].begin
                if open_shards[0].written < texts < len(open_shards[0].ids):
                    write(open_shards[0], texts)

        said = start
        complete = 0
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
            complete = max(complete, batch.complete)
            finish(complete)
            if time.monotonic() - said > 0.2:
                said, tally.done = time.monotonic(), _behind(tally.running, marks)
                tally.seconds = said - start
                report(tally)
        finish(position)
        for future in waiting:
            future.result()
    tally.done, tally.seconds = 1.0, time.monotonic() - start
    report(tally)
    return tally


def _behind(texts: int, marks: deque[tuple[int, float]]) -> float:
    """How much of the input is behind us after so many texts; marks that are behind, too, go, save the last."""
    while len(marks) > 1 and marks[1][0] <= texts:
        marks.popleft()
    (first, begin), (last, end) = marks[0], marks[min(1, len(marks) - 1)]
    return begin + (end - begin) * (texts - first) / max(1, last - first)


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


def _write(job: Job, task: Task, part: _Part) -> None:
    if part.ids:
        write_part(job.folder, part.name, job.format, Results(part.ids, job.source.id_kind, part.columns, task.labels))
    record = {
        "file": file_name(part.name, job.format) if part.ids else None,
        "rows": len(part.ids),
        "bad": part.bad,
        "labels": task.labels,
        "digest": part.digest,
        "end": part.end,
    }
    with replacing(job._record(part.record)) as temporary:
        temporary.write_text(json.dumps(record), encoding="utf-8")


def _of_npy(name: str) -> str:
    """The file that is recorded: of npy that of the vectors."""
    return name.replace(".ids.npy", ".npy")


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
