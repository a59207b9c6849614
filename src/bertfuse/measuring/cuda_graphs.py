"""Launches captured as a CUDA graph, and the time of its replays by the GPU's own clock. Needs PyTorch and a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any


def capture(runs: Sequence[Callable[[], Any]]) -> Any:
    """A torch.cuda.CUDAGraph of the functions, one after the other, each of which launches work on PyTorch's stream."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is set up on first use cannot be captured
        for run in itertools.islice(itertools.cycle(runs), 3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph


def microseconds(graph: Any, replays: int = 1) -> float:
    """Of one replay, over so many in a row."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3 / replays
