"""Two models on the same inputs, output by output or tensor by tensor, run and compared with polygraphy."""

from __future__ import annotations

import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .inputs import fit_inputs, random_inputs, read_config, text_inputs, vocabulary_sizes
from .session import InferenceSession, ort_errors

# (atol, rtol): what two right evaluations of an encoder differ by, from the type of the coarser output. float32: sums
# in another order over up to 24 layers; float16 and bfloat16: 11 and 8 bits of significand, rounded at every layer.
TOLERANCES = {"float32": (1e-4, 1e-3), "float64": (1e-4, 1e-3), "float16": (2e-2, 2e-2), "bfloat16": (1e-1, 1e-1)}


@dataclass(frozen=True)
class OutputDifference:
    """How far an output of the second model is from the first's.

    `absolute` is max |a - b|, `relative` that over max |a|, `cosine` the least cosine similarity between corresponding
    vectors along the last axis. Integers and booleans must be equal: any difference fails.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    absolute: float
    relative: float
    cosine: float
    passed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.passed


@dataclass
class Comparison:
    """What `compare_models` found. With per_node `tensors` holds all shared ones, in execution order."""

    reference: str
    other: str
    outputs: list[OutputDifference]
    tensors: list[OutputDifference] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every output agrees; inner tensors may differ where the outputs do not."""
        return all(self.outputs)

    @property
    def first_difference(self) -> OutputDifference | None:
        """The first shared tensor (without per_node: output) that differs, in execution order; None if all agree."""
        return next((entry for entry in self.tensors or self.outputs if not entry.passed), None)

    def to_dict(self) -> dict[str, Any]:
        first = self.first_difference
        return {
            "reference": self.reference,
            "other": self.other,
            "passed": self.passed,
            "first_difference": None if first is None else first.name,
            "outputs": [asdict(entry) for entry in self.outputs],
            "tensors": [asdict(entry) for entry in self.tensors],
        }


def difference(
    name: str, reference: np.ndarray, other: np.ndarray, atol: float | None = None, rtol: float | None = None
) -> OutputDifference:
    """Compares two arrays: they agree where |a - b| <= atol + rtol |a| everywhere (defaults: TOLERANCES by dtype)."""
    dtype = str(other.dtype)
    if reference.shape != other.shape:
        reason = f"shapes {list(reference.shape)} and {list(other.shape)} differ"
        return OutputDifference(name, tuple(other.shape), dtype, np.inf, np.inf, 0.0, False, reason)
    if other.size == 0:
        return OutputDifference(name, tuple(other.shape), dtype, 0.0, 0.0, 1.0, True)
    exact = other.dtype.kind in "iub" or reference.dtype.kind in "iub"
    # The wider entry holds where one model computes in float32 and the other in float16.
    bounds = [TOLERANCES.get(str(array.dtype), TOLERANCES["float32"]) for array in (reference, other)]
    atol = max(pair[0] for pair in bounds) if atol is None else atol
    rtol = max(pair[1] for pair in bounds) if rtol is None else rtol
    a, b = reference.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.where(a == b, 0.0, np.abs(a - b))  # equal infinities (masks) are no difference
    finite = np.where(np.isfinite(a), np.abs(a), 0.0)
    absolute = float("inf") if np.isnan(gap).any() else float(gap.max())
    scale = float(finite.max())
    relative = absolute / scale if scale else (0.0 if absolute == 0.0 else float("inf"))
    agree = gap <= (0.0 if exact else atol + rtol * finite)
    reason = ""
    if not agree.all():
        where = np.unravel_index(int(np.argmin(agree)), agree.shape)
        reason = f"first at {[int(i) for i in where]}: {a[where]:.6g} and {b[where]:.6g}"
    return OutputDifference(
        name, tuple(other.shape), dtype, absolute, relative, _cosine(a, b), bool(agree.all()), reason
    )


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 1.0 if np.array_equal(a, b) else 0.0
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    dots = (a * b).sum(axis=-1)
    both_zero = (np.linalg.norm(a, axis=-1) == 0) & (np.linalg.norm(b, axis=-1) == 0)
    return float(np.where(both_zero, 1.0, dots / np.where(norms == 0, 1.0, norms)).min())


