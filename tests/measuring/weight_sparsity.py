"""What 2:4 weights cost without training: python -m tests.measuring.weight_sparsity [--texts 500]

MiniLM's real weights on sentences of installed packages' documentation. Of every four neighbours along k of a product's
weight the two of least magnitude become 0, in all products and in those of feed-forward alone; judged against the same
model with whole weights, in float32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper

import bertfuse
from bertfuse.measuring.judgement import judge_sessions
from bertfuse.measuring.subjects import open_session
from bertfuse.runtime.inputs import fit_inputs, text_inputs
from tests.checkpoints import minilm
from tests.gpu.bench_sparsity import pruned
from tests.test_quantization import sentences

BATCH = 16
PRODUCTS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm")


def prune(source: Path, target: Path, feed_forward_alone: bool) -> int:
    """Returns how many weights were pruned."""
    model = onnx.load(source)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    count = 0
    for node in model.graph.node:
        if node.op_type not in PRODUCTS:
            continue
        tensor = weights[node.input[1]]
        n, k = tensor.dims
        if feed_forward_alone and node.op_type != "FusedGemmGelu" and k <= n:
            continue
        weight = pruned(torch.from_numpy(numpy_helper.to_array(tensor).copy()))
        tensor.CopyFrom(numpy_helper.from_array(weight.numpy(), tensor.name))
        count += 1
    onnx.save(model, target)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=500)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        bertfuse.optimize(str(minilm()), folder, task="feature-extraction")
        whole = folder / "onnx" / "model.onnx"
        session = open_session(whole)
        texts = sentences(given.texts)
        batches = (texts[first : first + BATCH] for first in range(0, len(texts), BATCH))
        feeds = [fit_inputs(session, text_inputs(folder, batch), "texts") for batch in batches]
        for name, feed_forward_alone in (("feed-forward", True), ("all products", False)):
            target = Path(scratch, "pruned.onnx")
            count = prune(whole, target, feed_forward_alone)
            print(
                f"{name}, {count} weights\n  "
                + "\n  ".join(judge_sessions(session, open_session(target), feeds).lines())
            )


if __name__ == "__main__":
    main()
