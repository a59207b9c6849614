"""The choice of what makes the oracle's products: NumPy, or PyTorch, on a GPU where it sees one."""

from __future__ import annotations

from functools import partial

import numpy as np

from bertfuse.errors import BertfuseError

from .bounds import Matmul, expected
from .check import Expect

REFERENCES = ("numpy", "torch")
_LEAST = 1 << 24  # multiplications: copying smaller matrices takes longer than multiplying them


def reference(name: str, device: str = "cpu") -> Expect:
    """What gives expected values. Raises BertfuseError for another name, and where PyTorch is not installed."""
    if name not in REFERENCES:
        raise BertfuseError(f"--reference {name!r}: choose one of {', '.join(REFERENCES)}")
    matmul = np.matmul if name == "numpy" else _torch_matmul(device)
    return partial(expected, matmul=matmul, device=device)


def _torch_matmul(device: str) -> Matmul:
    try:
        import torch
    except ImportError as error:
        raise BertfuseError("--reference torch: PyTorch is not installed; numpy needs nothing") from error
    place = device if torch.cuda.is_available() else "cpu"

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.size * b.shape[-1] < _LEAST:
            return np.matmul(a, b)
        made = torch.matmul(*(torch.from_numpy(np.ascontiguousarray(x)).to(place) for x in (a, b)))
        return made.cpu().numpy()

    return matmul
