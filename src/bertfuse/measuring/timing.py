"""Milliseconds per run, all contenders in turn so that noise hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .contenders import Contender

PAUSE = 0.05  # seconds
WARM_UP = 20.0  # milliseconds of runs before each block that do not count; two runs at least
TURNS = 6  # blocks of each contender, at least: half of them forwards, half of them backwards


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one contender at one size: median, the middle half's range, the least, and how many runs."""

    contender: str
    batch: int
    sequence: int
    median: float
    low: float
    high: float
    least: float
    runs: int

    def overlaps(self, other: Timing) -> bool:
        """Whether the middle halves of both runs do: no difference was measured then."""
        return self.low <= other.high and other.low <= self.high


def interleaved(
    present: Sequence[Contender],
    feed: dict[str, np.ndarray],
    batch: int,
    sequence: int,
    seconds: float,
    on_gpu: bool = False,
) -> list[Timing]:
    """Times the contenders in turn, block by block, the slowest for about `seconds`, each as often.

    The turns go forwards and backwards, so that none has the same one before it every time: at a GPU's power limit what
    follows a contender that draws less power looks faster.
    """
    taken: dict[str, list[float]] = {contender.name: [] for contender in present}
    guess = max(min(_run(contender, feed) for _ in range(3)) for contender in present)  # the first may capture a graph
    rounds = max(TURNS, min(1000, int(seconds * 1000 / guess)))
    # Blocks after a pause, not single runs: the threads of onnxruntime and PyTorch spin on for a while after a
    # run, and the next contender's weights are out of the caches. On two cores that tripled a run's time.
    block, pause = min(20, rounds // TURNS), PAUSE
    if on_gpu:
        # A GPU lowers its clock in a pause, and takes milliseconds of work to raise it.
        block, pause = rounds // TURNS, 0.0
    turns = rounds // block
    for turn in range(turns + turns % 2):
        for contender in reversed(present) if turn % 2 else present:
            time.sleep(pause)
            spent = _run(contender, feed) + _run(contender, feed)
            while spent < WARM_UP:
                spent += _run(contender, feed)
            taken[contender.name] += [_run(contender, feed) for _ in range(block)]
    made = []
    for name, times in taken.items():
        low, median, high = statistics.quantiles(times, n=4)
        made.append(Timing(name, batch, sequence, median, low, high, min(times), len(times)))
    return made


def _run(contender: Contender, feed: dict[str, np.ndarray]) -> float:
    assert contender.run is not None
    start = time.perf_counter()
    contender.run(feed)
    return (time.perf_counter() - start) * 1e3
