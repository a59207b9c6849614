"""The ops of one matrix product: y = norm(activation(x Wᵀ + bias) + residual), of which each has its part."""

from __future__ import annotations

from dataclasses import replace

from ..spec import OpSpec, TensorSpec
from ._common import (
    APPROXIMATE,
    BETA,
    BIAS,
    EPSILON,
    GAMMA,
    QUANTIZED_BY_TENSOR,
    QUANTIZED_RESIDUAL,
    ROW_COUNT,
    WEIGHT,
    WEIGHT_SCALE,
    X_COMPENSATION,
    X_QUANTIZED,
    X_ROW_SCALE,
    X_SCALE,
    X_SMOOTH,
    X_ZERO,
    Y_QUANTIZED,
    Y_SCALE,
    Y_SMOOTH,
    Y_TENSOR_SCALE,
    Y_USE,
    Y_ZERO_POINT,
    X,
    Y,
)
from .activations import ACTIVATION, NONE

QUANTIZED = (WEIGHT_SCALE, X_SMOOTH, X_SCALE, X_ZERO, X_QUANTIZED, X_ROW_SCALE, X_COMPENSATION)
QUANTIZED_Y = (Y_ZERO_POINT, Y_SMOOTH, Y_TENSOR_SCALE)  # of those that normalise, and so have whole rows
RESIDUAL = TensorSpec("residual", ("...", "N"))


def linear(
    d,
    *,
    x,
    weight,
    bias,
    weight_scale,
    x_smooth,
    x_scale,
    x_zero,
    x_quantized,
    x_row_scale,
    x_compensation,
    residual=None,
):
    """x Wᵀ + bias + residual, whichever form x and the weight have."""
    if weight_scale is None:
        return d.linear(x, weight, bias, residual)
    if x_quantized is not None:
        return d.linear_of_quantized(x_quantized, x_row_scale, weight, weight_scale, bias, residual, x_compensation)
    return d.quantized_linear(x, weight, weight_scale, x_smooth, x_scale, bias, residual, x_zero)


def _body(
    d,
    *,
    y_zero_point=None,
    y_smooth=None,
    y_tensor_scale=None,
    gamma=None,
    beta=None,
    residual=None,
    residual_quantized=None,
    residual_row_scale=None,
    residual_factor=None,
    epsilon=None,
    approximate=None,
    activation=NONE,
    y_use=None,
    **product,
):
    if residual_quantized is not None:
        residual = d.restored_rows(residual_quantized, residual_row_scale, residual_factor)
    activates = approximate is not None or activation != NONE
    y = linear(d, **product, residual=None if activates else residual)
    if approximate is not None:
        y = d.gelu(y, approximate)
    elif activation != NONE:
        y = d.activation(y, activation)
    if activates and residual is not None:
        y = d.add(y, residual)
    y = y if gamma is None else d.layer_norm(y, gamma, beta, epsilon)
    return y if y_zero_point is None else (y, *d.quantize_rows(y, y_zero_point, y_smooth, y_tensor_scale))


def _product(name: str, doc: str, *terms: TensorSpec, attributes: tuple = (), by_pass: bool = False) -> OpSpec:
    """An op with `terms` beside x and weight; the optional ones go behind the others."""
    writes = QUANTIZED_Y if GAMMA in terms else QUANTIZED_BY_TENSOR if APPROXIMATE in attributes else ()
    restores = QUANTIZED_RESIDUAL if RESIDUAL in terms else ()
    every = (X, WEIGHT, *terms, ROW_COUNT, *QUANTIZED, *writes, *restores)
    inputs = tuple(sorted(every, key=lambda tensor: tensor.optional))

    def body(d, *values, **settings):
        named = {tensor.name: value for tensor, value in zip(inputs, values, strict=True) if not tensor.packed}
        return _body(d, **named, **settings)

    outputs = (Y_QUANTIZED, Y_SCALE) if writes else ()
    return OpSpec(name, doc, inputs, (Y,), attributes, body, by_pass, outputs)


PRODUCTS = (
    _product(
        "FusedGemmGeluLayerNorm",
        "LayerNorm(GELU(x Wᵀ + bias) + residual): the transform of a masked-language-model head (no residual there).",
        BIAS,
        replace(RESIDUAL, optional=True),
        GAMMA,
        BETA,
        attributes=(EPSILON, APPROXIMATE),
    ),
    _product(
        "FusedGemmLayerNorm",
        "LayerNorm(x Wᵀ + bias + residual): attention output and FFN output of a post-LN encoder layer.",
        BIAS,
        RESIDUAL,
        GAMMA,
        BETA,
        attributes=(EPSILON, ACTIVATION, Y_USE),
    ),
    _product("FusedGemmGelu", "GELU(x Wᵀ + bias): FFN input.", BIAS, attributes=(APPROXIMATE,)),
    _product(
        "FusedGemm",
        "x Wᵀ + bias: the packed Q, K and V product, whose kernel starts while the one before it ends.",
        replace(BIAS, optional=True),
        attributes=(ACTIVATION,),
        by_pass=True,
    ),
)
