"""A model before and after fusion on the CPU, small sizes among them: python -m tests.measuring.cpu_turns DIR

DIR is a folder that `bertfuse optimize` wrote. Three take turns in ONNX Runtime: the original file, the fused file
through its op bodies, and the fused file through the library. Every session is as it comes but for its number of
threads and whether these spin while they wait. The table has milliseconds, the least and the median of all runs, and
the least processor time of a run, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from bertfuse.analysis.bench import machine
from bertfuse.model_folder.files import model_pair
from bertfuse.runtime.inputs import random_inputs, vocabulary_sizes
from bertfuse.runtime.library import register

SIZES = "1x1,1x4,1x16,1x64,1x128,4x32,8x128,32x32"
NAMES = ("original", "bodies", "library")
# Threads of a session that has run spin on for a while and take the next one's core.
PAUSE = 0.004


def sessions(folder: Path, threads: int, spinning: bool) -> list[onnxruntime.InferenceSession]:
    original, fused = model_pair(folder)
    made = []
    for name, path in zip(NAMES, (original, fused, fused), strict=True):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        options.log_severity_level = 4
        if name == "library":
            register(options)
        made.append(onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    return made


def times(made: Sequence[Any], feed: dict, seconds: float) -> list[tuple[float, float, float, float]]:
    """Least and median milliseconds, and least and median processor milliseconds, of each session."""
    taken: list[list[tuple[float, float]]] = [[] for _ in made]
    for session in made:
        session.run(None, feed)
    end, turn = time.perf_counter() + seconds, 0
    while turn < 8 or time.perf_counter() < end:
        order = range(len(made)) if turn % 2 else reversed(range(len(made)))
        for index in order:
            time.sleep(PAUSE)
            made[index].run(None, feed)  # the one before it left its own weights in the caches
            for _ in range(3):
                start, begun = time.perf_counter(), time.process_time()
                made[index].run(None, feed)
                taken[index].append((time.perf_counter() - start, time.process_time() - begun))
        turn += 1
    found = []
    for runs in taken:
        wall, processor = zip(*runs, strict=True)
        found.append(tuple(1e3 * of(all_) for all_ in (wall, processor) for of in (min, statistics.median)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--spinning", default="0,1")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row")
    given = parser.parse_args()
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, onnxruntime {about['onnxruntime']}; least, median / processor\n")
    print("| threads, spinning | size |" + " | ".join(NAMES) + " | bodies / original | library / original |")
    print("|---|---|" + "---|" * (len(NAMES) + 2))
    for threads in map(int, given.threads.split(",")):
        for spinning in map(int, given.spinning.split(",") if threads > 1 else "0"):
            made = sessions(given.folder, threads, bool(spinning))
            rows = vocabulary_sizes(model_pair(given.folder)[0])
            for size in given.sizes.split(","):
                batch, sequence = map(int, size.split("x"))
                found = times(made, random_inputs(made[0], rows, batch, sequence, padded=False), given.seconds)
                cells = [f"{least:.3g}, {median:.3g} / {processor:.3g}" for least, median, processor, _ in found]
                ratios = [f"{found[i][0] / found[0][0]:.2f}, {found[i][1] / found[0][1]:.2f}" for i in (1, 2)]
                name = f"{threads}, spinning" if spinning else str(threads)
                print(f"| {name} | {size} | " + " | ".join([*cells, *ratios]) + " |")


if __name__ == "__main__":
    main()
