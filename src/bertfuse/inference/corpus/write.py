"""Shards of results as parquet, npy or jsonl files: all of a file appears, or nothing does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.files import replacing

FORMATS = ("parquet", "npy", "jsonl")


def file_name(part: str, kind: str) -> str:
    return f"part-{part}.{kind}"


@dataclass(frozen=True)
class Results:
    """What is written of a shard.

    Args:
        ids: of each row, of `id_kind` "int64" or "string"; None where the input has none.
        columns: [rows] or [rows, size] each, or of object, an array of a length of its own in each row; "label" holds
            indices of `labels`.
    """

    ids: Sequence[Any]
    id_kind: str
    columns: Mapping[str, np.ndarray]
    labels: Sequence[str] = ()


def write_part(folder: Path, part: str, kind: str, results: Results) -> None:
    """Writes one file. One of npy has the column of most numbers alone, and ids in a second file, absent ones as ""."""
    {"parquet": _parquet, "npy": _npy, "jsonl": _jsonl}[kind](folder / file_name(part, kind), results)


def check_format(kind: str) -> None:
    """Raises BertfuseError for a format that is unknown."""
    if kind not in FORMATS:
        raise BertfuseError(f"--format {kind!r} is unknown: choose one of {', '.join(FORMATS)}")


def _parquet(path: Path, results: Results) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    made: dict[str, Any] = {"id": pa.array(results.ids, results.id_kind)}
    for name, values in results.columns.items():
        if name == "label":
            made[name] = pa.array([results.labels[index] for index in values], "string")
        elif values.dtype == object:
            bounds = np.cumsum([0, *map(len, values)])
            made[name] = pa.LargeListArray.from_arrays(pa.array(bounds, "int64"), _array(np.concatenate(values)))
        elif values.ndim == 1:
            made[name] = pa.array(values)
        else:
            made[name] = _array(values)
    with replacing(path) as temporary:
        # Vectors are noise to a compressor.
        parquet.write_table(pa.table(made), temporary, compression="none", use_dictionary=False)


def _array(values: np.ndarray) -> Any:
    """pyarrow's of [rows] or [rows, size]."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _npy(path: Path, results: Results) -> None:
    if results.id_kind == "int64" and None not in results.ids:
        ids = np.asarray(results.ids, np.int64)
    else:
        ids = np.asarray(["" if value is None else str(value) for value in results.ids], str)
    if any(values.dtype == object for values in results.columns.values()):
        raise BertfuseError("--format npy: rows of unequal lengths are no array; take parquet or jsonl")
    numbers = max(results.columns.values(), key=lambda values: values.ndim)
    # Neither is in place before both are written.
    with replacing(path.with_suffix(".ids.npy")) as ids_file, replacing(path) as numbers_file:
        for place, array in ((ids_file, ids), (numbers_file, numbers)):
            with place.open("wb") as handle:
                array = np.ascontiguousarray(array)
                # np.save's own error for a full disk does not say that it is full.
                np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(array))
                handle.write(array.reshape(-1).view(np.uint8).data)


def _lists(values: np.ndarray) -> list[Any]:
    return [row.tolist() for row in values] if values.dtype == object else values.tolist()


def _jsonl(path: Path, results: Results) -> None:
    rows = {name: _lists(values) for name, values in results.columns.items()}
    if "label" in rows:
        rows["label"] = [results.labels[index] for index in rows["label"]]
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as handle:
        for row, identity in enumerate(results.ids):
            entry = {"id": identity} | {name: values[row] for name, values in rows.items()}
            handle.write(json.dumps(entry, ensure_ascii=False) + "\n")
