from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import BETA, BIAS, EPSILON, GAMMA, ROW_COUNT, WEIGHT, X, Y


def body(d, x, weight, residual, gamma, bias, beta, row_count=None, *, epsilon, norm):
    total = d.add(d.linear(x, weight, bias), residual)
    if norm == "rms":
        return d.rms_norm(total, gamma, epsilon), total
    return d.layer_norm(total, gamma, beta, epsilon), total


OP = OpSpec(
    name="FusedGemmResidualNorm",
    doc="s = x Wᵀ + bias + residual, and its LayerNorm or RMSNorm: what a pre-norm block hands on and the next reads.",
    inputs=(
        X,
        replace(WEIGHT, dtype="T"),
        TensorSpec("residual", ("...", "N")),
        GAMMA,
        replace(BIAS, optional=True),
        # Of the same shape as the bias, which therefore has to be there, too: a plugin layer cannot have gaps.
        replace(BETA, optional=True, needs="bias", doc="LayerNorm shift; not read in RMSNorm"),
        ROW_COUNT,
    ),
    outputs=(Y, TensorSpec("total", ("...", "N"))),
    attributes=(EPSILON, AttrSpec("norm", "string", "layer", choices=("layer", "rms"), doc="LayerNorm or RMSNorm")),
    body=body,
)
