"""Whole encoders beyond BERT, float16, one GPU: PyTorch, ONNX Runtime with the exported file, and the fused ones.

    python -m tests.gpu.bench_families make FOLDER [--models modernbert,nomic]     (no GPU is needed)
    python -m tests.gpu.bench_families time FOLDER --library libbertfuse_ort.so [--models ...] [--compile 1x128,32x128]
    python -m tests.gpu.bench_families memory FOLDER --library libbertfuse_ort.so --models modernbert --sizes 32x8192

Milliseconds of a CUDA graph's replay, one right after the other: PyTorch with sdpa (or what the model has), the same
through torch.compile, ONNX Runtime (without a graph where it cannot capture one), bertfuse. `sentences` and `passages`
are padded batches of unequal texts: PyTorch computes the padding, bertfuse leaves it out, and so does "PyTorch packed",
which is given the real tokens alone, one text after the other (packing them is not in its time). `error` is the
greatest difference to PyTorch's float32 on real tokens. The files hold no weights (tests/gpu/family_models.py).

`memory` runs the fused file alone: the GPU memory that is taken then, and the error of the first and the last text.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch.nn.attention import varlen
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bertfuse.analysis.workloads import DISTRIBUTIONS, drawn_lengths
from bertfuse.measuring.cuda_graphs import capture, microseconds
from tests.gpu import family_models
from tests.gpu.family_models import MODELS

SIZES = "1x128,32x128,8x512,sentences,passages,2x8192"
IMAGES = {"1x128": 1, "32x128": 64}  # a vision tower's batch in place of a size
SECONDS = 0.05  # of each of five batches
PACKABLE = ("modernbert", "nomic", "gte", "qwen3", "gemma")  # transformers' attention is all that mixes their tokens


def texts(size: str) -> tuple[np.ndarray, int]:
    """Lengths of the texts, and the length that they are padded to."""
    if size in DISTRIBUTIONS:
        return drawn_lengths(size)
    batch, length = map(int, size.split("x"))
    return np.full(batch, length), length


def feeds(name: str, size: str) -> dict[str, torch.Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(IMAGES[size], 3, 224, 224, device="cuda", dtype=torch.half)}
    lengths, longest = texts(size)
    random = np.random.default_rng(0)
    mask = (np.arange(longest)[None] < lengths[:, None]).astype(np.int64)
    ids = random.integers(1000, 30000, mask.shape) * mask + (1 - mask)
    return {"input_ids": torch.from_numpy(ids).cuda(), "attention_mask": torch.from_numpy(mask).cuda()}


def sizes_of(name: str, wanted: str) -> list[str]:
    if name == "vit":
        return [size for size in wanted.split(",") if size in IMAGES]
    longest = {size: texts(size)[1] for size in wanted.split(",")}
    return [size for size in longest if longest[size] <= MODELS[name][3]]


def median_ms(step: Callable[[], Any], clock: Callable[[Callable[[], Any], int], float]) -> float:
    once = max(clock(step, 3), 1e-3)
    runs = int(np.clip(SECONDS * 1e3 / once, 3, 200))
    return float(np.median([clock(step, runs) for _ in range(5)]))


def by_wall(step: Callable[[], Any], runs: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / runs


def torch_ms(model: Any, feed: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Milliseconds, and whether as a graph or eagerly."""
    with torch.inference_mode():
        try:
            graph = capture([lambda: model(**feed)])
        except Exception:  # it copies from the host, or synchronises
            torch.cuda.synchronize()
            return median_ms(lambda: model(**feed), by_wall), "eager"
        return median_ms(graph.replay, lambda _, runs: microseconds(graph, runs) / 1e3), "graph"


