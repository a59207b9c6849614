"""What tests.gpu.sanitize launches, without a GPU: on a CUDA runtime that records launches (fake_cudart/)."""

import json
import os
import re
import subprocess
import sys

from tests import ROOT
from tests.plugins.recording_library import BUILT, LIBRARY

# Tensors stay where the host has them: the recording runtime reads none of them.
_SCRIPT = r"""
import json, sys
from pathlib import Path
import torch
from torch.overrides import TorchFunctionMode
from tests.gpu.sanitized_launches import launch_all
from tests.launches import Recorder

hopper = Recorder(Path(sys.argv[1])).devices.index(90)
torch.Tensor.cuda = lambda tensor: tensor
torch.cuda.current_device = lambda: hopper
torch.cuda.synchronize = lambda: None
torch.cuda.current_stream = lambda device: type("Stream", (), {"cuda_stream": 0})

class OnHost(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **{k: "cpu" if k == "device" else v for k, v in (kwargs or {}).items()})

with OnHost():
    for arguments in json.loads(sys.argv[2]):
        launch_all(*arguments)
"""


def _launches(*calls: list) -> list[int]:
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, LIBRARY, json.dumps(calls)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "BERTFUSE_CUDA_TEST_LIBRARY": str(LIBRARY), "BERTFUSE_TEST_INPUTS": "host"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return [int(count) for count in re.findall(r"^launches: (\d+)$", run.stdout, re.MULTILINE)]


@BUILT
def test_all_forms_of_all_ops_are_launched():
    from tests.gpu.sanitized_launches import GEMMS, OPS, PACKED_OPS, ROTARY, TWO_PART_OPS

    forms = [(op, (False, False, False)) for op in OPS]
    forms += [(op, (True, False, False)) for op in GEMMS if "LayerNorm" in op]
    forms += [(op, (False, True, False)) for op in ("FusedAttention", ROTARY, *TWO_PART_OPS, *PACKED_OPS[:2], *GEMMS)]
    forms += [(op, (False, False, True)) for op in (*GEMMS, *TWO_PART_OPS, ROTARY, "FusedAttention")]
    counts = _launches(*([[op], ["float16"], *form, "", 0, 1] for op, form in forms))
    missing = [form for form, count in zip(forms, counts, strict=True) if count == 0]
    assert not missing, missing


@BUILT
def test_parts_share_out_the_launches():
    whole, *parts = _launches(
        *(
            [["FusedGemmLayerNorm"], ["float16"], False, False, True, "cluster", part, of]
            for part, of in ((0, 1), (0, 3), (1, 3), (2, 3))
        )
    )
    assert sum(parts) == whole and max(parts) - min(parts) <= 1 and min(parts) > 0


@BUILT
def test_tactics_are_those_that_are_named():
    every, narrow, none = _launches(
        *([["FusedGemm"], ["float16"], False, False, True, named, 0, 1] for named in ("", "64x32", "nothing"))
    )
    assert every > narrow > none == 0
