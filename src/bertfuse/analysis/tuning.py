"""Measuring the kernels' tactics on the user's GPU for the user's shapes, and the file that keeps the choice."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.files import check_target, replacing
from bertfuse.graph_rewrite import OPS
from bertfuse.model_folder.files import find_model, folder_of
from bertfuse.qualify.measure import Measurer, problem_of
from bertfuse.qualify.worker import Settings
from bertfuse.runtime import native
from bertfuse.runtime.library import library_path

from .model_calls import model_calls

TUNING_FILE = "tuning.tsv"
HEADER = f"bertfuse tuning 1, library {bertfuse.__version__}"
COLUMNS = "# device\tproblem\ttactic\tmicroseconds\tof the default"
# A tactic that is faster by less than this stays unused. It was measured alone; in a model, at the GPU's power limit
# and beside other kernels, tactics that took 7 to 9% less alone made bert-base 6 to 7% slower (H200, 256, 4096 rows).
MARGIN = 0.9
_PATIENCE = 120.0  # seconds for one tactic, its reference in float64 included


@dataclass(frozen=True)
class Choice:
    """One problem's tactic as chosen and the one used without tuning, with microseconds of one launch of each."""

    problem: str
    tactic: str
    microseconds: float
    default_tactic: str
    default_microseconds: float
    measured: int
    launches: int


