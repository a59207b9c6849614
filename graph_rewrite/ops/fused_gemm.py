from ..spec import OpSpec, TensorSpec
from ._common import ROW_COUNT, WEIGHT, X, Y


def body(d, x, weight, bias, row_count):
    return d.linear(x, weight, bias)


OP = OpSpec(
    name="FusedGemm",
    doc="x Wᵀ + bias: the packed Q, K and V product, whose kernel starts while the one before it ends.",
    inputs=(X, WEIGHT, TensorSpec("bias", ("N",), optional=True, constant=True), ROW_COUNT),
    outputs=(Y,),
    attributes=(),
    body=body,
    companion=True,
)
