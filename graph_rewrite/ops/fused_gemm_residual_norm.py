from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import BETA, BIAS, EPSILON, GAMMA, WEIGHT, X, Y


def body(d, x, weight, residual, gamma, bias, beta, *, epsilon, norm):
    total = d.add(d.linear(x, weight, bias), residual)
    if norm == "rms":
        return d.rms_norm(total, gamma, epsilon), total
    return d.layer_norm(total, gamma, beta, epsilon), total


OP = OpSpec(
    name="FusedGemmResidualNorm",
    doc="s = x Wᵀ + bias + residual, and its LayerNorm or RMSNorm: what a pre-norm block hands on and the next reads.",
    inputs=(
        X,
        WEIGHT,
        TensorSpec("residual", ("...", "N")),
        GAMMA,
        replace(BIAS, optional=True),
        replace(BETA, optional=True, doc="LayerNorm shift; none in RMSNorm"),
    ),
    outputs=(Y, TensorSpec("total", ("...", "N"))),
    attributes=(EPSILON, AttrSpec("norm", "string", "layer", choices=("layer", "rms"), doc="LayerNorm or RMSNorm")),
    body=body,
)
