"""Ranges of the numbers in vectors, by which a corpus is embedded in 8 bits: the same in every shard and process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from bertfuse.errors import BertfuseError

from ..vectors import check_precision, ranges_of
from .read import Bad, Source
from .tasks import Embed, Wanted

RANGES = "ranges.npy"  # in the folder of the shards: float32 [2, size]
_TEXTS = 10_000


def calibrated(wanted: Wanted, source: Source, folder: Path, device: str | None, ranges: Path | None = None) -> Wanted:
    """`wanted` with the ranges that its precision needs, where it needs some.

    Those are of the file `ranges`; else of `folder`, where an earlier run left them; else of the vectors of the first
    10,000 rows. Raises BertfuseError for a file that holds none, and where rows can be read only once.
    """
    check_precision(wanted.precision)
    if wanted.precision not in ("int8", "uint8"):
        if ranges is not None:
            raise BertfuseError(f"--ranges goes with --precision int8 or uint8, not {wanted.precision}")
        return wanted
    if ranges is None and (folder / RANGES).is_file():
        ranges = folder / RANGES
    if ranges is not None:
        found = _read(ranges)
    elif source.is_stdin:
        raise BertfuseError("standard input is read only once: give the ranges of an earlier run with --ranges")
    else:
        found = _computed(replace(wanted, precision="float32"), source, device)
    return replace(wanted, ranges=(tuple(found[0].tolist()), tuple(found[1].tolist())))


def _read(file: Path) -> np.ndarray:
    try:
        found = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BertfuseError(f"{file}: cannot be read: {error}") from error
    if found.ndim != 2 or len(found) != 2 or found.dtype.kind != "f" or not np.isfinite(found).all():
        raise BertfuseError(f"{file}: holds no ranges, which are floats [2, size]: {found.dtype} {list(found.shape)}")
    return found.astype(np.float32)


def _computed(wanted: Wanted, source: Source, device: str | None) -> np.ndarray:
    task = wanted.load(device)
    assert isinstance(task, Embed)
    made = None
    for batch in task.model.run([task.text(row) for row in _first(source)], task.outputs):
        found = ranges_of(task.columns(batch)["embedding"])
        made = found if made is None else np.stack([np.minimum(made[0], found[0]), np.maximum(made[1], found[1])])
    if made is None:
        raise BertfuseError("no row has a text, so there are no vectors to take ranges of")
    return made


def _first(source: Source) -> Iterator[tuple[str, ...]]:
    count = 0
    for piece in source.pieces():
        for row in piece.texts:
            if count == _TEXTS:
                return
            if not isinstance(row, Bad):
                count += 1
                yield row
