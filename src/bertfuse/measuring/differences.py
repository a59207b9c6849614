"""How far two arrays are apart, and whether that is rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# (atol, rtol): what two right evaluations of an encoder differ by, from the type of the coarser output. float32: sums
# in another order over up to 24 layers; float16 and bfloat16: 11 and 8 bits of significand, rounded at every layer.
TOLERANCES = {"float32": (1e-4, 1e-3), "float64": (1e-4, 1e-3), "float16": (2e-2, 2e-2), "bfloat16": (1e-1, 1e-1)}

# Where one of the models has 8-bit weights: between corresponding vectors. MiniLM's real weights: 0.984 between two
# texts' hidden states, 0.997 between their means; what is computed wrongly is nearer to 0. A lone number (a score) has
# no direction: it may differ by as much as unit vectors of that cosine do, relative to the largest one or to 1.
QUANTIZED_COSINE = 0.95


@dataclass(frozen=True)
class OutputDifference:
    """How far an output of the second model is from the first's.

    `absolute` is max |a - b|, `relative` that over max |a|, `cosine` the least cosine similarity between corresponding
    vectors along the last axis. Integers and booleans must be equal: any difference fails. `equal`: the same bits.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    absolute: float
    relative: float
    cosine: float
    passed: bool
    reason: str = ""
    equal: bool = False

    def __bool__(self) -> bool:
        return self.passed

    @property
    def verdict(self) -> str:
        return f"differs: {self.reason}" if not self.passed else "equal bits" if self.equal else "agrees"


def difference(
    name: str,
    reference: np.ndarray,
    other: np.ndarray,
    atol: float | None = None,
    rtol: float | None = None,
    least_cosine: float | None = None,
) -> OutputDifference:
    """Compares two arrays: they agree where |a - b| <= atol + rtol |a| everywhere (defaults: TOLERANCES by dtype).

    With `least_cosine` floats agree where no two corresponding vectors along the last axis have a smaller one; where
    that axis is 1, where |a - b| <= sqrt(2 - 2 least_cosine) max(|a|, 1), the largest |a|.
    """
    dtype = str(other.dtype)
    if reference.shape != other.shape:
        reason = f"shapes {list(reference.shape)} and {list(other.shape)} differ"
        return OutputDifference(name, tuple(other.shape), dtype, np.inf, np.inf, 0.0, False, reason)
    if other.size == 0:
        return OutputDifference(
            name, tuple(other.shape), dtype, 0.0, 0.0, 1.0, True, equal=reference.dtype == other.dtype
        )
    exact = other.dtype.kind in "iub" or reference.dtype.kind in "iub"
    # The wider entry holds where one model computes in float32 and the other in float16.
    bounds = [TOLERANCES.get(str(array.dtype), TOLERANCES["float32"]) for array in (reference, other)]
    atol = max(pair[0] for pair in bounds) if atol is None else atol
    rtol = max(pair[1] for pair in bounds) if rtol is None else rtol
    a, b = reference.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.where(a == b, 0.0, np.abs(a - b))  # equal infinities (masks) are no difference
    finite = np.where(np.isfinite(a), np.abs(a), 0.0)
    absolute = float("inf") if np.isnan(gap).any() else float(gap.max())
    scale = float(finite.max())
    relative = absolute / scale if scale else (0.0 if absolute == 0.0 else float("inf"))
    agree = gap <= (0.0 if exact else atol + rtol * finite)
    reason = ""
    if not agree.all():
        where = np.unravel_index(int(np.argmin(agree)), agree.shape)
        reason = f"first at {[int(i) for i in where]}: {a[where]:.6g} and {b[where]:.6g}"
    equal = reference.dtype == other.dtype and reference.tobytes() == other.tobytes()
    if least_cosine is not None and not exact and a.ndim and a.shape[-1] == 1:
        allowed = math.sqrt(2 - 2 * least_cosine) * max(scale, 1.0)
        agree = gap <= allowed
        where = np.unravel_index(int(np.argmin(agree)), agree.shape)
        reason = "" if agree.all() else f"{a[where]:.6g} and {b[where]:.6g} differ by more than {allowed:.3g}"
        near = bool(agree.all())
        return OutputDifference(name, tuple(other.shape), dtype, absolute, relative, _cosine(a, b), near, reason, equal)
    if least_cosine is not None and not exact:
        cosine = _cosine(a, b)
        near = cosine >= least_cosine
        reason = "" if near else f"a cosine of {cosine:.4f}, expected {least_cosine:g} at least"
        return OutputDifference(name, tuple(other.shape), dtype, absolute, relative, cosine, near, reason, equal)
    return OutputDifference(
        name, tuple(other.shape), dtype, absolute, relative, _cosine(a, b), bool(agree.all()), reason, equal
    )


def without_padding(array: np.ndarray, padding: np.ndarray | None, of_tokens: bool) -> np.ndarray:
    """The array with zeros where `padding` [B, S] is, if it has a row for each token; else where all of a row is."""
    hidden = padding if padding is None or of_tokens else padding.all(axis=1)
    if hidden is None or array.shape[: hidden.ndim] != hidden.shape:
        return array
    array = array.copy()
    array[hidden] = 0
    return array


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 1.0 if np.array_equal(a, b) else 0.0
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    dots = (a * b).sum(axis=-1)
    both_zero = (np.linalg.norm(a, axis=-1) == 0) & (np.linalg.norm(b, axis=-1) == 0)
    return float(np.where(both_zero, 1.0, dots / np.where(norms == 0, 1.0, norms)).min())
