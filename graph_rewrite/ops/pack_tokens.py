from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import CU_SEQLENS, TOKEN_INDEX


def body(d, mask, *, gaps):
    return d.pack_tokens(mask, gaps)


OP = OpSpec(
    name="PackTokens",
    doc="Which tokens of a padded batch are real: their places in order, those of padding behind; where each sequence "
    "begins in the packed rows; how many rows there are.",
    inputs=(TensorSpec("mask", ("N", "S"), dtype="I", doc="0 is padding; a sequence may have holes, or no token"),),
    outputs=(
        TensorSpec("token_index", ("N", "S"), dtype="C", doc=TOKEN_INDEX.doc),
        CU_SEQLENS,
        TensorSpec("row_count", (), dtype="C"),
    ),
    attributes=(
        AttrSpec(
            "gaps",
            "int",
            1,
            minimum=0,
            maximum=1,
            by_pass=True,
            doc="0: an error where a sequence has padding between two of its tokens; GPUs do not look",
        ),
    ),
    body=body,
    by_pass=True,
)
