"""Families beyond BERT before and after fusion on the CPU: python -m tests.measuring.cpu_families FOLDER

Three models of four layers and hidden size 384, of random weights, are exported to FOLDER. The original file, the one
fused through its op bodies, and the same through the library take turns in ONNX Runtime with one thread. A line for
each size has the least processor time of a run, and how far the fused ones' results are off. Another has those of the
original as onnxruntime's quantize_dynamic leaves it, and of `bertfuse quantize --to int8` through the library.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from onnxruntime.quantization import quantize_dynamic

import bertfuse
from bertfuse.export import export_model
from bertfuse.graph_rewrite import fuse_file
from bertfuse.runtime.library import library_path
from tests.measuring.cpu_turns import times

SIZES = ((1, 16), (1, 128), (8, 128))
_COMMON: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 3000,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_MODERN = {"intermediate_size": 576, "num_attention_heads": 6, "cls_token_id": 0, "sep_token_id": 2}
# Configuration, what differs, and the exporter that the type has.
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mpnet": ("MPNetConfig", {}, "torchscript"),
    "modernbert": ("ModernBertConfig", _MODERN, "dynamo"),
    "nomic": ("NomicBertConfig", {"head_dim": 32, "intermediate_size": 1024}, "dynamo"),
}


def exported(name: str, folder: Path) -> Path:
    config, changes, exporter = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(getattr(transformers, config)(**(_COMMON | changes))).eval()
    folder.mkdir(parents=True, exist_ok=True)
    return export_model(model, folder, task="feature-extraction", exporter=exporter)


def sessions(files: Sequence[tuple[Path, bool]]) -> list[onnxruntime.InferenceSession]:
    """Of each file, with the library or without it."""
    made = []
    for path, with_library in files:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        if with_library:
            options.register_custom_ops_library(str(library_path()))
        made.append(onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    return made


def feed(session: onnxruntime.InferenceSession, batch: int, sequence: int) -> dict[str, np.ndarray]:
    """Random ids, of which none is padding."""
    ids = np.random.default_rng(0).integers(5, _COMMON["vocab_size"], (batch, sequence))
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return {given.name: values.get(given.name, np.zeros_like(ids)) for given in session.get_inputs()}


def _cosine(right: np.ndarray, other: np.ndarray) -> float:
    """The mean over tokens."""
    norms = np.linalg.norm(right, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(((right * other).sum(axis=-1) / norms).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each model and size")
    options = parser.parse_args()
    for name in MODELS:
        original = exported(name, options.folder / name)
        fused = original.with_name("families.onnx")
        print(name, fuse_file(original, fused).fused)
        made = sessions(((original, False), (fused, False), (fused, True)))
        theirs, ours = original.with_name("dynamic.onnx"), original.with_name("int8.onnx")
        quantize_dynamic(original, theirs)
        bertfuse.quantize(fused, ours, to="int8", calibration=feed(made[0], 4, 64))
        in_8_bits = sessions(((theirs, False), (ours, True)))
        for batch, sequence in SIZES:
            inputs = feed(made[0], batch, sequence)
            first, *others = (session.run(None, inputs)[0] for session in made)
            off = max(float(np.abs(other - first).max()) for other in others)
            taken = ", ".join(f"{cpu:.2f}" for _, _, cpu, _ in times(made, inputs, options.seconds))
            print(f"  {batch}x{sequence}: original, bodies, library: {taken} ms; off by {off:.1e}", flush=True)
            cosines = ", ".join(f"{_cosine(first, s.run(None, inputs)[0]):.4f}" for s in in_8_bits)
            taken = ", ".join(f"{cpu:.2f}" for _, _, cpu, _ in times(in_8_bits, inputs, options.seconds))
            print(f"  {batch}x{sequence}: quantize_dynamic, int8: {taken} ms; cosines {cosines}", flush=True)


if __name__ == "__main__":
    main()
