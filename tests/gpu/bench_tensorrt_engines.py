"""bert-base of random weights, float16, in TensorRT 8.6 with our plugins, beside ONNX Runtime with our ops. One GPU.

    python -m tests.gpu.bench_tensorrt_engines FOLDER --make models    # needs no GPU
    python -m tests.gpu.bench_tensorrt_engines FOLDER --make wide      # a plan by its name; ours may be built at once
    python -m tests.gpu.bench_tensorrt_engines FOLDER [--own]          # makes what is missing, and measures
    python -m tests.gpu.bench_tensorrt_engines FOLDER --own --there    # measures, leaving out plans that are missing

The plans: one for each size (1x128, 8x128, …), "wide" (padded, one profile from 1x1 to 128x512), "remove" and "ragged"
(without padding, in as wide a profile); with --own also own-1x128, …: what TensorRT itself makes of FOLDER/own.onnx
or, where that is missing, of FOLDER/source.onnx, the file before fusion. That takes up to a minute, alone on the GPU.
Plans demo-1x128, … of NVIDIA's demo/BERT are measured where they are there and --plugins names what they need.

Milliseconds, the median of five turns of 30 runs, contenders in turn, in every second round in the opposite order.
Each runs for a while before it is timed, so that the clock is its own load's and not that of the contender before it.
"replay": CUDA-graph replays back to back, by the GPU's clock; "waited": the host
waits for each, as ONNX Runtime's run_with_iobinding does. Errors are of the norm, against ONNX Runtime's float32 on the
CPU. Needs what test_tensorrt_engines.py needs.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bertfuse.analysis.workloads import drawn_lengths
from bertfuse.graph_rewrite import fuse_file
from bertfuse.runtime import library_path
from bertfuse.runtime.ragged_inputs import ragged
from bertfuse.runtime.trt.model import prepare

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
SIZES = ("1x128", "8x128", "32x128", "128x128", "32x384", "16x512")
WIDE = ((1, 1), (32, 128), (128, 512))
UNPADDED = ("remove", "ragged")
SETTLING, ROUNDS = 0.06, 5  # seconds before each turn
PADDED_TO = {"sentences": "128x128", "passages": "32x384"}  # one of SIZES, whose padded engine is measured beside it
Feed = dict[str, np.ndarray]


def sizes_of(name: str) -> tuple[int, int]:
    batch, sequence = name.removeprefix("own-").split("x")
    return int(batch), int(sequence)


def feed_of(lengths: np.ndarray, sequence: int) -> Feed:
    mask = (np.arange(sequence)[None] < lengths[:, None]).astype(np.int64)
    ids = np.random.default_rng(0).integers(0, 30000, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def make_models(folder: Path) -> None:
    source = folder / "source.onnx"
    if not source.exists():
        from bertfuse.export import export_model
        from tests.gpu.test_models import build

        model = build("bert-base")
        export_model(model, folder, exporter="torchscript", attention="eager", opset=17).replace(source)
    for padding in ("keep", *UNPADDED):
        fused = folder / f"{padding}.onnx"
        if not (folder / f"{padding}.trt.onnx").exists():
            fuse_file(source, fused, dtype="fp16", padding=padding)
            prepare(fused, folder / f"{padding}.trt.onnx", plugins=True, older_parser=True)


def make_plan(runner: Any, folder: Path, name: str) -> None:
    """FOLDER/NAME.plan, unless it is there."""
    target = folder / f"{name}.plan"
    if target.exists():
        return
    model = folder / f"{name if name in UNPADDED else 'keep'}.trt.onnx"
    if name.startswith("own-"):
        model = next(file for file in (folder / "own.onnx", folder / "source.onnx") if file.exists())
    bounds: dict[str, Any] = dict.fromkeys(TOKENS, (sizes_of(name),) * 3 if "x" in name else WIDE)
    if name == "ragged":
        ids, texts = ((1,), (4096,), (65536,)), ((2,), (33,), (129,))
        bounds = {"input_ids": ids, "token_type_ids": ids, "cu_seqlens": texts, "max_seqlen": ((1,), (128,), (512,))}
    start = time.perf_counter()
    plan, layers = runner.build(model, [bounds], half=True)
    part = target.with_suffix(f".{os.getpid()}")
    part.write_bytes(plan)
    part.replace(target)
    print(f"{name}: {layers} plugin layers, {len(plan) / 1e6:.0f} MB, {time.perf_counter() - start:.1f} s", flush=True)


def captured(runner: Any, plan: Path, feed: Feed) -> tuple[dict[str, Callable[[], float]], Any]:
    """What times a run of 30, and the context, which has run once."""
    import torch

    from bertfuse.measuring.cuda_graphs import capture, microseconds

    context = runner.load(plan.read_bytes()).context()
    context.run(feed)
    graph = capture([context.enqueue])

    def replay_and_wait() -> None:
        graph.replay()
        torch.cuda.current_stream().synchronize()

    return {"replay": lambda: microseconds(graph, 30) / 1e3, "waited": lambda: waited(replay_and_wait)}, context


def in_onnxruntime(model: Path, feed: Feed) -> Callable[[], float]:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library_path("onnxruntime")))
    providers: list[Any] = [("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]
    session = onnxruntime.InferenceSession(str(model), options, providers=providers)
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise SystemExit("ONNX Runtime has no CUDA provider here")
    binding, bound = session.io_binding(), []
    for name in (value.name for value in session.get_inputs()):
        bound.append(onnxruntime.OrtValue.ortvalue_from_numpy(feed[name], "cuda", 0))
        binding.bind_ortvalue_input(name, bound[-1])
    shape = [*feed["input_ids"].shape, session.get_outputs()[0].shape[-1]]
    bound.append(onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float16, "cuda", 0))
    binding.bind_ortvalue_output(session.get_outputs()[0].name, bound[-1])
    return lambda: waited(lambda: session.run_with_iobinding(binding), keep=bound)


def waited(run: Callable[[], object], keep: object = None) -> float:
    start = time.perf_counter()
    for _ in range(30):
        run()
    return (time.perf_counter() - start) / 30 * 1e3


def in_turn(contenders: dict[str, Callable[[], float]]) -> dict[str, float]:
    def turn(run: Callable[[], float]) -> float:
        start = time.perf_counter()
        while time.perf_counter() - start < SETTLING:
            run()
        return run()

    turns: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS):
        for name in list(contenders) if number % 2 == 0 else reversed(contenders):
            turns[name].append(turn(contenders[name]))
    return {name: statistics.median(took) for name, took in turns.items()}


def measure(runner: Any, folder: Path, label: str, plans: dict[str, str], model: str, feed: Feed) -> dict[str, float]:
    """One line: `plans` (how each is called: the plan's name) and ONNX Runtime with `model`."""
    contenders: dict[str, Callable[[], float]] = {}
    kept = []
    for called, plan in plans.items():
        if not (folder / f"{plan}.plan").exists():
            continue
        fitting = ragged(feed) if plan == "ragged" else feed
        runs, context = captured(runner, folder / f"{plan}.plan", fitting)
        kept.append(context)
        if plan.startswith(("own-", "demo-")):  # only ours are compared with ONNX Runtime
            del runs["waited"]
        contenders |= {f"{called}, {way}": run for way, run in runs.items()}
    contenders["ONNX Runtime, waited"] = in_onnxruntime(folder / model, feed)
    figures = in_turn(contenders)
    print(f"{label:10}" + "  ".join(f"{name} {ms:.4f}" for name, ms in figures.items()), flush=True)
    return figures


def ratios(label: str, figures: dict[str, float], ours: Sequence[str]) -> None:
    pairs = [("wide / engine", "wide, replay", "engine, replay")]
    for name in ours:
        pairs.append((f"{name} / ONNX Runtime", f"{name}, waited", "ONNX Runtime, waited"))
        for other in ("TensorRT's own", "demo/BERT"):
            pairs.append((f"{other} / {name}", f"{other}, replay", f"{name}, replay"))
    said = [f"{name} {figures[a] / figures[b]:.3f}" for name, a, b in pairs if a in figures and b in figures]
    print(f"{label:10}RATIO  " + "  ".join(said), flush=True)


def errors(runner: Any, folder: Path, plans: list[str]) -> None:
    """At 8x128, seven of eight texts with padding."""
    feed = feed_of(np.array([128, 100, 77, 50, 128, 9, 64, 31]), 128)
    session = onnxruntime.InferenceSession(str(folder / "source.onnx"), providers=["CPUExecutionProvider"])
    seen = feed["attention_mask"].astype(bool)
    wanted = session.run(None, feed)[0][seen]
    for plan in plans:
        if not (folder / f"{plan}.plan").exists():
            continue
        context = runner.load((folder / f"{plan}.plan").read_bytes()).context()
        got = context.run(ragged(feed) if plan == "ragged" else feed)["last_hidden_state"].float().cpu().numpy()
        got = got.reshape(wanted.shape) if plan == "ragged" else got[seen]
        print(f"{plan}: error {np.linalg.norm(got - wanted) / np.linalg.norm(wanted):.2e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--own", action="store_true", help="also TensorRT's own engines")
    parser.add_argument("--make", default="", help="only make these, with commas: models, or plans by their names")
    parser.add_argument("--there", action="store_true", help="leave out plans that are not there")
    parser.add_argument("--plugins", metavar="FILE", help="libnvinfer_plugin.so.8, for the plans of demo/BERT")
    arguments = parser.parse_args()
    folder, sizes = arguments.folder, arguments.sizes.split(",")
    folder.mkdir(parents=True, exist_ok=True)
    own = [f"own-{size}" for size in sizes] if arguments.own else []
    wanted = arguments.make.split(",") if arguments.make else [*sizes, "wide", *UNPADDED, *own]
    make_models(folder)
    if wanted == ["models"]:
        return
    from tests.gpu.tensorrt_runner import Runner

    runner = Runner.ours()
    if arguments.plugins:
        ctypes.CDLL(arguments.plugins).initLibNvInferPlugins(None, b"")
    for name in wanted if arguments.make or not arguments.there else []:
        make_plan(runner, folder, name)
    if arguments.make:
        return
    for size in sizes:
        batch, sequence = sizes_of(size)
        plans = {"engine": size, "wide": "wide", "TensorRT's own": f"own-{size}", "demo/BERT": f"demo-{size}"}
        feed = feed_of(np.full(batch, sequence), sequence)
        ratios(size, measure(runner, folder, size, plans, "keep.onnx", feed), ["engine"])
    for name, padded in PADDED_TO.items():
        plans = {"remove": "remove", "ragged": "ragged", "TensorRT's own": f"own-{padded}"}
        feed = feed_of(*drawn_lengths(name))
        print(f"{name}: {int(feed['attention_mask'].sum())} tokens", flush=True)
        ratios(name, measure(runner, folder, name, plans, "remove.onnx", feed), UNPADDED)
    errors(runner, folder, ["8x128", "wide", *UNPADDED, "own-8x128", "demo-8x128"])


if __name__ == "__main__":
    main()