@dataclass
class TuningReport:
    """What `tune` chose, for which GPU, the file that it wrote, and the rows that it left out of it.

    `rejected` has tactics that are wrong or fault, by problem and name, with what was seen: the file never has them.
    """

    file: str
    device: str
    choices: list[Choice] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    rejected: dict[str, dict[str, str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tune(
    model: str | Path,
    sizes: Sequence[tuple[int, int]],
    output: str | Path | None = None,
    *,
    device: int = 0,
    milliseconds: float = 20.0,
    tf32: bool = False,
    progress: Callable[[str], None] | None = None,
) -> TuningReport:
    """Measures every tactic of every fused op of a model and writes the fastest to a tuning file.

    Each tactic is checked against the float64 oracle first, and all of it happens in processes of their own: one that
    is wrong, faults or hangs costs a process and is never written.
    The built-in choice stays where nothing is faster by 10%: in a model less than that can be more.

    Args:
        model: a fused .onnx file, or the folder that `bertfuse optimize` wrote.
        sizes: (batch, sequence) sizes that will be run.
        output: the file; by default tuning.tsv beside the model. Rows that it has for other problems and devices stay,
            but for those that the library does not take.
        device: the CUDA device's number.
        milliseconds: how long each tactic runs.
        tf32: also measure float32 products of operands rounded to TF32, for sessions that allow them.

    Raises:
        BertfuseError: the model has no fused op, its shapes stay unknown, or there is no GPU or GPU code to measure.
    """
    say = progress or (lambda line: None)
    path = find_model(model)
    target = Path(output) if output else folder_of(path) / TUNING_FILE
    if not math.isfinite(milliseconds):
        raise BertfuseError(f"--milliseconds must be a finite number, not {milliseconds:g}")
    check_target(target)
    read_rows(target)  # what is not a tuning file is refused before anything is measured, too
    gpus = _gpus(device)
    report = TuningReport(str(target), gpus[device], left_out=_not_taken(target, gpus))
    say(f"Reading {path}")
    calls: dict[str, tuple[str, native.Call, int]] = {}
    skipped: set[str] = set()
    for batch, sequence in sizes:
        for op, call, count in model_calls(path, batch, sequence):
            # For as many packed rows as the sizes have, whatever this process has run before.
            call.device_id, call.flags = device, native.NO_ROW_HINTS | (native.ALLOW_TF32 if tf32 else 0)
            problem = _reported(native.problem, op, call)
            if problem is not None and _has_x_zero(op, call):
                skipped.add(problem)
            elif problem is not None:
                before = calls[problem][2] if problem in calls else 0
                calls[problem] = op, call, before + count
    if skipped:
        say(f"Leaving {len(skipped)} products of activations with a zero point: they have no CUDA kernel")
    with Measurer(_settings(device, milliseconds)) as measurer:
        for index, (problem, (op, call, count)) in enumerate(calls.items(), 1):
            say(f"Checking and measuring {problem} ({index} of {len(calls)})")
            try:
                measured = measurer.measure(problem_of(op, call))
            except RuntimeError as error:
                raise BertfuseError(str(error)) from error
            if measured.rejected:
                report.rejected[problem] = measured.rejected
            report.choices.append(choose(problem, measured.timings, count))
    text = merged(target, report)
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return report


def _has_x_zero(op: str, call: native.Call) -> bool:
    names = [tensor.name for tensor in OPS[op].inputs]
    return "x_zero" in names and call.inputs[names.index("x_zero")].dtype != native.ABSENT


def _settings(device: int, milliseconds: float) -> Settings:
    """Of the workers. The oracle's products are PyTorch's where that is installed: a model's sizes are large."""
    oracle = "torch" if importlib.util.find_spec("torch") else "numpy"
    library = str(library_path("onnxruntime"))
    return Settings(library, f"cuda:{device}", oracle, patience=_PATIENCE, milliseconds=milliseconds)


def _gpus(device: int) -> list[str]:
    """How tuning files name this machine's GPUs. Raises BertfuseError where `device` is none of them."""
    if not native.gpu_architectures():
        raise BertfuseError(
            "the library holds no CUDA kernels; install the wheel with cuda in its name, or run 'make build' where nvcc"
            " is"
        )
    found = _reported(lambda: [gpu.identity.decode() for gpu in native.gpus()])
    if device >= len(found):
        here = f"the last one is {len(found) - 1}" if found else "the CUDA driver offers none"
        raise BertfuseError(f"there is no GPU {device} to measure on: {here}")
    return found


def _reported(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except native.NativeError as error:
        raise BertfuseError(str(error)) from error


def choose(problem: str, timings: Sequence[tuple[str, float, bool]], launches: int = 1) -> Choice:
    """The fastest of (name, microseconds, is default); the default where nothing takes less than MARGIN of its time."""
    if not timings:
        raise BertfuseError(f"{problem}: no tactic runs on this GPU; 'bertfuse doctor' says which code it uses")
    best = min(timings, key=lambda timing: timing[1])
    default = next((timing for timing in timings if timing[2]), best)
    if best[1] > default[1] * MARGIN:
        best = default
    return Choice(problem, best[0], best[1], default[0], default[1], len(timings), launches)


def _not_taken(path: Path, gpus: Sequence[str]) -> list[str]:
    """The file's rows that are none, or that name what the library does not have for these GPUs.

    Of another machine's GPUs nothing is known here: their rows are good if they are rows.
    """

    def fits(lines: Iterable[str], anywhere: bool = False) -> bool:
        try:
            return not native.read_tuning("\n".join([HEADER, *lines]), str(path)) or anywhere
        except native.NativeError:
            return False

    rows = read_rows(path)
    if fits(rows.values()):
        return []
    return [line for (device, _), line in rows.items() if not fits([line], anywhere=device not in gpus)]


def merged(path: Path, report: TuningReport) -> str:
    """The file's text with the report's rows in it. Raises BertfuseError where `path` is some other file."""
    rows = {key: line for key, line in read_rows(path).items() if line not in report.left_out}
    for choice in report.choices:
        figures = f"{choice.microseconds:.2f}", f"{choice.default_microseconds:.2f}"
        rows[report.device, choice.problem] = "\t".join((report.device, choice.problem, choice.tactic, *figures))
    return "\n".join([HEADER, COLUMNS, *rows.values()]) + "\n"


def read_rows(path: Path) -> dict[tuple[str, str], str]:
    """The file's rows by device and problem; none where it is missing or of another library version."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or not lines[0].startswith("bertfuse tuning "):
        raise BertfuseError(f"{path}: is not a tuning file, so it is left as it is; choose another name with -o")
    if lines[0] != HEADER:
        return {}
    cells = [(line.split("\t", 2), line) for line in lines[1:] if line and not line.startswith("#")]
    return {(row[0], row[1] if len(row) > 1 else ""): line for row, line in cells}
