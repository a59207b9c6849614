"""How far a kernel may be from the float64 oracle: one table for every provider, with the reason of every number.

The oracle is given the inputs as the kernel gets them (rounded to the dtype), so what counts is the kernel's own error:
|kernel - oracle| <= atol + rtol |oracle|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tolerance:
    rtol: float
    atol: float
    reason: str


_SUM = "sums of up to 3072 float32 products: about sqrt(3072) roundings of 6e-8 on values around 1 to 5"
_HALF = "float32 inside, then one rounding to 11 bits (4.9e-4); scores or products may be rounded once more on the way"
_BRAIN = "as float16, with 8 bits (3.9e-3)"

_ROUNDED = "; the product may be rounded before GELU, and LayerNorm divides that error by a deviation of about 0.7"

# Where q + bias, weights and results alone are rounded, 7 keys and 3.7 million results: at most 3.4e-3 in 40 runs of
# float16.
_SCORES = "; q + bias is rounded, and of a few keys with competing weights a score that moves shifts the result"

_TURNED = "; Q and K are rounded once more where they are normalised and rotated, as two products each"

_FACTORS = "; both factors may be rounded, before the bias is added too, and each error is as large as the other factor"

_TF32 = "operands rounded to 11 bits (2.8e-4 a product): 2.8e-4 on a sum of variance 1, at 5 to 6 deviations"

TOLERANCES: dict[tuple[str, str], Tolerance] = {
    ("AddQKVBias", "float32"): Tolerance(1e-6, 1e-6, "one addition"),
    ("AddQKVBias", "float16"): Tolerance(1e-3, 1e-3, "one addition, rounded once or twice to 11 bits"),
    ("AddQKVBias", "bfloat16"): Tolerance(8e-3, 8e-3, "one addition, rounded once or twice to 8 bits"),
    ("EmbedLayerNorm", "float32"): Tolerance(1e-5, 1e-5, "statistics over up to 1024 float32 values"),
    ("EmbedLayerNorm", "float16"): Tolerance(2e-3, 2e-3, _HALF),
    ("EmbedLayerNorm", "bfloat16"): Tolerance(1.6e-2, 1.6e-2, _BRAIN),
    ("FusedAttention", "float32"): Tolerance(1e-5, 1e-5, "exp to 2e-7 and sums of up to 4096 weights"),
    ("FusedAttention", "tf32"): Tolerance(2e-3, 3e-3, _TF32 + "; of scores, weights and values, as float16"),
    ("FusedAttention", "float16"): Tolerance(2e-3, 3e-3, _HALF + _SCORES),
    ("FusedAttention", "bfloat16"): Tolerance(1.6e-2, 2.4e-2, _BRAIN + _SCORES),
    ("FusedAttentionVariant", "float32"): Tolerance(2e-5, 2e-5, "exp to 2e-7 and sums of weights" + _TURNED),
    ("FusedAttentionVariant", "tf32"): Tolerance(2e-3, 4e-3, _TF32 + "; of scores, weights and values, as float16"),
    ("FusedAttentionVariant", "float16"): Tolerance(2e-3, 4e-3, _HALF + _SCORES + _TURNED),
    ("FusedAttentionVariant", "bfloat16"): Tolerance(1.6e-2, 3.2e-2, _BRAIN + _SCORES + _TURNED),
    ("FusedGatedGemm", "float32"): Tolerance(2e-5, 2e-5, _SUM + "; one is a factor of the other"),
    ("FusedGatedGemm", "tf32"): Tolerance(4e-3, 8e-3, _TF32 + "; two such sums are multiplied"),
    ("FusedGatedGemm", "float16"): Tolerance(4e-3, 8e-3, _HALF + _FACTORS),
    ("FusedGatedGemm", "bfloat16"): Tolerance(3.2e-2, 6.4e-2, _BRAIN + _FACTORS),
    ("FusedGemm", "float32"): Tolerance(1e-5, 1e-5, _SUM),
    ("FusedGemm", "tf32"): Tolerance(2e-3, 2e-3, _TF32),
    ("FusedGemm", "float16"): Tolerance(2e-3, 2e-3, _HALF),
    ("FusedGemm", "bfloat16"): Tolerance(1.6e-2, 1.6e-2, _BRAIN),
    ("FusedGemmGelu", "float32"): Tolerance(1e-5, 1e-5, _SUM),
    ("FusedGemmGelu", "tf32"): Tolerance(2e-3, 2e-3, _TF32),
    ("FusedGemmGelu", "float16"): Tolerance(2e-3, 2e-3, _HALF),
    ("FusedGemmGelu", "bfloat16"): Tolerance(1.6e-2, 1.6e-2, _BRAIN),
    ("FusedGemmGeluLayerNorm", "float32"): Tolerance(2e-5, 2e-5, _SUM + "; a small variance enlarges them"),
    ("FusedGemmGeluLayerNorm", "tf32"): Tolerance(2e-3, 2e-3, _TF32),
    ("FusedGemmGeluLayerNorm", "float16"): Tolerance(2e-3, 4e-3, _HALF + _ROUNDED),
    ("FusedGemmGeluLayerNorm", "bfloat16"): Tolerance(1.6e-2, 3.2e-2, _BRAIN + _ROUNDED),
    ("FusedGemmLayerNorm", "float32"): Tolerance(1e-5, 1e-5, _SUM),
    ("FusedGemmLayerNorm", "tf32"): Tolerance(2e-3, 2e-3, _TF32),
    ("FusedGemmLayerNorm", "float16"): Tolerance(2e-3, 2e-3, _HALF),
    ("FusedGemmLayerNorm", "bfloat16"): Tolerance(1.6e-2, 1.6e-2, _BRAIN),
    ("FusedGemmResidualNorm", "float32"): Tolerance(1e-5, 1e-5, _SUM),
    ("FusedGemmResidualNorm", "tf32"): Tolerance(2e-3, 2e-3, _TF32),
    ("FusedGemmResidualNorm", "float16"): Tolerance(2e-3, 2e-3, _HALF),
    ("FusedGemmResidualNorm", "bfloat16"): Tolerance(1.6e-2, 1.6e-2, _BRAIN),
    ("FusedGemmRotary", "float32"): Tolerance(2e-5, 2e-5, _SUM + "; of two such sums"),
    ("FusedGemmRotary", "tf32"): Tolerance(2e-3, 4e-3, _TF32 + "; of two such sums"),
    ("FusedGemmRotary", "float16"): Tolerance(2e-3, 4e-3, _HALF + "; of two such products"),
    ("FusedGemmRotary", "bfloat16"): Tolerance(1.6e-2, 3.2e-2, _BRAIN + "; of two such products"),
    ("FusedRMSNorm", "float32"): Tolerance(1e-5, 1e-5, "a sum over up to 3072 float32 squares"),
    ("FusedRMSNorm", "float16"): Tolerance(2e-3, 2e-3, _HALF),
    ("FusedRMSNorm", "bfloat16"): Tolerance(1.6e-2, 1.6e-2, _BRAIN),
    ("RotaryTables", "float32"): Tolerance(4e-7, 4e-7, "two units in the last place of float32 cosines, and a product"),
    ("RotaryTables", "float16"): Tolerance(5e-4, 1e-6, "a float32 cosine rounded to 11 bits"),
    ("RotaryTables", "bfloat16"): Tolerance(4e-3, 1e-6, "a float32 cosine rounded to 8 bits"),
}


@dataclass(frozen=True)
class Rounding:
    """Relative errors of one rounding: of results that are kept in the dtype, and of a product's operands."""

    unit: float
    operand: float
    reason: str


