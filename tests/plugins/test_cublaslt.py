"""Products in cuBLASLt without a GPU: whole calls on fakes of the CUDA runtime and of cuBLASLt (tests/cublaslt)."""

import re
import secrets
import subprocess
import sys

import pytest

from tests import ROOT
from tests.cublaslt.scenarios import SCENARIOS
from tests.plugins.recording_library import BUILT, LIBRARY

# Run where no cuBLASLt is found, or none that can be used; a real one, if this machine has it, would be found.
ALONE = {"without", "lacks a function", "too new", "too old", "beside the runtime"}
_FIND = "import ctypes\nfor n in (11, 12, 13):\n try: print(ctypes.CDLL(f'libcublasLt.so.{n}'))\n except OSError: pass"


@pytest.fixture(scope="module")
def real_one() -> bool:
    return bool(subprocess.run([sys.executable, "-c", _FIND], capture_output=True, check=True).stdout)


@BUILT
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, real_one: bool) -> None:
    if scenario in ALONE and real_one:
        pytest.skip("this machine has a cuBLASLt")
    seed = secrets.randbits(31)
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.cublaslt.scenarios", LIBRARY, scenario, f"--seed={seed}"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert run.returncode == 0, f"seed {seed}: {run.stdout[-2000:]}{run.stderr[-4000:]}"
    said, expected = run.stderr.splitlines(), SCENARIOS[scenario][-1]
    assert bool(said) == bool(expected), f"seed {seed}: {run.stderr}"
    assert all(re.search(expected, line) for line in said), f"seed {seed}: {run.stderr}"
    assert len(said) == len(set(said)), f"seed {seed}: said more than once: {run.stderr}"
