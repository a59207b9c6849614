"""Where the library with a CUDA runtime that records launches is (fake_cudart/), and the mark of tests that need it."""

import os
from pathlib import Path

import pytest

from tests import ROOT

LIBRARY = Path(
    os.environ.get("BERTFUSE_FAKE_CUDART_LIBRARY", ROOT / "build/wheel/lib/libbertfuse_ort_on_fake_cudart.so")
)
BUILT = pytest.mark.skipif(
    not LIBRARY.exists(), reason="there is no libbertfuse_ort_on_fake_cudart.so: the CUDA kernels were not built"
)