# What error bounds of single problems are made from (bounds.py), for data that the table above is not for.
ROUNDING: dict[str, Rounding] = {
    "float32": Rounding(2.0**-24, 0.0, "24 bits"),
    "tf32": Rounding(2.0**-24, 2.0**-11, "operands of 11 bits, cut off or rounded; results of 24"),
    "float16": Rounding(2.0**-11, 0.0, "11 bits; intermediate results may be kept in them"),
    "bfloat16": Rounding(2.0**-8, 0.0, "8 bits; intermediate results may be kept in them"),
}
# Below a dtype's least normal number a rounding is off by half the distance of subnormal ones, however small the value.
SUBNORMAL: dict[str, float] = {"float32": 2.0**-150, "tf32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}
# Beyond this a value kept in the dtype is not finite.
LARGEST: dict[str, float] = {"float32": 3.4e38, "tf32": 3.4e38, "float16": 65504.0, "bfloat16": 3.38e38}


def assert_close(actual: np.ndarray, expected: np.ndarray, op: str, dtype: str, scale: float = 1.0) -> None:
    """Fails with the largest excess where `actual` is further from `expected` than the table allows, times `scale`."""
    tolerance = TOLERANCES[op, dtype]
    assert actual.shape == expected.shape, f"{op}: shape {actual.shape}, expected {expected.shape}"
    if not actual.size:
        return
    actual = actual.astype(np.float64)
    assert np.isfinite(actual).all(), f"{op} {dtype}: {np.count_nonzero(~np.isfinite(actual))} values are not finite"
    allowed = scale * (tolerance.atol + tolerance.rtol * np.abs(expected))
    ratio = np.abs(actual - expected) / allowed
    worst = np.unravel_index(ratio.argmax(), ratio.shape)
    assert ratio[worst] <= 1, (
        f"{op} {dtype}: at {tuple(map(int, worst))} {actual[worst]:.8g}, expected {expected[worst]:.8g}: "
        f"{ratio[worst]:.2f} times what is allowed ({tolerance.reason})"
    )