def pack(model: Any, feed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch's real tokens in one row; from now on the model attends within the texts that they are of."""
    mask = feed["attention_mask"].bool()
    lengths = mask.sum(1)
    offsets, longest = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(), int(lengths.max())

    def attend(module: Any, q: Any, k: Any, v: Any, mask: None, scaling: float, **options: Any) -> tuple[Any, None]:
        window = options.get("sliding_window")
        side = -1 if window is None else window - 1
        shared = q.shape[1] // k.shape[1]  # torch 2.11 has no enable_gqa here
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        k, v = (x if shared == 1 else x.repeat_interleave(shared, 1) for x in (k, v))
        sizes = (side, 0 if module.is_causal else side)
        y = varlen.varlen_attn(q, k, v, offsets, offsets, longest, longest, scale=scaling, window_size=sizes)
        return y[None], None

    ALL_ATTENTION_FUNCTIONS.register("packed", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("packed", lambda *_, **__: None)
    model.set_attn_implementation("packed")
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return {"input_ids": feed["input_ids"][mask][None], "position_ids": places[mask][None]}


def packed_ms(model: Any, feed: dict[str, torch.Tensor], compiled: bool) -> dict[str, float]:
    usual = model.config._attn_implementation
    tokens = pack(model, feed)
    try:
        found = {"PyTorch packed": torch_ms(model, tokens)[0]}
        if compiled:
            found["packed, compiled"] = torch_ms(torch.compile(model, dynamic=False), tokens)[0]
        return found
    finally:
        model.set_attn_implementation(usual)


class OnnxModel:
    """A session whose inputs and outputs stay on the GPU; `how` says whether it replays CUDA graphs."""

    def __init__(self, path: Path, library: str | None) -> None:
        for self.graph in (True, False):
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            if library:
                options.register_custom_ops_library(library)
            provider = ("CUDAExecutionProvider", {"enable_cuda_graph": str(int(self.graph))})
            try:
                self.session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
                break
            except Exception:
                if not self.graph:
                    raise
        assert self.session.get_providers()[0] == "CUDAExecutionProvider", self.session.get_providers()
        self.how = "graph" if self.graph else "no graph"
        self.count = 0

    def step(self, feed: dict[str, torch.Tensor], width: int) -> tuple[Callable[[], None], torch.Tensor]:
        binding, options = self.session.io_binding(), onnxruntime.RunOptions()
        # The runs of a batch follow each other without a pause, as the replays of PyTorch's graphs do.
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.count += 1
        if self.graph:
            options.add_run_config_entry("gpu_graph_id", str(self.count))
        for node in self.session.get_inputs():
            value = feed.get(node.name)
            value = torch.zeros_like(feed["input_ids"]) if value is None else value
            dtype = {torch.int64: np.int64, torch.float16: np.float16}[value.dtype]
            binding.bind_input(node.name, "cuda", 0, dtype, tuple(value.shape), value.data_ptr())
        first = next(iter(feed.values()))
        shape = (*first.shape[:2], width) if first.ndim == 2 else (first.shape[0], 197, width)
        out = torch.zeros(shape, device="cuda", dtype=torch.half)
        binding.bind_output(self.session.get_outputs()[0].name, "cuda", 0, np.float16, shape, out.data_ptr())
        self.kept = [*getattr(self, "kept", []), (feed, out, binding)]
        run = lambda: self.session.run_with_iobinding(binding, options)  # noqa: E731
        for _ in range(3):
            run()
        return run, out


def measure(name: str, folder: Path, options: argparse.Namespace, started: float) -> None:
    began = time.time()
    model = family_models.build(name, "cuda")
    half = copy.deepcopy(model).half()
    width = model.config.hidden_size
    onnx_models: dict[str, OnnxModel | str] = {}
    for kind in ("own", "keep", "remove"):
        path = folder / f"{name}.{kind}.onnx"
        if not path.exists():
            continue
        try:
            family_models.fill(model, path)
            onnx_models[kind] = OnnxModel(path, None if kind == "own" else options.library)
        except Exception as error:
            print(f"{name} {kind}: {str(error).splitlines()[0][:240]}", flush=True)
        path.with_suffix(".bin").unlink(missing_ok=True)
    print(f"{name}: made in {time.time() - began:.0f} s, {time.time() - started:.0f} s from the start", flush=True)
    for size in sizes_of(name, options.sizes):
        if time.time() - started > options.seconds:
            print(f"{name} {size}: no time left", flush=True)
            return
        feed = feeds(name, size)
        torch._dynamo.reset()  # it compiles a function for eight shapes, and from then on runs it as it is
        row, outs = {}, {}
        try:
            row["PyTorch"], how = torch_ms(half, feed)
            if size in options.compile.split(",") and name in options.compiled.split(","):
                row["compiled"] = torch_ms(torch.compile(half, dynamic=False), feed)[0]
            if name in PACKABLE and not size[0].isdigit():
                row |= packed_ms(half, feed, size in options.compile.split(",") and name in options.compiled.split(","))
        except Exception as error:
            how = str(error).splitlines()[0][:120]
        for kind, session in onnx_models.items():
            if (kind == "keep" and not size[0].isdigit()) or (kind == "remove" and size[0].isdigit()):
                continue
            if kind == "own" and size == "2x8192" and options.seconds - (time.time() - started) < 60:
                continue
            try:
                run, outs[kind] = session.step(feed, width)
                row[{"own": f"ORT ({session.how})"}.get(kind, f"bertfuse {kind} ({session.how})")] = median_ms(
                    run, by_wall
                )
            except Exception as error:
                print(f"{name} {size} {kind}: {str(error).splitlines()[0][:240]}", flush=True)
        ours = [ms for key, ms in row.items() if key.startswith("bertfuse")]
        peers = [ms for key, ms in row.items() if not key.startswith("bertfuse")]
        line = f"{name} {size} [torch {how}]: " + ", ".join(f"{key} {ms:.3f}" for key, ms in row.items())
        if ours and peers:
            line += f"; best peer / ours {min(peers) / min(ours):.2f}"
        print(line + errors(model, half, feed, outs), flush=True)
        torch.cuda.empty_cache()


def memory(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Prints what the GPU's memory holds with the session and one run of each size, and errors of two of its texts."""
    model = family_models.build(name, "cuda")
    path = folder / f"{name}.keep.onnx"
    family_models.fill(model, path)
    model = model.cpu()
    torch.cuda.empty_cache()
    mib = lambda: (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) >> 20  # noqa: E731
    before = mib()
    session = OnnxModel(path, options.library)
    loaded = mib()
    for size in sizes_of(name, options.sizes):
        feed = feeds(name, size)
        run, out = session.step(feed, model.config.hidden_size)
        run()
        torch.cuda.synchronize()
        used, bound = mib(), sum(tensor.nbytes for tensor in (out, *feed.values())) >> 20
        print(
            f"{name} {size}: {used} MiB of the GPU's memory are taken, {bound} of them by inputs and output, {before} "
            f"before the session, {loaded - before} by its loading; {median_ms(run, by_wall):.2f} ms ({session.how})",
            flush=True,
        )
        ends = [0, len(out) - 1]
        model = model.cuda()
        texts_of_ends = {key: value[ends] for key, value in feed.items()}
        half = copy.deepcopy(model).half()
        print(
            f"{name} {size}, first and last text" + errors(model, half, texts_of_ends, {"bertfuse": out[ends]}),
            flush=True,
        )
        model = model.cpu()


def errors(model: Any, half: Any, feed: dict[str, torch.Tensor], outs: dict[str, torch.Tensor]) -> str:
    """The greatest and the mean difference to PyTorch's float32 on real tokens, of each."""
    with torch.inference_mode():
        try:
            wanted = model(**{k: v.float() if v.is_floating_point() else v for k, v in feed.items()})[0]
            outs = {"PyTorch": half(**feed)[0]} | outs
        except torch.cuda.OutOfMemoryError:
            return "; error: PyTorch's float32 is out of memory"
    real = feed["attention_mask"].bool() if "attention_mask" in feed else slice(None)
    found = {kind: (out.float() - wanted)[real].abs() for kind, out in outs.items()}
    return "; error " + ", ".join(f"{k} {float(d.max()):.4f} ({float(d.mean()):.5f})" for k, d in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "time", "memory"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--compile", default="1x128,32x128", help="sizes that torch.compile is timed at")
    parser.add_argument("--compiled", default=",".join(MODELS), help="models that torch.compile is timed for")
    parser.add_argument("--library", help="the op library")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further size is begun")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    for name in options.models.split(","):
        if options.what == "make":
            for kind, what in family_models.make(name, options.folder).items():
                print(f"{name}.{kind}: {what}", flush=True)
        else:
            try:
                if options.what == "memory":
                    memory(name, options.folder, options)
                else:
                    measure(name, options.folder, options, started)
            except Exception as error:
                print(f"{name}: {type(error).__name__} {str(error)[:300]}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
