"""int8 models on the CPU, taking turns: python -m tests.measuring.cpu_int8 FLOAT INT8 [--threads 1] [--seconds 6]

FLOAT is a folder that `bertfuse optimize` wrote, INT8 what `bertfuse quantize` made of it. Beside them: the original
as `onnxruntime.quantization.quantize_dynamic` quantises it, and that file fused. Milliseconds of a run, the least and
the median, and the least processor time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import onnxruntime
from onnxruntime.quantization import quantize_dynamic

from bertfuse.analysis.bench import machine
from bertfuse.graph_rewrite import fuse_file
from bertfuse.model_folder.files import model_pair
from bertfuse.runtime.inputs import random_inputs, vocabulary_sizes
from bertfuse.runtime.library import register
from tests.measuring.cpu_turns import times


def session(path: Path, threads: int, library: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    if library:
        register(options)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("floats", type=Path)
    parser.add_argument("int8", type=Path)
    parser.add_argument("--sizes", default="1x16,1x128,8x128")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each size")
    given = parser.parse_args()
    original, ours = model_pair(given.floats)[0], model_pair(given.int8)[1]
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, onnxruntime {about['onnxruntime']}, {given.threads} threads\n")
    with tempfile.TemporaryDirectory() as scratch:
        theirs, fused = Path(scratch, "theirs.onnx"), Path(scratch, "fused.onnx")
        quantize_dynamic(original, theirs)
        fuse_file(theirs, fused)
        contenders = {
            "original, float32": session(original, given.threads, False),
            "quantize_dynamic": session(theirs, given.threads, False),
            "quantize_dynamic, fused": session(fused, given.threads, True),
            "bertfuse int8, op bodies": session(ours, given.threads, False),
            "bertfuse int8, library": session(ours, given.threads, True),
        }
        sizes = [tuple(map(int, size.split("x"))) for size in given.sizes.split(",")]
        rows, made = vocabulary_sizes(original), list(contenders.values())
        found = [times(made, random_inputs(made[0], rows, *size, padded=False), given.seconds) for size in sizes]
    print("| least, median / processor | " + " | ".join(given.sizes.split(",")) + " |\n|---|" + "---|" * len(sizes))
    for place, name in enumerate(contenders):
        cells = [f"{least:.3g}, {median:.3g} / {cpu:.3g}" for least, median, cpu in (of[place] for of in found)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
