"""Broken models: whatever comes in, fusion gives an equal model or a BertfuseError, and the library an error.

What ONNX Runtime still runs is compared; mutants that stay well-formed are hunted in by tests/mutant_hunt.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse
from bertfuse.graph_rewrite.io import load_model
from bertfuse.qualify.mutants import judge
from bertfuse.qualify.mutants.inputs import feeds, signature
from tests import ROOT
from tests.graph_rewrite.broken import MUTATIONS
from tests.tiny_models import exported, inputs


def survives(model: onnx.ModelProto) -> None:
    given = feeds(signature(onnx.load(exported())), np.random.default_rng(0), 8)
    verdict = judge(model, given)
    assert not verdict.bad, verdict.text
    assert "\n" not in verdict.text


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda function: function.__name__.strip("_"))
def test_mutated_graphs(mutation: Callable[[onnx.ModelProto, random.Random], None], seed: int) -> None:
    model, rng = onnx.load(exported()), random.Random(seed)
    for _ in range(seed + 1):
        mutation(model, rng)
    survives(model)


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bits(seed: int, tmp_path) -> None:
    data, rng = bytearray(exported().read_bytes()), random.Random(seed)
    for _ in range(1 + seed * 2):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    try:
        model = load_model(path)
    except BertfuseError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        survives(model)


# In a process of its own, since what is tested for is that it does not die: it says which model comes next.
LIBRARY = """
import random, sys
import numpy as np, onnx, onnxruntime
from tests.graph_rewrite.broken import FUSED_MUTATIONS, MUTATIONS
model, library, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
feed = np.load(model + ".npz")
kinds = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(float)": "float32", "tensor(bool)": "bool"}
for seed in range(count):
    print(seed, file=sys.stderr, flush=True)
    broken, rng = onnx.load(model), random.Random(seed)
    for choices in (FUSED_MUTATIONS, MUTATIONS)[: 1 + (seed % 3 == 0)]:
        rng.choice(choices)(broken, rng)
    data = bytearray(broken.SerializeToString())
    for _ in range(seed % 4 * 2):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.register_custom_ops_library(library)
    try:
        session = onnxruntime.InferenceSession(bytes(data), options, providers=["CPUExecutionProvider"])
        session.run(None, {v.name: feed[v.name].astype(kinds.get(v.type, "int64")) for v in session.get_inputs()})
        print("= ran", flush=True)
    except Exception as error:
        print("=", type(error).__name__, flush=True)
"""


def test_broken_fused_models_in_the_library(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "fused.onnx"
    onnx.save(fuse(exported("fill-mask"), functions=False).model, path)
    np.savez(f"{path}.npz", **inputs(2, 9))
    count = 300
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY, str(path), str(library), str(count)],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=300,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("= ")]  # onnxruntime prints, too
    assert done.returncode == 0, f"died of {done.returncode} at seed {len(said)}: {done.stderr[-500:]}"
    # Most are refused; some are sound all the same.
    assert len(said) == count and 0 < said.count("= ran") < count / 2, said
