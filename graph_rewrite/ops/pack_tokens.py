from ..spec import OpSpec, TensorSpec
from ._common import CU_SEQLENS, TOKEN_INDEX


def body(d, mask):
    return d.pack_tokens(mask)


OP = OpSpec(
    name="PackTokens",
    doc="Which tokens of a padded batch are real: their places in order, those of padding behind; where each sequence "
    "begins in the packed rows; how many rows there are.",
    inputs=(TensorSpec("mask", ("N", "S"), dtype="I", doc="0 is padding; a sequence may have gaps, or no token"),),
    outputs=(
        TensorSpec("token_index", ("N", "S"), dtype="C", doc=TOKEN_INDEX.doc),
        CU_SEQLENS,
        TensorSpec("row_count", (), dtype="C"),
    ),
    attributes=(),
    body=body,
    by_pass=True,
)
