from ..spec import OpSpec
from ._common import APPROXIMATE, BIAS, ROW_COUNT, WEIGHT, X, Y


def body(d, x, weight, bias, row_count, *, approximate):
    return d.gelu(d.linear(x, weight, bias), approximate)


OP = OpSpec(
    name="FusedGemmGelu",
    doc="GELU(x Wᵀ + bias): FFN input.",
    inputs=(X, WEIGHT, BIAS, ROW_COUNT),
    outputs=(Y,),
    attributes=(APPROXIMATE,),
    body=body,
)
