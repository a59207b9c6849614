"""Rows of parquet, jsonl, csv and txt files, and of standard input, as a stream; bad rows say why they are."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from bertfuse.errors import BertfuseError

FORMATS = ("parquet", "jsonl", "csv", "txt")
STDIN = "-"
_PIECE = 4096  # rows read at a time
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


@dataclass(frozen=True)
class Bad:
    """In place of a text: why the row cannot be used."""

    reason: str


@dataclass(frozen=True)
class Piece:
    """Neighbouring rows of one shard: `texts` has a tuple, with a text for each column, or a Bad for each row.

    `begin` and `end` are where they lie in the input, of 1; both are 0 in standard input, whose size is not known.
    """

    shard: int
    first: int
    ids: list[Any]
    texts: list[Any]
    begin: float = 0.0
    end: float = 0.0


@dataclass
class Source:
    """What is read.

    Args:
        paths: files, folders (of which every file of a known format, by name) or "-", standard input.
        columns: of parquet, jsonl and csv, those with the texts; a txt file has a row in each line and no columns.
        id_column: whose values are the rows' ids; None: rows are numbered from 0 through all files.
        format: of FORMATS, in place of what names end in; of standard input txt where it is None.
        shard_rows: rows of one shard.
        max_characters: longer texts are bad rows.

    Raises BertfuseError for paths and columns that there are not, when made or when read.
    """

    paths: Sequence[str]
    columns: tuple[str, ...] = ("text",)
    id_column: str | None = None
    format: str | None = None
    shard_rows: int = 32768
    max_characters: int = 1_000_000

    def __post_init__(self) -> None:
        if self.format not in (None, *FORMATS):
            raise BertfuseError(f"format {self.format!r} is unknown: choose one of {', '.join(FORMATS)}")
        self.files = [found for path in self.paths for found in _files(str(path), self.format)]
        if any(name == STDIN for name, _ in self.files) and len(self.files) > 1:
            raise BertfuseError("standard input cannot be read beside files: give one or the other")
        for name, kind in self.files:
            if kind == "txt" and (self.id_column or len(self.columns) > 1):
                raise BertfuseError(f"{name}: a text file has no columns; give a parquet, jsonl or csv file")
        self._sizes = [0 if name == STDIN else Path(name).stat().st_size for name, _ in self.files]

    @property
    def is_stdin(self) -> bool:
        return self.files[0][0] == STDIN

    def fingerprint(self) -> list[list[Any]]:
        """Name, size and time of change of each file: another one is another input."""
        stats = [(name, None if name == STDIN else Path(name).stat()) for name, _ in self.files]
        return [[str(Path(name).resolve()), s.st_size, s.st_mtime_ns] if s else [name] for name, s in stats]

    @cached_property
    def id_kind(self) -> str:
        """ "int64" where ids are numbers in every file, else "string"."""
        if self.id_column is None:
            return "int64"
        for name, kind in self.files:
            if kind != "parquet":
                return "string"
            with _parquet(name) as file:
                _check_column(name, self.id_column, file.schema_arrow.names)
                if str(file.schema_arrow.field(self.id_column).type) not in _NUMBERS:
                    return "string"
        return "int64"

    def count(self) -> int:
        """How many rows there are: of parquet from its metadata, else by reading all."""
        total = 0
        for name, kind in self.files:
            if kind == "parquet":
                with _parquet(name) as file:
                    total += file.metadata.num_rows
            else:
                with open(name, "rb") as handle:
                    total += sum(1 for _ in self._rows(name, kind, handle))
        return total

    def pieces(self, wanted: Callable[[int], bool] = lambda shard: True, last: int | None = None) -> Iterator[Piece]:
        """All rows of the shards that are `wanted`, in order; nothing is read behind shard `last`."""
        row, before, everything = 0, 0, max(1, sum(self._sizes))
        for (name, kind), size in zip(self.files, self._sizes, strict=True):
            if last is not None and row // self.shard_rows > last:
                return
            if kind == "parquet":
                for piece in self._parquet_pieces(name, row, wanted):
                    if last is not None and piece.shard > last:
                        return
                    begin, end = ((before + size * share) / everything for share in (piece.begin, piece.end))
                    yield replace(piece, begin=begin, end=end)
                with _parquet(name) as file:
                    row += file.metadata.num_rows
            else:
                with open(STDIN_HANDLE if name == STDIN else name, "rb", closefd=name != STDIN) as handle:
                    rows, begin = self._rows(name, kind, handle), before / everything
                    while True:
                        shard = row // self.shard_rows
                        held = list(islice(rows, min(_PIECE, (shard + 1) * self.shard_rows - row)))
                        if not held:
                            break
                        if last is not None and shard > last:
                            return
                        end = begin if name == STDIN else (before + handle.tell()) / everything
                        if wanted(shard):
                            ids, texts = [identity for identity, _ in held], [texts for _, texts in held]
                            yield self._piece(shard, row, ids, texts, begin, end)
                        row, begin = row + len(held), end
            before += size

    def _piece(
        self, shard: int, first: int, ids: list[Any] | None, texts: list[Any], begin: float, end: float
    ) -> Piece:
        """Of texts that may be anything."""
        good = [self._checked(row) for row in texts]
        if self.id_column is None or ids is None:
            ids = list(range(first, first + len(texts)))
        elif self.id_kind == "string":
            ids = [value if value is None or isinstance(value, str) else str(value) for value in ids]
        return Piece(shard, first, ids, good, begin, end)

    def _checked(self, row: Any) -> Any:
        if isinstance(row, Bad):
            return row
        for text in row:
            if text is None:
                return Bad("null")
            if not isinstance(text, str):
                return Bad(f"{type(text).__name__}, not text")
            if len(text) > self.max_characters:
                return Bad(f"{len(text)} characters, more than {self.max_characters}")
            if not text or text.isspace():
                return Bad("empty")
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    return Bad("no UTF-8")
        return row

    def _parquet_pieces(self, name: str, start: int, wanted: Callable[[int], bool]) -> Iterator[Piece]:
        """Pieces whose `begin` and `end` are of this file's rows."""
        import pyarrow as pa
        import pyarrow.types as kinds

        names = [*self.columns, *([self.id_column] if self.id_column else [])]
        with _parquet(name) as file:
            schema = file.schema_arrow
            for column in names:
                _check_column(name, column, schema.names)
            for column in self.columns:
                kind = schema.field(column).type
                kind = kind.value_type if kinds.is_dictionary(kind) else kind
                if not (kinds.is_string(kind) or kinds.is_large_string(kind) or str(kind) == "string_view"):
                    raise BertfuseError(f"{name}: column {column} is {kind}, not text; name another with --column")
            top, total, row, groups = start, max(1, file.metadata.num_rows), start, []
            skipped = True
            for group in range(file.metadata.num_row_groups):
                end = row + file.metadata.row_group(group).num_rows
                shards = range(row // self.shard_rows, max(row, end - 1) // self.shard_rows + 1)
                if skipped and not any(map(wanted, shards)):  # what is done lies in front
                    start = end
                else:
                    skipped = False
                    groups.append(group)
                row = end
            row = start
            try:
                for batch in file.iter_batches(_PIECE, row_groups=groups, columns=names) if groups else ():
                    at = 0
                    while at < batch.num_rows:
                        shard = (row + at) // self.shard_rows
                        count = min(batch.num_rows - at, (shard + 1) * self.shard_rows - row - at)
                        if wanted(shard):
                            part = batch.slice(at, count)
                            texts = list(zip(*(part.column(n).to_pylist() for n in self.columns), strict=True))
                            ids = part.column(self.id_column).to_pylist() if self.id_column else None
                            begin = (row + at - top) / total
                            yield self._piece(shard, row + at, ids, texts, begin, begin + count / total)
                        at += count
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise BertfuseError(f"{name}: cannot be read from row {row} on: {_line(error)}") from error

    def _rows(self, name: str, kind: str, handle: BinaryIO) -> Iterator[tuple[Any, Any]]:
        """(id, a tuple of texts or a Bad) of each row of a file of lines."""
        return {"txt": self._txt, "jsonl": self._jsonl, "csv": self._csv}[kind](name, handle)

    def _txt(self, name: str, handle: BinaryIO) -> Iterator[tuple[Any, Any]]:
        for line in _lines(handle, 4 * self.max_characters):
            yield None, line if isinstance(line, Bad) else (line,)

    def _jsonl(self, name: str, handle: BinaryIO) -> Iterator[tuple[Any, Any]]:
        # Room for what else a row may hold, and for escapes.
        for line in _lines(handle, 16 * self.max_characters):
            if isinstance(line, Bad):
                yield None, line
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                yield None, Bad("empty" if not line.strip() else "no JSON")
                continue
            if not isinstance(found, dict):
                yield None, Bad("no JSON object")
                continue
            identity = found.get(self.id_column) if self.id_column else None
            missing = next((column for column in self.columns if column not in found), None)
            texts = tuple(found.get(column) for column in self.columns)
            yield _text_of(identity), texts if missing is None else Bad(f"no column {missing!r}")

    def _csv(self, name: str, handle: BinaryIO) -> Iterator[tuple[Any, Any]]:
        csv.field_size_limit(1 << 30)
        # Bytes that are no UTF-8 become what makes the row bad.
        lines = _decoded(handle)
        try:
            reader = csv.reader(lines)
            header = next(reader, None)
            if header is None:
                return
            names = [*self.columns, *([self.id_column] if self.id_column else [])]
            for column in names:
                _check_column(name, column, header)
            places = [header.index(column) for column in names]
            for row in reader:
                if not row:
                    continue  # as csv files end
                cells = [row[place] if place < len(row) else None for place in places]
                yield (cells.pop() if self.id_column else None), tuple(cells)
        except csv.Error as error:
            raise BertfuseError(f"{name}: is not CSV from line {reader.line_num} on: {error}") from error


STDIN_HANDLE = 0


def _files(path: str, kind: str | None) -> list[tuple[str, str]]:
    """The files that `path` stands for, each with its format."""
    if path == STDIN:
        if kind == "parquet":
            raise BertfuseError("parquet cannot be read from standard input: name the file")
        return [(STDIN, kind or "txt")]
    place = Path(path)
    if place.is_dir():
        names = sorted(entry for entry in place.rglob("*") if entry.is_file() and not _hidden(entry, place))
        # Beside data .json is what says something of it.
        named = [(entry, kind or _format(entry)) for entry in names if kind or entry.suffix.lower() != ".json"]
        found = [(str(entry), of_name) for entry, of_name in named if of_name in FORMATS]
        if not found:
            raise BertfuseError(f"{path}: holds no {', '.join(f'.{name}' for name in FORMATS)} file")
        return found
    if not place.is_file():
        raise BertfuseError(f"{path}: no such file or folder; check the path")
    named = _format(place)
    if kind is None and named not in FORMATS:
        raise BertfuseError(
            f"{path}: its name ends in none of {', '.join(FORMATS)}; say what it is with --input-format"
        )
    return [(path, kind or named)]


def _format(file: Path) -> str:
    """What the file holds, by its name; whether that can be read is another matter."""
    suffix = file.suffix.lower().removeprefix(".")
    return {"json": "jsonl", "ndjson": "jsonl"}.get(suffix, suffix)


def _hidden(entry: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in entry.relative_to(folder).parts)


def _check_column(name: str, column: str, there: Sequence[str]) -> None:
    if column not in there:
        raise BertfuseError(f"{name}: has no column {column!r}; it has {', '.join(map(str, there)) or 'none'}")


def _parquet(name: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return parquet.ParquetFile(name)
    except (pa.ArrowException, OSError) as error:
        raise BertfuseError(f"{name}: cannot be read as parquet: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _lines(handle: BinaryIO, longest: int) -> Iterator[Any]:
    """Each line without its end; of one of more than `longest` bytes no more is held than that."""
    first = True
    while line := handle.readline(longest + 1):
        if first:
            line, first = line.removeprefix(codecs.BOM_UTF8), False
        if len(line) > longest and not line.endswith(b"\n"):
            count = len(line)
            while line and not line.endswith(b"\n"):
                line = handle.readline(longest)
                count += len(line)
            yield Bad(f"{count} bytes in one line")
            continue
        try:
            yield line.rstrip(b"\r\n").decode()
        except UnicodeDecodeError:
            yield Bad("no UTF-8")


def _decoded(handle: BinaryIO) -> Iterator[str]:
    first = True
    for line in handle:
        yield line.decode("utf-8-sig" if first else "utf-8", errors="surrogateescape")
        first = False


def _text_of(value: Any) -> Any:
    """Ids of JSON rows as texts, of one type in all files."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
