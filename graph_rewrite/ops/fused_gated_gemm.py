from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import ROW_COUNT, X
from .activations import ACTIVATIONS


def body(d, x, weight, bias, row_count=None, *, activation):
    gate, up = d.halves(d.linear(x, weight, bias))
    return d.multiply(d.activation(gate, activation), up)


OP = OpSpec(
    name="FusedGatedGemm",
    doc="activation(x Gᵀ + g) * (x Uᵀ + u), G and g being the first half of weight and bias: SwiGLU, GeGLU.",
    inputs=(
        X,
        TensorSpec("weight", ("2*N", "K"), constant=True, doc="rows of the gate first, then those of the other factor"),
        TensorSpec("bias", ("2*N",), optional=True, constant=True),
        ROW_COUNT,
    ),
    outputs=(TensorSpec("y", ("...", "N")),),
    attributes=(AttrSpec("activation", "string", "silu", choices=tuple(ACTIVATIONS), doc="of the gate"),),
    body=body,
)
