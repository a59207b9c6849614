"""Random problems of every op and dtype: a process each, so that a fault ends neither the tests nor their context."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from harness import GPU  # noqa: E402
from random_problems import OPS  # noqa: E402

pytestmark = GPU
SCRIPT = Path(__file__).with_name("random_problems.py")
COUNT = os.environ.get("BERTFUSE_RANDOM_PROBLEMS", "20")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_random_problems(op, dtype):
    seed = int.from_bytes(os.urandom(4), "little")
    words = [sys.executable, str(SCRIPT), op, dtype, "--seed", str(seed), "--count", COUNT]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.endswith("all right\n"), f"{' '.join(words)}\n{done.stdout[-4000:]}"
