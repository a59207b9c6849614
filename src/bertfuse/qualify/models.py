"""Whole fused models on the GPU: right, by our kernels, and how fast against ONNX Runtime's own fusion and PyTorch."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.io import open_model
from bertfuse.measuring.contenders import Contender, Feed, encoder
from bertfuse.measuring.gpu_contenders import GpuOptions, gpu_contenders
from bertfuse.measuring.timing import interleaved
from bertfuse.model_folder.files import model_pair
from bertfuse.runtime.inputs import random_inputs, vocabulary_sizes
from bertfuse.runtime.session import InferenceSession

from .speed import COMPILED, EAGER, Row, SpeedReport, _torch

NAMES = {"PyTorch": EAGER, "ORT optimizer": "ONNX Runtime's own fusion", "original ONNX": "original ONNX"}
_OURS = "fused, library"
_TYPES = {"fp32": "float32", "fp16": "float16"}
_MORE = 2.0  # times the error of the unfused model in the same dtype
_LEAST = {"fp32": 1e-4, "fp16": 5e-3}  # and never less: below it both are roundings of outputs near 1


def model_speed(
    folder: Path,
    *,
    dtype: str = "fp16",
    minutes: float = 5.0,
    seed: int | None = None,
    sizes: Sequence[tuple[int, int]] | None = None,
    compiled: bool = True,
    seconds: float = 0.3,
    progress: Callable[[str], None] | None = None,
) -> SpeedReport:
    """Fast@p of a folder that `bertfuse optimize` wrote, over random batch x sequence sizes, all as CUDA graphs.

    A size is right where the fused model in `dtype` is no further from the original in float32 on the CPU than twice
    what the original in `dtype` is. Raises BertfuseError where folder, PyTorch or a GPU is missing, and where not every
    fused op runs as our kernel.
    """
    say = progress or (lambda line: None)
    torch = _torch()
    original, _ = model_pair(folder)
    seed = secrets.randbits(31) if seed is None else seed
    rng = np.random.default_rng(seed)
    report = SpeedReport(torch.cuda.get_device_name(), seed)
    reference = InferenceSession(original)
    vocabulary = vocabulary_sizes(original)
    metadata = {entry.key: entry.value for entry in open_model(original)[0].metadata_props}
    begin, options = time.monotonic(), GpuOptions(dtype, cuda_graph=True)
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        probe = random_inputs(reference, vocabulary, 2, 16)
        made = gpu_contenders(folder, options, probe, Path(scratch), say)
        if compiled:
            made.append(_compiled(torch, folder, metadata, dtype))
        for batch, sequence in sizes if sizes is not None else _sizes(rng):
            if time.monotonic() > begin + 60 * minutes:
                break
            say(f"Running {batch} x {sequence}")
            feed = random_inputs(reference, vocabulary, batch, sequence, int(rng.integers(1 << 31)), padded=False)
            present = _that_run(made, feed, report)
            timings = {t.contender: t.median * 1e3 for t in interleaved(present, feed, batch, sequence, seconds, True)}
            peers = {NAMES.get(name, name): time for name, time in timings.items() if name != _OURS}
            row = Row(f"{folder.name} {dtype} {batch}x{sequence}", "whole model", _TYPES[dtype], timings[_OURS], peers)
            row.wrong = _wrong(reference, present, feed, dtype)
            report.rows.append(row)
            report.profile[f"{batch}x{sequence}"] = our_share(torch, _run_of(present, _OURS), feed)
    report.absent |= {NAMES.get(c.name, c.name): c.absent for c in made if c.run is None}
    report.seconds = time.monotonic() - begin
    return report


def _sizes(rng: np.random.Generator) -> Any:
    """Sizes that a server has, until the time is over."""
    while True:
        sequence = int(rng.choice([16, 32, 64, 100, 128, 200, 256, 384, 512]))
        yield int(min(200, max(1, 2 ** rng.uniform(0, 8) * 64 // sequence))), sequence


def _that_run(made: Sequence[Contender], feed: Feed, report: SpeedReport) -> list[Contender]:
    present = []
    for contender in made:
        if contender.run is None:
            continue
        try:
            contender.run(feed)
            present.append(contender)
        except Exception as error:  # other people's models and tools; ours must run
            if contender.name == _OURS:
                raise BertfuseError(f"the fused model fails: {error}") from error
            report.absent[NAMES.get(contender.name, contender.name)] = " ".join(str(error).split())[:200]
    return present


def _run_of(present: Sequence[Contender], name: str) -> Callable[[Feed], Any]:
    return next(contender.run for contender in present if contender.name == name and contender.run is not None)


def _compiled(torch: Any, folder: Path, metadata: dict[str, str], dtype: str) -> Contender:
    """torch.compile of the PyTorch model, for each size anew, as a CUDA graph of its own making."""
    try:
        kind = torch.float16 if dtype == "fp16" else torch.float32
        model = encoder(folder, metadata).to("cuda", kind)
    except Exception as error:
        return Contender(COMPILED, absent=" ".join(f"{type(error).__name__}: {error}".split()))
    ready: dict[tuple[int, ...], Callable[[], Any]] = {}

    def run(feed: Feed) -> None:
        size = next(iter(feed.values())).shape
        with torch.inference_mode():
            if size not in ready:
                torch._dynamo.reset()
                tensors = {key: torch.from_numpy(array).to("cuda") for key, array in feed.items()}
                compiled = torch.compile(model, dynamic=False, mode="reduce-overhead")
                ready.clear()
                ready[size] = lambda: compiled(**tensors)
                for _ in range(3):
                    ready[size]()
            ready[size]()
            torch.cuda.synchronize()

    return Contender(COMPILED, run)


def _outputs(binding: Any) -> list[np.ndarray]:
    return [value.astype(np.float64) for value in binding.copy_outputs_to_cpu()]


def _wrong(reference: Any, present: Sequence[Contender], feed: Feed, dtype: str) -> str:
    """Why the fused model's outputs are not right; "" where they are."""
    wanted = reference.run(None, dict(feed))
    ours = _outputs(_run_of(present, _OURS)(feed))
    unfused = next((c for c in present if c.name == "original ONNX"), None)
    theirs = _outputs(unfused.run(feed)) if unfused is not None and unfused.run is not None else [None] * len(ours)
    for number, (mine, other, want) in enumerate(zip(ours, theirs, wanted, strict=True)):
        if not np.isfinite(mine).all():
            return f"output {number} is not finite"
        error = float(np.abs(mine - want).max())
        plain = 0.0 if other is None else float(np.abs(other - want).max())
        allowed = max(_LEAST[dtype] * float(np.abs(want).max()), _MORE * plain)
        if error > allowed:
            return f"output {number} is {error:.3g} off the original in float32, allowed {allowed:.3g}"
    return ""


def our_share(torch: Any, run: Callable[[Feed], Any], feed: Feed) -> float:
    """The share of the GPU's busy time that our kernels take in one run, from CUPTI (PyTorch's profiler)."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(5):
            run(feed)
        torch.cuda.synchronize()
    ours = whole = 0.0
    for event in profiler.events():
        if event.device_type.name == "CUDA":
            spent = event.time_range.end - event.time_range.start
            whole += spent
            ours += spent if "bertfuse" in event.name else 0.0
    return ours / whole if whole else 0.0
