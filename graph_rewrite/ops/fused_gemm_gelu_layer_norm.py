from ..spec import OpSpec, TensorSpec
from ._common import APPROXIMATE, BETA, BIAS, EPSILON, GAMMA, ROW_COUNT, WEIGHT, X, Y


def body(d, x, weight, bias, gamma, beta, residual, row_count, *, epsilon, approximate):
    y = d.gelu(d.linear(x, weight, bias), approximate)
    if residual is not None:
        y = d.add(y, residual)
    return d.layer_norm(y, gamma, beta, epsilon)


OP = OpSpec(
    name="FusedGemmGeluLayerNorm",
    doc="LayerNorm(GELU(x Wᵀ + bias) + residual): the transform of a masked-language-model head (no residual there).",
    inputs=(X, WEIGHT, BIAS, GAMMA, BETA, TensorSpec("residual", ("...", "N"), optional=True), ROW_COUNT),
    outputs=(Y,),
    attributes=(EPSILON, APPROXIMATE),
    body=body,
)
