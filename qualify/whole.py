"""A whole model, fused in every dtype, against the original in float32 on the CPU: random sizes, random padding."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.runtime.inputs import random_inputs, vocabulary_sizes
from bertfuse.runtime.session import InferenceSession, providers_of

DTYPES = ("fp32", "fp16", "bf16")
# Of the largest output, by dtype: roundings of every layer to 24, 11 and 8 bits, LayerNorm in between.
TOLERANCES = {"fp32": 2e-4, "fp16": 1e-2, "bf16": 8e-2}
BATCHES = (1, 2, 3, 7, 16, 33, 64, 200)
SEQUENCES = (1, 2, 9, 17, 63, 64, 65, 100, 128, 129, 200)
_MOST_TOKENS = 8192  # the original runs on the CPU


@dataclass
class Run:
    """One size in one dtype: the largest error as a share of the largest output, and what is wrong ("": nothing)."""

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
    sizes: int = 12,
    seed: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> WholeReport:
    """Fuses the model at `path` in every dtype and runs it with our kernels at so many random sizes.

    Raises BertfuseError where the model cannot be read, and where the provider does not load.
    """
    say = progress or (lambda line: None)
    seed = secrets.randbits(31) if seed is None else seed
    report = WholeReport(str(path), provider, seed)
    original = InferenceSession(path)
    say(f"Running {path.name} in float32 on the CPU")
    cases = _cases(original, path, seed, sizes)
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        for dtype in dtypes:
            say(f"Running it fused in {dtype} on {provider}")
            try:
                session = _session(path, Path(scratch) / f"model.{dtype}.onnx", dtype, provider)
            except BertfuseError as error:
                report.absent[dtype] = str(error)
                continue
            report.runs += [_run(session, dtype, *case) for case in cases]
    return report


Case = tuple[int, int, dict[str, Any], list[np.ndarray]]  # batch, sequence, inputs, what the original gives


def _cases(original: Any, path: Path, seed: int, count: int) -> list[Case]:
    """So many sizes that the original runs: extremes first, then anything."""
    rng, vocabulary = np.random.default_rng(seed), vocabulary_sizes(path)
    waiting = [(1, 1), (200, 17), (200, 2), (1, 129)]
    tried: set[tuple[int, int]] = set()
    found: list[Case] = []
    refused = ""
    for number in range(20 * count):
        size = waiting.pop(0) if waiting else (int(rng.choice(BATCHES)), int(rng.choice(SEQUENCES)))
        if size in tried or size[0] * size[1] > _MOST_TOKENS:
            continue
        tried.add(size)
        try:
            feed = random_inputs(original, vocabulary, *size, seed + number, padded=True)
            wanted = [np.asarray(output, np.float64) for output in original.run(None, feed)]
        except BertfuseError:
            raise
        except Exception as error:  # longer than its table of positions, say
            refused = " ".join(str(error).split())[:300]
            continue
        found.append((*size, feed, wanted))
        if len(found) == count:
            break
    if not found:
        raise BertfuseError(f"{path}: runs at no size that was tried: {refused}")
    return found


def _session(path: Path, fused: Path, dtype: str, provider: str) -> InferenceSession:
    fuse_file(path, fused, dtype=None if dtype == "fp32" else dtype)
    _float_outputs(fused)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = InferenceSession(fused, providers_of(provider), library="always", sess_options=options)
    if provider == "cuda" and session.get_providers()[0] != "CUDAExecutionProvider":
        raise BertfuseError("ONNX Runtime's CUDA provider does not load here; see 'bertfuse doctor'")
    return session


def _float_outputs(path: Path) -> None:
    """Casts the model's outputs to float32: NumPy has no bfloat16."""
    model = onnx.load(str(path))
    for number, value in enumerate(model.graph.output):
        kind = value.type.tensor_type.elem_type
        if kind not in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
            continue
        inner = f"bertfuse_output_{number}"
        for node in model.graph.node:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    if name == value.name:
                        names[place] = inner
        model.graph.node.append(onnx.helper.make_node("Cast", [inner], [value.name], to=onnx.TensorProto.FLOAT))
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(model, str(path))


def _run(session: Any, dtype: str, batch: int, sequence: int, feed: dict[str, Any], wanted: list[np.ndarray]) -> Run:
    found = Run(dtype, batch, sequence, 0.0)
    try:
        outputs = session.run(None, feed)
    except Exception as error:  # whatever ONNX Runtime raises is what was looked for
        found.wrong = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return found
    for number, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
        if got.shape != want.shape or not np.isfinite(got).all():
            found.wrong = f"output {number} has another shape or is not finite"
            return found
        if want.size:
            error = np.abs(np.asarray(got, np.float64) - want).max() / max(1.0, np.abs(want).max())
            found.error = max(found.error, float(error))
    if found.error > TOLERANCES[dtype]:
        found.wrong = f"{found.error:.3g} of the largest output off, allowed {TOLERANCES[dtype]:g}"
    return found
