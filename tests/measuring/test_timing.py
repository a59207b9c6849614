"""How contenders take turns."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from bertfuse.measuring import timing
from bertfuse.measuring.contenders import Contender
from bertfuse.measuring.timing import interleaved


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("seconds", [0, 0.031, 2])
def test_turns_go_both_ways_after_a_warm_up_of_ones_own(
    seconds: float, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    milliseconds = {"slow": 5.0, "quick": 0.25, "slower": 30.0}
    ran: list[str] = []

    def run(contender: Contender, feed: dict[str, np.ndarray]) -> float:
        ran.append(contender.name)
        return milliseconds[contender.name]

    monkeypatch.setattr(timing, "_run", run)
    monkeypatch.setattr(timing, "PAUSE", 0)
    timings = interleaved([Contender(name) for name in milliseconds], {}, 1, 8, seconds, on_gpu)
    assert [t.contender for t in timings] == list(milliseconds)
    runs = {t.runs for t in timings}
    assert len(runs) == 1 and min(runs) >= max(6, int(seconds * 1000 / 30) - 6)
    # The first three runs of each are for the guess; the last of a turn is the first of the next.
    blocks = [(name, len(list(group))) for name, group in groupby(ran[9:])]
    names = [name for name, _ in blocks]
    assert names[:5] == ["slow", "quick", "slower", "quick", "slow"] and names[-1] == "slow"
    assert names.count("quick") % 2 == 0
    counted = min(runs) // names.count("quick")
    assert dict(blocks[1:2])["quick"] == 80 + counted  # 20 ms
    assert blocks[0] == ("slow", 4 + counted)
    assert blocks[2] == ("slower", 2 * (2 + counted))
