from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import BETA, BIAS, EPSILON, GAMMA, GAMMA_OFFSET, ROW_COUNT, WEIGHT, X, Y


def body(d, x, weight, residual, gamma, bias, beta, row_count=None, product_gamma=None, *, epsilon, norm, gamma_offset):
    product = d.linear(x, weight, bias)
    if product_gamma is not None:
        product = d.rms_norm(product, d.offset(d.only_row(product_gamma), gamma_offset), epsilon)
    total = d.add(product, residual)
    if norm == "rms":
        return d.rms_norm(total, d.offset(gamma, gamma_offset), epsilon), total
    return d.layer_norm(total, gamma, beta, epsilon), total


OP = OpSpec(
    name="FusedGemmResidualNorm",
    doc="s = x Wᵀ + bias + residual, and its LayerNorm or RMSNorm: what a pre-norm block hands on and the next reads. "
    "With product_gamma the product is normalised, too, before the residual is added: s = RMSNorm(x Wᵀ + bias) + "
    "residual.",
    inputs=(
        X,
        replace(WEIGHT, dtype="T"),
        TensorSpec("residual", ("...", "N")),
        GAMMA,
        replace(BIAS, optional=True),
        # Of the same shape as the bias, which therefore has to be there, too: a plugin layer cannot have gaps.
        replace(BETA, optional=True, needs="bias", doc="LayerNorm shift; not read in RMSNorm"),
        ROW_COUNT,
        # Of two axes, of which the first is 1, so that a rank tells it from other vectors.
        TensorSpec(
            "product_gamma",
            ("J", "N"),
            optional=True,
            constant=True,
            doc="scale of the product's RMSNorm, with the same epsilon. J is 1",
        ),
    ),
    outputs=(Y, TensorSpec("total", ("...", "N"))),
    attributes=(
        EPSILON,
        AttrSpec("norm", "string", "layer", choices=("layer", "rms"), doc="LayerNorm or RMSNorm"),
        GAMMA_OFFSET,
    ),
    body=body,
)