def run_and_compare(
    runners: Sequence[Any],
    feeds: Sequence[Mapping[str, np.ndarray]],
    atol: float | None = None,
    rtol: float | None = None,
    warm_up: int = 0,
) -> tuple[Any, dict[str, list[OutputDifference]]]:
    """Runs polygraphy runners over `feeds` and compares each one with the first.

    Returns polygraphy's RunResults and, by runner name, the worst difference per output that both have.
    """
    from polygraphy.comparator import Comparator
    from polygraphy.logger import G_LOGGER

    def compare(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> OrderedDict[str, Any]:
        shared = [name for name in first if name in second]
        return OrderedDict((name, difference(name, first[name], second[name], atol, rtol)) for name in shared)

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL), warnings.catch_warnings():
        # polygraphy sums whole tensors for its log, in their own type: masks of -3e38 overflow.
        warnings.simplefilter("ignore", RuntimeWarning)
        results = Comparator.run(list(runners), data_loader=list(feeds), warm_up=warm_up)
        pairs = [(0, index) for index in range(1, len(runners))]
        accuracy = Comparator.compare_accuracy(results, comparisons=pairs, compare_func=compare)[0]
    return results, {pair[1]: _worst(iterations) for pair, iterations in accuracy.items()}


def _worst(iterations: Sequence[Mapping[str, OutputDifference]]) -> list[OutputDifference]:
    names = list(iterations[0])
    return [min((entry[name] for entry in iterations), key=lambda d: (d.passed, -d.absolute)) for name in names]


def session_runner(model: str | Path | bytes, name: str, **options: Any) -> Any:
    """A polygraphy runner around our InferenceSession: made when it is activated, freed when it is done."""
    from polygraphy.backend.onnxrt import OnnxrtRunner

    return OnnxrtRunner(lambda: InferenceSession(model, **options), name=name)


def compare_models(
    reference: str | Path,
    other: str | Path,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    texts: Sequence[str] | None = None,
    per_node: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    providers: Sequence[Any] | None = None,
    library: str = "auto",
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Runs two ONNX files on the same inputs and compares their outputs.

    Args:
        inputs: arrays by input name; or `texts`, tokenised by the tokenizer beside a model; or neither: random valid
            inputs of [2, 32] with padding and of [1, 7], from `seed`.
        per_node: also compare the tensors that both graphs compute under one name, in the order of execution.
        atol, rtol: agreement is |a - b| <= atol + rtol |a|; None takes TOLERANCES by dtype.
        providers, library: as InferenceSession's, for the second model; the first runs on the CPU without library
            where it can.

    Raises:
        BertfuseError: a model or inputs that do not do, or models that share no output.
    """
    from .tensors import expose_shared

    say = progress or (lambda line: None)
    reference, other = Path(reference), Path(other)
    probe = InferenceSession(reference)
    wanted = [value.name for value in probe.get_outputs()]
    feeds = _feeds(probe, [reference, other], inputs, texts, seed)
    del probe
    shared: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        files = [reference, other]
        if per_node:
            say("Exposing the tensors that both graphs share")
            shared, files = expose_shared(reference, other, Path(scratch))
        say("Running both models")
        runners = [
            session_runner(files[0], str(reference)),
            session_runner(files[1], f"{other} (second)", providers=providers, library=library),
        ]
        with ort_errors(f"{reference} and {other}"):
            differences = run_and_compare(runners, feeds, atol, rtol)[1]
    by_name = {entry.name: entry for entry in differences[runners[1].name]}
    outputs = [by_name[name] for name in wanted if name in by_name]
    if not outputs:
        raise BertfuseError(f"{reference} and {other}: share no output; compare models of the same task")
    return Comparison(str(reference), str(other), outputs, [by_name[name] for name in shared if name in by_name])


def _feeds(
    session: InferenceSession,
    models: Sequence[Path],
    inputs: Mapping[str, np.ndarray] | None,
    texts: Sequence[str] | None,
    seed: int,
) -> list[dict[str, np.ndarray]]:
    if inputs is not None:
        return [fit_inputs(session, dict(inputs), "the given inputs")]
    if texts:
        folders = [model.parent for model in models]
        folder = next((path for path in folders if (path / "tokenizer.json").is_file()), folders[0])
        return [fit_inputs(session, text_inputs(folder, texts), "the tokenised text")]
    sizes = vocabulary_sizes(models[0])
    longest = int(read_config(models[0].parent).get("max_position_embeddings") or 32)
    shapes = [(2, min(32, longest)), (1, min(7, longest))]
    return [random_inputs(session, sizes, batch, sequence, seed) for batch, sequence in shapes]
