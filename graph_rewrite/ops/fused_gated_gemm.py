from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import QUANTIZED_BY_TENSOR, ROW_COUNT, WEIGHT, WEIGHT_SCALE, X_COMPENSATION, Y_QUANTIZED, Y_SCALE, X
from .activations import ACTIVATIONS
from .products import QUANTIZED, linear

ROWS = ("2*N",)  # of the weight, and what is there for each of them
INPUTS = (
    X,
    replace(WEIGHT, axes=(*ROWS, "K"), doc="rows of the gate first, then those of the other factor"),
    TensorSpec("bias", ROWS, optional=True, constant=True),
    ROW_COUNT,
    *(replace(tensor, axes=ROWS) if tensor in (WEIGHT_SCALE, X_COMPENSATION) else tensor for tensor in QUANTIZED),
    *QUANTIZED_BY_TENSOR,
)


def body(d, *values, activation):
    named = {tensor.name: value for tensor, value in zip(INPUTS, values, strict=True) if not tensor.packed}
    writes = [named.pop(tensor.name) for tensor in QUANTIZED_BY_TENSOR]
    gate, up = d.halves(linear(d, **named))
    y = d.multiply(d.activation(gate, activation), up)
    return y if writes[0] is None else (y, *d.quantize_rows(y, *writes))


OP = OpSpec(
    name="FusedGatedGemm",
    doc="activation(x Gᵀ + g) * (x Uᵀ + u), G and g being the first half of weight and bias: SwiGLU, GeGLU.",
    inputs=INPUTS,
    outputs=(TensorSpec("y", ("...", "N")),),
    attributes=(AttrSpec("activation", "string", "silu", choices=tuple(ACTIVATIONS), doc="of the gate"),),
    body=body,
    quantized_outputs=(Y_QUANTIZED, Y_SCALE),
)
