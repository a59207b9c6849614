from dataclasses import replace

from ..spec import OpSpec, TensorSpec
from ._common import EPSILON, GAMMA, GAMMA_OFFSET, ROW_COUNT, Y


def body(d, x, gamma, row_count=None, *, epsilon, gamma_offset):
    return d.rms_norm(x, d.offset(gamma, gamma_offset), epsilon)


OP = OpSpec(
    name="FusedRMSNorm",
    doc="RMSNorm of rows as they are, such as embeddings that a pre-norm model also hands on to its first sum.",
    inputs=(TensorSpec("x", ("...", "N")), replace(GAMMA, doc="RMSNorm scale"), ROW_COUNT),
    outputs=(Y,),
    attributes=(EPSILON, GAMMA_OFFSET),
    body=body,
)
