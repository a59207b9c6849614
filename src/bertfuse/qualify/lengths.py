"""The lengths of packed sequences, as text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def write(lengths: Sequence[int]) -> str:
    """ "3,0,5x40": runs of equal lengths as length x count; "-" for no sequence at all."""
    runs = [(length, len(list(run))) for length, run in itertools.groupby(lengths)]
    return ",".join(f"{length}x{count}" if count > 1 else str(length) for length, count in runs) or "-"


def read(text: str) -> tuple[int, ...]:
    """The lengths that `write` wrote. Raises ValueError for any other text."""
    found: list[int] = []
    for part in text.split(",") if text != "-" else []:
        length, times, count = part.partition("x")
        if int(length) < 0 or (times and not 0 < int(count) <= 1 << 20):
            raise ValueError(text)
        found += [int(length)] * (int(count) if times else 1)
    return tuple(found)
