from ..spec import OpSpec, TensorSpec
from ._common import CU_SEQLENS


def body(d, tokens, cu_seqlens, max_seqlen):
    return d.ragged_positions(tokens, cu_seqlens, max_seqlen)


OP = OpSpec(
    name="RaggedPositions",
    doc="For each of T tokens laid out one sequence after the other: which sequence it is of, and its place in it. "
    "cu_seqlens must begin with 0, ascend (equal neighbours: a sequence without a token) and end with T.",
    inputs=(
        TensorSpec("tokens", ("B", "S"), dtype="I", doc="[1, T]; only its shape is read"),
        CU_SEQLENS,
        TensorSpec("max_seqlen", ("M",), dtype="C", doc="as many elements as the longest sequence has tokens, or more"),
    ),
    outputs=(TensorSpec("sequence_ids", ("B", "S"), dtype="I"), TensorSpec("position_ids", ("B", "S"), dtype="I")),
    attributes=(),
    body=body,
    by_pass=True,
)
