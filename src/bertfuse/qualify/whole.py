"""A whole model, fused in every dtype, against the original in float32 on the CPU: random sizes, random padding.

With its rows packed, too: of the outputs what is real is compared, at masks of every kind that the model means alike.
"""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.outputs import give_float32
from bertfuse.runtime.inputs import random_inputs, vocabulary_sizes
from bertfuse.runtime.padded_session import PaddedSession
from bertfuse.runtime.ragged_inputs import MASK
from bertfuse.runtime.session import InferenceSession, providers_of

DTYPES = ("fp32", "fp16", "bf16")
# Of the largest output, by dtype: roundings of every layer to 24, 11 and 8 bits, LayerNorm in between.
TOLERANCES = {"fp32": 2e-4, "fp16": 1e-2, "bf16": 8e-2}
BATCHES = (1, 2, 3, 7, 16, 33, 64, 200)
SEQUENCES = (1, 2, 9, 17, 63, 64, 65, 100, 128, 129, 200)
PADDINGS = ("keep", "remove", "ragged")
# Of the mask, in turns; the first three leave padding on the right.
_MASKS = ("right", "one long", "empty", "left", "holes")
_RIGHT = _MASKS[:3]
_REFUSAL = "packed rows are not"  # what a kernel says that has none
_MOST_TOKENS = 8192  # the original runs on the CPU
_MOST_NUMBERS = 1 << 26  # of all outputs of one size: 0.5 GB in float64, of a vocabulary 2000 tokens


@dataclass
class Run:
    """One size in one dtype: the largest error as a share of the largest output, and what is wrong ("": nothing).

    `dtype` has the padding behind it where rows were packed: "fp16 remove".
    """

    dtype: str
    batch: int
    sequence: int
    error: float
    wrong: str = ""


