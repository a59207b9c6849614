"""The choice of what computes the oracle: NumPy, or for large problems PyTorch on the GPU."""

from __future__ import annotations

from bertfuse.errors import BertfuseError

from .bounds import expected
from .check import Expect

REFERENCES = ("numpy",)


def reference(name: str) -> Expect:
    if name not in REFERENCES:
        raise BertfuseError(f"--reference {name!r}: choose one of {', '.join(REFERENCES)}")
    return expected
