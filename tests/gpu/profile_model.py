"""Where a fused model's time on the GPU goes: every kernel of a CUDA graph's replay, from CUPTI (PyTorch's profiler).

    python -m tests.gpu.profile_model DIR/model.fused.onnx --sizes 32x128,128x128

A kernel's time is from the end of the one before it to its own end, so the pauses between kernels are in it; medians
over layers and replays. Rows are the kernels of a layer, counted from its attention on; a last line has the share of
the whole that is spent in our kernels.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from bertfuse.measuring.gpu_contenders import BoundRuns, GpuOptions, cuda_session

OURS = "bertfuse"
REPLAYS = 20


def replays(run):
    """[[(name, start, end), ...] of each replay], microseconds."""
    for _ in range(50):  # until the clock is where it stays
        run()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(REPLAYS):
            run()
        torch.cuda.synchronize()
    found = [(e.name, e.time_range.start, e.time_range.end) for e in profiler.events() if e.device_type.name == "CUDA"]
    found.sort(key=lambda event: event[1])
    if len(found) % REPLAYS:
        raise SystemExit(f"{len(found)} kernels in {REPLAYS} replays: they are not all alike")
    each = len(found) // REPLAYS
    return [found[i : i + each] for i in range(0, len(found), each)]


def short(name):
    """Without what all have in common."""
    name = re.sub(r"void |bertfuse::kernels::|\(anonymous namespace\)::", "", name)
    return re.sub(r"\((?:int|bool|bertfuse[\w:]*|GemmEpilogue)\)", "", name).split("(")[0][:70]


def report(size, runs):
    # The order of a layer's kernels is the same in all of them: after each attention the others are counted.
    places = defaultdict(list)
    ours = whole = 0.0
    for run in runs:
        place, before = None, None
        for name, start, end in run:
            if "attention" in name.lower():
                place = 0
            elif place is not None:
                place += 1
            spent = end - (start if before is None else before)
            before = end
            if place is not None:
                places[place].append((name, spent))
            if OURS in name:
                ours += spent
        whole += run[-1][2] - run[0][1]
    print(f"{size}: {len(runs[0])} kernels, {whole / len(runs) / 1e3:.4f} ms from the first's start to the last's end")
    for place in sorted(places):
        names = [name for name, _ in places[place]]
        most = max(set(names), key=names.count)
        times = [spent for name, spent in places[place] if name == most]
        print(f"  {median(times):8.2f} us  x{len(times) // len(runs):3d}  {short(most)}")
    print(f"  {ours / whole:.1%} of it in our kernels", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sizes", default="1x128,32x128,128x128")
    options = parser.parse_args()
    session = cuda_session(options.model, "always", GpuOptions(cuda_graph=True))
    runs = BoundRuns(session, str(options.model))
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    for size in options.sizes.split(","):
        batch, sequence = map(int, size.split("x"))
        feed = {
            value.name: np.full((batch, sequence), int("mask" in value.name), types[value.type])
            for value in session.get_inputs()
        }
        report(size, replays(lambda feed=feed: runs(feed)))


if __name__ == "__main__":
    main()
