"""bert-base of random weights, float16, in TensorRT 8.6 with our plugins, beside ONNX Runtime with our ops. One GPU.

    python -m tests.gpu.bench_tensorrt_engines [--sizes 1x128,32x128] [--own]

Milliseconds of a CUDA-graph replay, no padding, medians of five batches of 30: an engine with a profile for the size
alone, one of a single wide profile (1x1 to 128x512), ONNX Runtime; with --own also the engine that TensorRT makes of
the file before fusion, which takes up to a minute to build. Needs what test_tensorrt_engines.py needs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bertfuse.export import export_model
from bertfuse.graph_rewrite import fuse_file
from bertfuse.measuring.cuda_graphs import capture, microseconds
from bertfuse.runtime import library_path
from bertfuse.runtime.trt.model import prepare
from tests.gpu.tensorrt_runner import Context, Runner
from tests.gpu.test_models import build

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
WIDE = ((1, 1), (32, 128), (128, 512))


def in_tensorrt(context: Context, feed: dict[str, np.ndarray]) -> float:
    context.run(feed)
    graph = capture([context.enqueue])
    microseconds(graph, 30)
    return statistics.median(microseconds(graph, 30) for _ in range(5)) / 1e3


def in_onnxruntime(model: Path, feed: dict[str, np.ndarray]) -> float:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library_path("onnxruntime")))
    providers: list[Any] = [("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]
    session = onnxruntime.InferenceSession(str(model), options, providers=providers)
    binding, bound = session.io_binding(), []
    for name, value in feed.items():
        bound.append(onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0))
        binding.bind_ortvalue_input(name, bound[-1])
    shape = [*feed["input_ids"].shape, session.get_outputs()[0].shape[-1]]
    bound.append(onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float16, "cuda", 0))
    binding.bind_ortvalue_output(session.get_outputs()[0].name, bound[-1])
    return timed(lambda: session.run_with_iobinding(binding))


def timed(run: Callable[[], object]) -> float:
    times = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(30):
            run()
        times.append((time.perf_counter() - start) / 30 * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1x128,8x128,32x128,128x128,32x384,16x512")
    parser.add_argument("--own", action="store_true", help="also TensorRT's own engine")
    arguments = parser.parse_args()
    runner = Runner(library_path("tensorrt"))
    with tempfile.TemporaryDirectory() as folder:
        source = export_model(build("bert-base"), Path(folder), exporter="torchscript", attention="eager", opset=17)
        fused, plugins = source.with_name("fused.onnx"), source.with_name("plugins.onnx")
        fuse_file(source, fused, dtype="fp16")
        prepare(fused, plugins, plugins=True, older_parser=True)

        def context(model: Path, bounds: tuple) -> Context:
            plan, _ = runner.build(model, [dict.fromkeys(TOKENS, bounds)], half=True)
            return runner.load(plan).context()

        wide = context(plugins, WIDE)
        for size in arguments.sizes.split(","):
            shape = tuple(int(number) for number in size.split("x"))
            ids = np.random.default_rng(0).integers(0, 30000, shape)
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            figures = {
                "own profile": in_tensorrt(context(plugins, (shape,) * 3), feed),
                "wide profile": in_tensorrt(wide, feed),
                "ONNX Runtime": in_onnxruntime(fused, feed),
            }
            if arguments.own:
                figures["TensorRT's own engine"] = in_tensorrt(context(source, (shape,) * 3), feed)
            print(f"{size:8}" + "  ".join(f"{name} {ms:.4f}" for name, ms in figures.items()), flush=True)


if __name__ == "__main__":
    main()
