from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import BETA, BIAS, EPSILON, GAMMA, GAMMA_OFFSET, ROW_COUNT, WEIGHT, Y_QUANTIZED, Y_SCALE, X, Y
from .products import QUANTIZED, QUANTIZED_Y, linear

INPUTS = (
    X,
    WEIGHT,
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
    *QUANTIZED,
    *QUANTIZED_Y,
)


def body(d, *values, epsilon, norm, gamma_offset):
    named = {tensor.name: value for tensor, value in zip(INPUTS, values, strict=True)}
    of_product = (X, WEIGHT, BIAS, *QUANTIZED)
    product = linear(d, **{tensor.name: named[tensor.name] for tensor in of_product})
    if named["product_gamma"] is not None:
        product_gamma = d.offset(d.only_row(named["product_gamma"]), gamma_offset)
        product = d.rms_norm(product, product_gamma, epsilon)
    total = d.add(product, named["residual"])
    if norm == "rms":
        y = d.rms_norm(total, d.offset(named["gamma"], gamma_offset), epsilon)
    else:
        y = d.layer_norm(total, named["gamma"], named["beta"], epsilon)
    if named["y_zero_point"] is None:
        return y, total
    return y, total, *d.quantize_rows(y, *(named[tensor.name] for tensor in QUANTIZED_Y))


OP = OpSpec(
    name="FusedGemmResidualNorm",
    doc="s = x Wᵀ + bias + residual, and its LayerNorm or RMSNorm: what a pre-norm block hands on and the next reads. "
    "With product_gamma the product is normalised, too, before the residual is added: s = RMSNorm(x Wᵀ + bias) + "
    "residual.",
    inputs=INPUTS,
    outputs=(Y, TensorSpec("total", ("...", "N"))),
    attributes=(
        EPSILON,
        AttrSpec("norm", "string", "layer", choices=("layer", "rms"), doc="LayerNorm or RMSNorm"),
        GAMMA_OFFSET,
    ),
    body=body,
    quantized_outputs=(Y_QUANTIZED, Y_SCALE),
)
