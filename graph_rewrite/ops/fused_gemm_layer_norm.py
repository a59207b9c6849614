from ..spec import OpSpec, TensorSpec
from ._common import BETA, BIAS, EPSILON, GAMMA, ROW_COUNT, WEIGHT, X, Y


def body(d, x, weight, bias, residual, gamma, beta, row_count, *, epsilon):
    return d.layer_norm(d.add(d.linear(x, weight, bias), residual), gamma, beta, epsilon)


OP = OpSpec(
    name="FusedGemmLayerNorm",
    doc="LayerNorm(x Wᵀ + bias + residual): attention output and FFN output of a post-LN encoder layer.",
    inputs=(X, WEIGHT, BIAS, TensorSpec("residual", ("...", "N")), GAMMA, BETA, ROW_COUNT),
    outputs=(Y,),
    attributes=(EPSILON,),
    body=body,
)
