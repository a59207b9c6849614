"""Milliseconds per run over a grid of batch and sequence sizes, all contenders in turn so that noise hits all alike."""

from __future__ import annotations

import math
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfuse.errors import BertfuseError
from bertfuse.measuring.contenders import PADDED, REMOVED, Contender, Feed, contenders, padding_contenders
from bertfuse.measuring.timing import Timing, interleaved
from bertfuse.model_folder.files import longest_sequence, model_pair, read_config
from bertfuse.runtime.inputs import random_inputs, vocabulary_sizes
from bertfuse.runtime.session import InferenceSession, providers_of

from .workloads import make_workload

if TYPE_CHECKING:
    from bertfuse.measuring.gpu_contenders import GpuOptions

GRID = ((1, 32), (1, 128), (8, 128))


@dataclass
class BenchReport:
    """What `bench` measured, on what, and whom it could not run (`absent`: contender to reason)."""

    model: str
    provider: str
    machine: dict[str, str]
    timings: list[Timing]
    notes: dict[str, str] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(timing.contender for timing in self.timings))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return list(dict.fromkeys((timing.batch, timing.sequence) for timing in self.timings))

    @property
    def dtypes(self) -> list[str]:
        """The float types that contenders have: one, unless a file's own type was measured on the CPU."""
        found = [self.details.get(name, {}).get("dtype") for name in self.contenders]
        return list(dict.fromkeys(dtype for dtype in found if dtype))

    @property
    def conditions(self) -> list[str]:
        """What changes the meaning of a time, in words: float types, and options."""
        words = {"cuda_graph": "CUDA graph", "tf32": "TF32", "tuning": "tuned tactics"}
        given = [word for name, word in words.items() if self.options.get(name)]
        return [" and ".join(self.dtypes), *given] if self.dtypes else given

    @property
    def padding_lines(self) -> list[str]:
        """Of each workload of unequal lengths: how much of it is padding, and what leaving that out saves."""
        lines = self.options.get("workloads", ())
        return [line + self._saved(size) for line, size in zip(lines, self.sizes, strict=False)]

    def _saved(self, size: tuple[int, int]) -> str:
        def best(kind: str) -> Timing | None:
            found = [self.at(name, size) for name in self.contenders if name.startswith(f"{kind}, ")]
            return min(found, key=lambda timing: timing.median, default=None)

        padded, removed = best(PADDED), best(REMOVED)
        if padded is None or removed is None:
            return ""
        if removed.overlaps(padded):
            return "; leaving it out makes no difference"
        share = 1 - removed.median / padded.median
        times = f"{figure(removed.median)} instead of {figure(padded.median)} ms"
        return f"; leaving it out {'saves' if share > 0 else 'costs'} {abs(share):.0%} of the time ({times})"

    def label(self, contender: str) -> str:
        """The contender's name, with its float type where they differ."""
        dtype = self.details.get(contender, {}).get("dtype")
        return f"{contender}, {dtype}" if dtype and len(self.dtypes) > 1 else contender

    def at(self, contender: str, size: tuple[int, int]) -> Timing:
        return next(t for t in self.timings if t.contender == contender and (t.batch, t.sequence) == size)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "unit": "ms"}


def check_seconds(seconds: float) -> None:
    """Raises BertfuseError for a time that is negative or not finite."""
    if not (math.isfinite(seconds) and seconds >= 0):
        raise BertfuseError(f"--seconds must be a number of at least 0, not {seconds:g}")


