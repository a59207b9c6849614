from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import CU_SEQLENS, TOKEN_INDEX


def body(d, mask, *, gaps):
    return d.pack_tokens(mask, gaps)


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
    attributes=(
        AttrSpec(
            "gaps",
            "string",
            "taken",
            choices=("taken", "refused"),
            by_pass=True,
            doc="whether a sequence may have padding between two of its tokens; GPUs do not look",
        ),
    ),
    body=body,
    by_pass=True,
)
