from ..spec import OpSpec, TensorSpec
from ._common import TOKEN_INDEX


def body(d, x, mask, token_index, row_count):
    return d.unpack_tokens(x, mask, token_index, row_count)


OP = OpSpec(
    name="UnpackTokens",
    doc="Packed rows back to their places in the padded batch, zeros on padding.",
    inputs=(
        TensorSpec("x", ("P", "Q", "H"), doc="[B, S, H], or [1, T, H] of a ragged batch"),
        TensorSpec("mask", ("B", "S"), dtype="I", doc="only its shape is read"),
        TOKEN_INDEX,
        TensorSpec("row_count", (), dtype="C"),
    ),
    outputs=(TensorSpec("y", ("B", "S", "H")),),
    attributes=(),
    body=body,
    by_pass=True,
)
