"""How many feed-forward neurons do anything: python -m tests.measuring.activation_sparsity [--texts 200]

MiniLM's real weights on sentences of installed packages' documentation. For each layer: the share of neurons (elements
of GELU's result) whose magnitude is above 0.05 for a token, and above it for at least one of 128 tokens: what cannot be
skipped for a text, or for a batch. Last, the share of neurons that hold 80% of all such elements (PowerInfer's "hot").
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx

import bertfuse
from bertfuse.measuring.subjects import open_session
from bertfuse.measuring.tensors import expose
from bertfuse.runtime.inputs import fit_inputs, text_inputs
from tests.checkpoints import minilm
from tests.test_quantization import sentences

THRESHOLD, TOKENS, BATCH = 0.05, 128, 16


def active(folder: Path, texts: list[str]) -> list[np.ndarray]:
    """For each feed-forward product bool [tokens, neurons]: which are above the threshold."""
    model = folder / "onnx" / "model.onnx"
    names = [node.output[0] for node in onnx.load(model).graph.node if node.op_type == "FusedGemmGelu"]
    with tempfile.TemporaryDirectory() as scratch:
        expose(model, names, Path(scratch, "model.onnx"))
        session = open_session(Path(scratch, "model.onnx"))
        found: list[list[np.ndarray]] = [[] for _ in names]
        for first in range(0, len(texts), BATCH):
            feed = fit_inputs(session, text_inputs(folder, texts[first : first + BATCH]), "texts")
            real = feed["attention_mask"] != 0
            for rows, array in zip(found, session.run(names, feed), strict=True):
                rows.append(np.abs(array[real]) > THRESHOLD)
    return [np.concatenate(rows) for rows in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        bertfuse.optimize(str(minilm()), folder, task="feature-extraction")
        layers = active(folder, sentences(given.texts))
    print(f"{len(layers[0])} tokens\n")
    print(
        "| layer | active for a token | for one of 128 tokens or more | hold 80% of what is active |\n|---|---|---|---|"
    )
    for place, rows in enumerate(layers):
        whole = rows[: len(rows) // TOKENS * TOKENS].reshape(-1, TOKENS, rows.shape[1])
        counts = np.sort(rows.sum(axis=0))[::-1]
        hot = (np.searchsorted(np.cumsum(counts), 0.8 * counts.sum()) + 1) / len(counts)
        print(f"| {place} | {rows.mean():.1%} | {whole.any(axis=1).mean():.2%} | {hot:.0%} |")


if __name__ == "__main__":
    main()
