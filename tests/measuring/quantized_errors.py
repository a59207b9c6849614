"""What 8 bits cost: python -m tests.measuring.quantized_errors minilm | bert-base [FOLDER] [--texts 1000]

"minilm" judges MiniLM's real weights on sentences of installed packages' documentation, one half calibrated with, the
other judged on. "bert-base" has random weights and inputs; its table tells each op's relative error |y - y'| / |y| of
the product alone, given the float model's x: the mean of all layers, and the largest. FOLDER keeps what is exported.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bertfuse
from bertfuse.quantization import Quantized

KINDS: dict[str, dict[str, Any]] = {
    "fp8": {"to": "fp8"},
    "fp8, results in 8 bits": {"to": "fp8", "results": True},
    "int8, mode 1": {},
    "int8, results in 8 bits": {"results": True},
    "int8, rounded residuals": {"residual": True},
    "int8, mode 2": {"residual": True, "weight_scales": "tensor"},
}


def accuracy(folder: Path, texts: Sequence[str], least: float | None) -> None:
    print("| | cosine, mean | least | rank correlation | nearest neighbours kept | layers in float |")
    print("|---|---|---|---|---|---|")
    for name, options in KINDS.items():
        with tempfile.TemporaryDirectory() as scratch:
            target = Path(scratch, "quantized.onnx")
            found = bertfuse.quantize(folder, target, calibration=texts, min_cosine=least, **options)
        judged, kept = found.judgement, [layer.name for layer in found.layers if layer.kept]
        print(
            f"| {name} | {judged.cosine_mean:.5f} | {judged.cosine_least:.5f} | {judged.rank_correlation:.5f} | "
            f"{judged.neighbours_kept:.1%} | {len(kept)} of {len(found.layers)} |",
            flush=True,
        )


def errors(folder: Path, inputs: Mapping[str, np.ndarray]) -> None:
    found: dict[str, Quantized] = {}
    for name, options in KINDS.items():
        with tempfile.TemporaryDirectory() as scratch:
            found[name] = bertfuse.quantize(folder, Path(scratch, "quantized.onnx"), calibration=inputs, **options)
    print("| mean, largest | " + " | ".join(found) + " |\n|---|" + "---|" * len(found))
    kinds = dict.fromkeys((layer.op, layer.shape) for layer in next(iter(found.values())).layers)
    for op, shape in kinds:
        cells = []
        for quantized in found.values():
            values = [layer.error for layer in quantized.layers if (layer.op, layer.shape) == (op, shape)]
            cells.append(f"{np.mean(values):.2%}, {max(values):.2%}")
        print(f"| {op}, {shape[0]} x {shape[1]} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("minilm", "bert-base"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--min-cosine", type=float)
    parser.add_argument("--dtype", default="fp32", help='of minilm; "fp16": as GPUs run it')
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch, "model")
        if given.model == "minilm":
            from tests.checkpoints import minilm
            from tests.test_quantization import sentences

            if not folder.exists():
                bertfuse.optimize(str(minilm()), folder, task="feature-extraction", dtype=given.dtype)
            accuracy(folder, sentences(given.texts), given.min_cosine)
            return
        import torch
        import transformers

        if not folder.exists():
            torch.manual_seed(0)
            transformers.BertModel(transformers.BertConfig()).save_pretrained(Path(scratch, "checkpoint"))
            bertfuse.optimize(str(Path(scratch, "checkpoint")), folder, task="feature-extraction")
        rng = np.random.default_rng(0)
        ids = rng.integers(0, 30522, (32, 64))
        errors(folder, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)})


if __name__ == "__main__":
    main()
