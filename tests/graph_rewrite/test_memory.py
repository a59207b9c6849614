"""Fusing file to file holds each large weight about once: a bound on memory, relative to the file's size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from bertfuse.export import export_model
from tests.tiny_models import config

# Reading a protobuf takes twice its size (the bytes and the message); fusing must not take more than once again.
MOST = 3.0

SCRIPT = """
import json, resource, sys
from bertfuse.graph_rewrite import fuse_file
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
result = fuse_file(sys.argv[1], sys.argv[2], dtype=sys.argv[3] or None)
print(json.dumps({"bytes": peak() - before, "fused": result.fused}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 4 layers and 200 MB with random weights."""
    changes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 16}
    model = transformers.BertModel(config(**changes), add_pooling_layer=False).eval()
    folder = tmp_path_factory.mktemp("large")
    return export_model(model, folder, exporter="torchscript", attention="eager")


@pytest.mark.parametrize("dtype", ["", "fp16"])
def test_peak(large: Path, tmp_path: Path, dtype: str) -> None:
    target = tmp_path / "fused.onnx"
    command = [sys.executable, "-c", SCRIPT, str(large), str(target), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    size = large.stat().st_size
    assert report["fused"]["FusedGemmLayerNorm"] == 8
    assert size > 190e6 and report["bytes"] < MOST * size, f"{report['bytes'] / size:.2f} times the file's size"
    assert target.stat().st_size < size * (0.55 if dtype else 1.01)
