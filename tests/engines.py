"""Fused files that engines are built from: the real MiniLM, and a small random BERT with every op."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import onnx

from bertfuse.cli.demo import model_folder
from bertfuse.export import export_model
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.spec import DOMAIN
from tests import made_once
from tests.tiny_models import beside_config, exported

# Together the two random ones have every op: attention is either fused, or left to the runtime behind AddQKVBias.
NAMES = ("minilm", "bert", "bert-basic")


@cache
def original(name: str) -> Path:
    """The exported model, made once for all processes; do not write into its folder."""
    if name != "minilm":
        return exported("fill-mask")

    def make(folder: Path) -> None:
        beside_config(export_model(str(model_folder()), folder, task="feature-extraction"))

    return made_once("minilm", make) / "model.onnx"


def fused(name: str, folder: Path, dtype: str | None = None, functions: bool = True) -> Path:
    """The fused file of one of NAMES in `folder`, with the original's config.json beside it."""
    source, target = original(name), folder / f"{name}-{dtype}.onnx"
    level = "basic" if name.endswith("basic") else "full"
    assert not fuse_file(source, target, level=level, dtype=dtype, functions=functions).misses
    shutil.copy(source.parent / "config.json", folder)
    return target


def ops_in(path: Path) -> dict[str, int]:
    """How often each of our ops is in the file."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return dict(Counter(node.op_type for node in nodes if node.domain == DOMAIN))
