"""`pytest --quick`, which `make check` runs."""

import subprocess
import sys

from tests import ROOT


def test_quick_tests_are_collected():
    """A test file that takes names from another one is no quick test where that one imports PyTorch: pytest is left
    with half of the other. What two files share lies in a file beside them."""
    command = [sys.executable, "-m", "pytest", "--quick", "--collect-only", "--quiet", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, "tests"], capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
