from ..spec import OpSpec
from ._common import APPROXIMATE, BIAS, WEIGHT, X, Y


def body(d, x, weight, bias, *, approximate):
    return d.gelu(d.linear(x, weight, bias), approximate)


OP = OpSpec(
    name="FusedGemmGelu",
    doc="GELU(x Wᵀ + bias): FFN input.",
    inputs=(X, WEIGHT, BIAS),
    outputs=(Y,),
    attributes=(APPROXIMATE,),
    body=body,
)