def bench(
    folder: str | Path,
    *,
    grid: Sequence[tuple[int, int]] = GRID,
    provider: str = "cpu",
    seconds: float = 2.0,
    threads: int | None = None,
    gpu: GpuOptions | None = None,
    ragged: Sequence[str] = (),
    engines: Sequence[str | Path] = (),
    progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Measures the folder's model before and after fusion, ONNX Runtime's own optimizer's result, and PyTorch.

    On a GPU all have one float type, inputs and outputs stay there, and nothing is measured unless every fused op runs
    as our CUDA kernel. On the CPU each file runs as it is, and the report has everyone's type.

    Args:
        folder: written by `bertfuse optimize`: both models and config.json.
        grid: (batch, sequence) sizes; every row is full, without padding.
        provider: "cpu" or "cuda".
        seconds: about how long the slowest contender runs at each size, after warm-up; the others run as often, all
            at least 6 times.
        threads: intra-op threads of every contender on the CPU; None leaves each its default.
        gpu: with provider "cuda", how every contender runs there.
        ragged: workloads of unequal lengths (see `make_workload`) in place of `grid`; the original fused with padding
            kept and with padding removed are contenders then.
        engines: TensorRT engines of the model (`bertfuse engine`) that are contenders, too, on a GPU.

    Raises:
        BertfuseError: a file is missing, an option cannot be used, a size is out of the model's range, or fused ops do
            not run as CUDA kernels.
    """
    say = progress or (lambda line: None)
    folder = Path(folder)
    path, _ = model_pair(folder)
    check_seconds(seconds)
    if threads is not None and threads < 1:
        raise BertfuseError(f"--threads must be at least 1, not {threads}")
    if threads is not None and provider == "cuda":
        raise BertfuseError("threads are for the CPU: leave --threads out with --provider cuda")
    if engines and provider != "cuda":
        raise BertfuseError(f"{engines[0]}: engines run on GPUs: give --provider cuda, too")
    probe = InferenceSession(path)
    sizes = vocabulary_sizes(path)
    workloads = [make_workload(text, probe, sizes, folder) for text in ragged]
    if workloads:
        grid = [workload.size for workload in workloads]
    if len(set(grid)) < len(workloads):
        raise BertfuseError(f"workloads {', '.join(ragged)}: two are of one batch and sequence; measure them apart")
    longest = longest_sequence(read_config(folder))
    for batch, sequence in grid:
        if batch < 1 or sequence < 1 or (longest and sequence > longest):
            limit = f"1 to {longest}" if longest else "at least 1"
            raise BertfuseError(f"size {batch}x{sequence}: for this model batch is at least 1, and sequence {limit}")
    providers_of(provider)
    feeds = {workload.size: workload.feed for workload in workloads} or {
        size: random_inputs(probe, sizes, *size, padded=False) for size in grid
    }
    timings = []
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        if provider == "cuda":
            from bertfuse.measuring.gpu_contenders import GpuOptions, gpu_contenders

            gpu = gpu or GpuOptions()
            loaded = [_loaded(Path(engine), gpu, say) for engine in engines]  # first: they are refused at once
            made = gpu_contenders(folder, gpu, feeds[grid[0]], Path(scratch), say, bool(workloads)) + loaded
        else:
            made = contenders(folder, provider, threads, say)
            if workloads:
                made += padding_contenders(path, threads, Path(scratch), say)
        present = _those_that_run(made, feeds)
        for (batch, sequence), feed in feeds.items():
            say(f"Timing {batch} x {sequence}")
            timings += interleaved(present, feed, batch, sequence, seconds, on_gpu=provider == "cuda")
    return BenchReport(
        str(folder),
        provider,
        machine() | (_gpu() if provider == "cuda" else {}),
        timings,
        {contender.name: f"{contender.notes}, {contender.weights}" for contender in present},
        {contender.name: contender.details for contender in present if contender.details},
        {contender.name: contender.absent for contender in made if contender.run is None},
        (asdict(gpu) if gpu else {})
        | ({"workloads": [workload.description for workload in workloads]} if workloads else {}),
    )


def _loaded(engine: Path, gpu: GpuOptions, say: Callable[[str], None]) -> Contender:
    from bertfuse.measuring.engine_contender import engine_contender

    say(f"Loading {engine}")
    return engine_contender(engine, gpu.cuda_graph)


def _those_that_run(made: Sequence[Contender], feeds: Mapping[tuple[int, int], Feed]) -> list[Contender]:
    """The contenders that run at every size, each tried once; of the others `absent` then says why not.

    Raises BertfuseError where none does.
    """
    for contender in made:
        for (batch, sequence), feed in feeds.items():
            if contender.run is None:
                break
            try:
                contender.run(feed)
            except Exception as error:  # what is measured includes other people's models and tools
                contender.run = None
                contender.absent = (
                    f"fails at {batch}x{sequence}: {' '.join(str(error).split()) or type(error).__name__}"
                )
    present = [contender for contender in made if contender.run is not None]
    if not present:
        raise BertfuseError(f"nothing runs: {made[0].name}: {made[0].absent}")
    return present


def machine() -> dict[str, str]:
    """What a time means nothing without."""
    import onnxruntime

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":", 1)[1].strip() if lines else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": name, "cores": str(cores), "onnxruntime": onnxruntime.__version__}


def _gpu() -> dict[str, str]:
    from bertfuse.runtime import native

    return {"gpu": next(native.gpus()).name.decode()}


def figure(milliseconds: float) -> str:
    """Three digits and more: a run on a GPU may take a third of a millisecond."""
    return f"{milliseconds:.1f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def plot(report: BenchReport, path: str | Path) -> None:
    """One panel per size, as a PNG: a bar for each contender's median, from zero, with the middle half's range."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from bertfuse.files import replacing

    names, sizes = report.contenders, report.sizes
    drawing, panels = plt.subplots(
        1, len(sizes), figsize=(2.5 + 3 * len(sizes), 0.8 + 0.5 * len(names)), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    colours = plt.get_cmap("tab10").colors[: len(names)]
    for panel, size in zip(panels[0], sizes, strict=True):
        timings = [report.at(name, size) for name in names]
        medians = [t.median for t in timings]
        spread = [[t.median - t.low for t in timings], [t.high - t.median for t in timings]]
        bars = panel.barh(
            [report.label(name) for name in names], medians, xerr=spread, color=colours, error_kw={"linewidth": 1}
        )
        panel.bar_label(bars, [figure(median) for median in medians], label_type="center", color="white")
        panel.set(title=f"{size[0]} x {size[1]}", xlabel="milliseconds")
    panels[0][0].invert_yaxis()
    host = f"{report.machine['cpu']}, {report.machine['cores']} cores"
    drawing.suptitle(", ".join([report.machine.get("gpu", host), *report.conditions]), fontsize="medium")
    with replacing(path) as temporary:
        drawing.savefig(temporary, format="png", dpi=120)
    plt.close(drawing)
