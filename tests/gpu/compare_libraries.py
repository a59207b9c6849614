"""Times one model with several builds of the op library, in turn: whether a change of the kernels costs anything.

    python -m tests.gpu.compare_libraries base/onnx/model.onnx before.so after.so --sizes 1x128,32x128 [--rounds 3]
    python -m tests.gpu.compare_libraries packed.onnx before.so after.so --sizes sentences,passages,pairs

One GPU. Each build and round is a process of its own, which replays a CUDA graph with inputs and outputs bound on the
GPU: medians of five batches of 30 runs, milliseconds. Random token ids, without padding or of the lengths of one of
`bertfuse bench --ragged`'s workloads. The model's ops must be known to every build.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

from bertfuse.analysis.workloads import DISTRIBUTIONS, drawn_lengths

WARMUP, BATCHES, RUNS = 5, 5, 30


def lengths_of(size: str) -> tuple[np.ndarray, int]:
    """Tokens of each text, and what they are padded to."""
    if size in DISTRIBUTIONS:
        return drawn_lengths(size)
    batch, sequence = map(int, size.split("x"))
    return np.full(batch, sequence), sequence


def replay_ms(model: str, library: str, lengths: np.ndarray, sequence: int) -> float:
    """Milliseconds of one run."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(library)
    providers = [("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]
    session = onnxruntime.InferenceSession(model, options, providers=providers)
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise SystemExit("the CUDA provider does not load: bertfuse doctor says why")
    random, batch = np.random.default_rng(0), len(lengths)
    mask = np.arange(sequence) < lengths[:, None]
    binding = session.io_binding()
    bound = []  # what is bound must outlive the runs
    for node in session.get_inputs():
        value = random.integers(1000, 20000, (batch, sequence)) if "ids" in node.name else mask
        value = np.zeros((batch, sequence)) if "type" in node.name else value
        dtype = np.int64 if "int64" in node.type else np.int32
        bound.append(onnxruntime.OrtValue.ortvalue_from_numpy(value.astype(dtype), "cuda", 0))
        binding.bind_ortvalue_input(node.name, bound[-1])
    output = session.get_outputs()[0]
    dtype = np.float16 if "float16" in output.type else np.float32
    shape = (batch, sequence, output.shape[-1])
    bound.append(onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, dtype, "cuda", 0))
    binding.bind_ortvalue_output(output.name, bound[-1])
    for _ in range(WARMUP):
        session.run_with_iobinding(binding)
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(RUNS):
            session.run_with_iobinding(binding)
        times.append((time.perf_counter() - start) / RUNS * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--sizes", default="1x128,8x128,32x128,128x128,32x384,16x512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.sizes.split(",")
    sizes = [lengths_of(name) for name in names]
    if arguments.worker:
        print(json.dumps([replay_ms(arguments.model, arguments.libraries[0], *size) for size in sizes]))
        return
    times: dict[str, list[list[float]]] = {library: [] for library in arguments.libraries}
    for _ in range(arguments.rounds):
        for library in arguments.libraries:
            command = [sys.executable, "-m", "tests.gpu.compare_libraries", arguments.model]
            command += [str(Path(library).resolve()), "--worker", "--sizes", arguments.sizes]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                raise SystemExit(f"{library}: {(ran.stderr.strip().splitlines() or ['no message'])[-1]}")
            times[library].append(json.loads(ran.stdout.splitlines()[-1]))
            print(library, *(f"{size} {ms:.4f}" for size, ms in zip(names, times[library][-1], strict=True)))
    first = [statistics.median(column) for column in zip(*times[arguments.libraries[0]], strict=True)]
    for library in arguments.libraries[1:]:
        medians = [statistics.median(column) for column in zip(*times[library], strict=True)]
        ratios = (f"{size} {ms / base:.3f}" for size, ms, base in zip(names, medians, first, strict=True))
        print(f"{library} / {arguments.libraries[0]}:", *ratios)


if __name__ == "__main__":
    main()
