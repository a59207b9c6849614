"""The fused file is the same, byte for byte, whatever order Python's sets and hashes have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.graph_rewrite.adversarial import make

SEEDS = ("0", "1", "42", "4294967295")
# A layer with embeddings, axes that a branch merges, bodies, functions, computed masks; the seed picks the recipe.
MODELS = (
    ("weights", 2), ("branches", 0), ("branches", 4), ("branches", 13), ("foreign", 4), ("programs", 0), ("wiring", 6),
    ("claims", 4), ("encoders", 6), ("padding", 0),
)  # fmt: skip
_FUSE = """
import hashlib, sys
import onnx
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse
for path in sys.argv[1:]:
    for options in ({}, {"level": "basic"}, {"padding": "remove"}, {"dtype": "fp16"}):
        try:
            result = fuse(onnx.load(path), **options)
            said = [str(miss) for miss in result.misses]
            text = hashlib.sha256(result.model.SerializeToString()).hexdigest()
        except BertfuseError as error:
            said, text = [], str(error)
        print(path, options, text, said)
"""


@pytest.mark.slow
def test_the_hash_seed_changes_nothing(tmp_path: Path) -> None:
    paths = []
    for kind, seed in MODELS:
        path = tmp_path / f"{kind}-{seed}.onnx"
        onnx.save(make(kind, seed)[1].model, path)
        paths.append(str(path))
    told = {}
    for seed in SEEDS:
        done = subprocess.run(
            [sys.executable, "-c", _FUSE, *paths],
            env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        told[seed] = done.stdout.splitlines()
    assert len(told[SEEDS[0]]) == 4 * len(MODELS)
    for lines in zip(*told.values(), strict=True):
        assert len(set(lines)) == 1, "\n".join(lines)
