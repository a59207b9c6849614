"""What the page shows: fusion explained once more, both models compared and timed, and where that was done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS, FusionResult, explain
from bertfuse.graph_rewrite.io import open_model
from bertfuse.graph_rewrite.quantization import QuantizedWeights, quantized_weights
from bertfuse.graph_rewrite.spec import DOMAIN, PADDING_KEY
from bertfuse.measuring.compare import Comparison, compare_models
from bertfuse.measuring.contenders import session_contender
from bertfuse.measuring.subjects import Subject
from bertfuse.measuring.timing import Timing, interleaved
from bertfuse.model_folder.files import MODEL_FILE, ORIGINAL_FILE, folder_of, longest_sequence, read_config
from bertfuse.runtime.inputs import random_inputs, vocabulary_sizes
from bertfuse.runtime.session import InferenceSession

from ..bench import BenchReport, machine
from ..doctor import doctor

PAGE_FILE = "report.html"
BENCH_FILE = "bench.json"
SIZES = ((1, 32), (1, 128))


@dataclass
class Report:
    """`graphs` are both models without their weights. `notes` say what could not be shown, and why."""

    name: str
    task: str
    graphs: tuple[onnx.ModelProto, onnx.ModelProto]
    megabytes: tuple[float, float]
    result: FusionResult
    quantized: QuantizedWeights | None
    comparison: Comparison | None
    latency: BenchReport | None
    environment: list[tuple[str, str]]
    notes: dict[str, str] = field(default_factory=dict)


def collect(
    original: Path,
    fused: Path,
    *,
    seconds: float = 1.0,
    sizes: Sequence[tuple[int, int]] = SIZES,
    texts: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Look at two ONNX files, before and after fusion, run them side by side and time them.

    `seconds` is about how long each is timed at each of the `sizes` (batch, sequence), 0 for not at all; sizes are cut
    to what the model takes. A bench.json beside the fused file and newer than it is taken instead. Outputs are compared
    on `texts` where these are given, inner tensors (and outputs without texts) on random inputs. What cannot be run
    becomes a note. Raises BertfuseError for files that cannot be read, and for an original that is fused itself.
    """
    say = progress or (lambda line: None)
    say("Reading both models")
    graphs = open_model(original)[0], open_model(fused)[0]
    ops = Counter(node.op_type for node in graphs[1].graph.node if node.domain == DOMAIN and node.op_type in OPS)
    padding = next((entry.value for entry in graphs[1].metadata_props if entry.key == PADDING_KEY), "keep")
    result = explain(original, level="basic" if ops["AddQKVBias"] else "full", padding=padding)
    if not result.parts and result.fused:
        raise BertfuseError(f"{original}: is fused already; name the model before fusion")
    notes = {}
    if {op: count for op, count in ops.items() if not OPS[op].by_pass} != result.fused:
        there = ", ".join(f"{op} {count}" for op, count in sorted(ops.items())) or "none"
        notes["fusion"] = f"{fused.name} was not made from {original.name} by this version: its ops are {there}"
    say("Comparing both models, node by node")
    comparison = latency = None
    try:
        comparison = compare_models(original, fused, per_node=True)
        if texts:
            on_texts = compare_models(original, fused, texts=texts)
            comparison.outputs, comparison.judgement = on_texts.outputs, on_texts.judgement
    except BertfuseError as error:
        notes["accuracy"] = f"not compared: {error}"
    try:
        latency = measured(fused) or (_measure(original, fused, seconds, sizes, say) if seconds > 0 else None)
    except BertfuseError as error:
        notes["latency"] = f"not measured: {error}"
    metadata = {entry.key: entry.value for entry in graphs[0].metadata_props}
    named = original.name not in (MODEL_FILE, ORIGINAL_FILE)
    name = original.stem if named else folder_of(original).resolve().name
    return Report(
        name,
        metadata.get("bertfuse.task", ""),
        graphs,
        (_megabytes(original), _megabytes(fused)),
        result,
        quantized_weights(graphs[1]),
        comparison,
        latency,
        _environment(metadata),
        notes,
    )


def measured(fused: Path) -> BenchReport | None:
    """What `bertfuse bench` wrote since the model was fused."""
    file = folder_of(fused) / BENCH_FILE
    if not file.is_file() or file.stat().st_mtime < fused.stat().st_mtime:
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        data.pop("unit")
        return BenchReport(**data | {"timings": [Timing(**entry) for entry in data["timings"]]})
    except (ValueError, KeyError, TypeError) as error:
        raise BertfuseError(f"{file}: not what 'bertfuse bench' writes ({error!r}); delete it") from error


def _measure(
    original: Path, fused: Path, seconds: float, sizes: Sequence[tuple[int, int]], say: Callable[[str], None]
) -> BenchReport:
    probe = InferenceSession(original)
    vocabulary = vocabulary_sizes(original)
    contenders = [
        session_contender("original ONNX", original, "cpu", None, "never", original.name),
        session_contender("fused, op bodies", fused, "cpu", None, "never", fused.name, ours=True),
        session_contender("fused, library", fused, "cpu", None, "always", fused.name, ours=True),
    ]
    present = [contender for contender in contenders if contender.run is not None]
    longest = longest_sequence(read_config(folder_of(original))) or max(length for _, length in sizes)
    least, most = Subject(original).bounds(probe)
    shapes = [np.clip((batch, min(length, longest)), least, most).tolist() for batch, length in sizes]
    timings = []
    for batch, sequence in dict.fromkeys(map(tuple, shapes)):
        say(f"Timing {batch} x {sequence}")
        feed = random_inputs(probe, vocabulary, batch, sequence, padded=False)
        timings += interleaved(present, feed, batch, sequence, seconds)
    absent = {contender.name: contender.absent for contender in contenders if contender.run is None}
    details = {contender.name: contender.details for contender in present}
    return BenchReport(str(folder_of(fused)), "cpu", machine(), timings, details=details, absent=absent)


def _megabytes(path: Path) -> float:
    data = path.with_name(f"{path.name}.data")
    return (path.stat().st_size + (data.stat().st_size if data.is_file() else 0)) / 1e6


def _environment(metadata: dict[str, str]) -> list[tuple[str, str]]:
    found: dict[str, Any] = doctor()
    rows = [("bertfuse", found["bertfuse"]), ("python", found["python"]), ("platform", found["platform"])]
    here = machine()
    rows.append(("CPU", f"{here['cpu']}, {here['cores']} cores"))
    rows += [("GPU", " ".join(gpu.values())) for gpu in found["gpus"]]
    rows += [(name, version) for name, version in found["packages"].items() if version]
    rows += [(key.removeprefix("bertfuse."), value) for key, value in sorted(metadata.items()) if value]
    return rows
