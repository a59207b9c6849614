"""What the oracle computes with where it bounds errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Number:
    """float64 values, and how far a right kernel may be from each. Of NaN an error of 0 says that it must be NaN."""

    value: np.ndarray
    error: np.ndarray | float = 0.0
