from ..spec import OpSpec, TensorSpec
from ._common import CU_SEQLENS


def body(d, x, cu_seqlens):
    return d.first_tokens(x, cu_seqlens)


OP = OpSpec(
    name="FirstTokens",
    doc="The first row of every packed sequence, zeros for a sequence without a token: pooling by the first token.",
    inputs=(TensorSpec("x", ("B", "S", "H")), CU_SEQLENS),
    outputs=(TensorSpec("y", ("N", "H")),),
    attributes=(),
    body=body,
    by_pass=True,
)