@dataclass
class WholeReport:
    """All runs of one model on one provider, and dtypes that it was not run in, with the reason."""

    model: str
    provider: str
    seed: int
    runs: list[Run] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def findings(self) -> list[Run]:
        return [run for run in self.runs if run.wrong]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def has_gpu() -> bool:
    """Whether ONNX Runtime's CUDA provider is installed."""
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def whole_model(
    path: Path,
    *,
    provider: str = "cuda",
    dtypes: Sequence[str] = DTYPES,
    paddings: Sequence[str] = PADDINGS,
    sizes: int = 12,
    seed: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> WholeReport:
    """Fuses the model at `path` in every dtype and runs it with our kernels at that many random sizes.

    Packed forms that the model cannot have, or that the device refuses, are in the report's `absent`. Raises
    BertfuseError where the model cannot be read, and where the provider does not load.
    """
    say = progress or (lambda line: None)
    seed = secrets.randbits(31) if seed is None else seed
    report = WholeReport(str(path), provider, seed)
    original = InferenceSession(path)
    say(f"Running {path.name} in float32 on the CPU")
    cases = _cases(original, path, seed, sizes)
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        for dtype, padding in itertools.product(dtypes, paddings):
            name = dtype if padding == "keep" else f"{dtype} {padding}"
            say(f"Running it fused in {name} on {provider}")
            try:
                session = _session(path, Path(scratch) / f"model.{dtype}.{padding}.onnx", dtype, padding, provider)
                for case in cases:
                    if padding != "ragged" or case.kind in _RIGHT:  # a ragged model has no places before its tokens
                        report.runs.append(_run(session, name, case, packed=padding != "keep"))
            except BertfuseError as error:
                report.absent[name] = str(error)
    return report


@dataclass
class Case:
    """One size with its inputs and what the original gives; the kind of mask, "" where the model has none.

    `of_tokens` are the numbers of the outputs that have a row for each token.
    """

    batch: int
    sequence: int
    kind: str
    feed: dict[str, Any]
    wanted: list[np.ndarray]
    of_tokens: list[int]

    def real(self, number: int, output: np.ndarray, packed: bool) -> np.ndarray:
        """Of an output what the fused model promises: nothing of sequences without a token.

        Of a packed one, rows of real tokens; of outputs that pool nothing where the first real token, which it takes,
        is not at the first place.
        """
        if not self.kind:
            return output
        seen = np.asarray(self.feed[MASK]) != 0
        if packed and number in self.of_tokens:
            return output[seen]
        return output[seen.any(axis=1)] if self.kind in _RIGHT or not packed else output[:0]


def _cases(original: Any, path: Path, seed: int, count: int) -> list[Case]:
    """So many sizes that the original runs: extremes first, then anything."""
    rng, vocabulary = np.random.default_rng(seed), vocabulary_sizes(path)
    waiting = [(1, 1), (200, 17), (200, 2), (1, 129)]
    tried: set[tuple[int, int]] = set()
    found: list[Case] = []
    refused, most = "", _MOST_TOKENS
    axes = original.get_inputs()[0].shape
    of_tokens = [i for i, value in enumerate(original.get_outputs()) if value.shape[:2] == axes]
    for number in range(20 * count):
        size = waiting.pop(0) if waiting else (int(rng.choice(BATCHES)), int(rng.choice(SEQUENCES)))
        if size in tried or size[0] * size[1] > most:
            continue
        tried.add(size)
        try:
            feed = random_inputs(original, vocabulary, *size, seed + number, padded=True)
            kind = _MASKS[len(found) % len(_MASKS)] if MASK in feed else ""
            if kind:
                feed[MASK] = _mask(kind, *size, rng).astype(feed[MASK].dtype)
            wanted = [np.asarray(output, np.float64) for output in original.run(None, feed)]
        except BertfuseError:
            raise
        except Exception as error:  # longer than its table of positions, say
            refused = " ".join(str(error).split())[:300]
            continue
        found.append(Case(*size, kind, feed, wanted, of_tokens))
        most = min(_MOST_TOKENS, _MOST_NUMBERS * size[0] * size[1] // max(1, sum(output.size for output in wanted)))
        if len(found) == count:
            break
    if not found:
        raise BertfuseError(f"{path}: runs at no size that was tried: {refused}")
    return found


def _mask(kind: str, batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    places, lengths = np.arange(sequence), rng.integers(1, sequence + 1, (batch, 1))
    if kind == "one long":
        lengths = np.minimum(lengths, 2)
        lengths[rng.integers(batch)] = sequence
    if kind == "holes":
        seen = rng.random((batch, sequence)) < rng.choice([0.1, 0.5, 0.9])
        seen[np.arange(batch), rng.integers(0, sequence, batch)] = True
        return seen
    if kind == "empty":  # of some sequences no token is real
        lengths[rng.random((batch, 1)) < 0.4] = 0
    return places >= sequence - lengths if kind == "left" else places < lengths


def _session(path: Path, fused: Path, dtype: str, padding: str, provider: str) -> Any:
    result = fuse_file(path, fused, dtype=None if dtype == "fp32" else dtype, padding=padding)
    left = [line for report in result.passes if report.changes_padding and not report.done for line in report.left]
    if left:
        raise BertfuseError(f"its rows cannot be packed: {left[0]}")
    give_float32(fused)  # NumPy has no bfloat16
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = InferenceSession(fused, providers_of(provider), library="always", sess_options=options)
    if provider == "cuda" and session.get_providers()[0] != "CUDAExecutionProvider":
        raise BertfuseError("ONNX Runtime's CUDA provider does not load here; see 'bertfuse doctor'")
    return PaddedSession(session) if padding == "ragged" else session


def _run(session: Any, name: str, case: Case, packed: bool) -> Run:
    """Raises BertfuseError where the device has no kernels for packed rows."""
    found = Run(name, case.batch, case.sequence, 0.0)
    try:
        outputs = session.run(None, case.feed)
    except Exception as error:  # whatever ONNX Runtime raises is what was looked for
        if packed and _REFUSAL in str(error):
            raise BertfuseError("not supported: the device has no kernels for packed rows") from error
        found.wrong = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return found
    for number, (got, want) in enumerate(zip(outputs, case.wanted, strict=True)):
        if got.shape != want.shape or not np.isfinite(got).all():
            found.wrong = f"output {number} has another shape or is not finite"
            return found
        got, want = (case.real(number, array, packed) for array in (got, want))
        if want.size:
            error = np.abs(np.asarray(got, np.float64) - want).max() / max(1.0, np.abs(want).max())
            found.error = max(found.error, float(error))
    allowed = TOLERANCES[name.split()[0]]
    if found.error > allowed:
        found.wrong = f"{found.error:.3g} of the largest output off, allowed {allowed:g}"
    return found
