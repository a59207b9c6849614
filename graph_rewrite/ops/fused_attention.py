from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import CU_SEQLENS, NUM_HEADS, QKV, QKV_BIAS


def body(d, qkv, bias, mask, cu_seqlens, *, num_heads, scale):
    qkv = d.add(qkv, bias)
    if cu_seqlens is None:
        return d.attention(*d.split_heads(qkv, num_heads, mask), mask, scale)
    padded, real = d.pad_sequences(qkv, cu_seqlens)
    return d.join_sequences(d.attention(*d.split_heads(padded, num_heads), real, scale), real, qkv)


OP = OpSpec(
    name="FusedAttention",
    doc="AddQKVBias, softmax(QKᵀ scale + mask) V, heads merged. A row whose mask hides every key attends to all alike.",
    inputs=(
        QKV,
        QKV_BIAS,
        TensorSpec("mask", ("B", "S"), dtype="I", optional=True, doc="the model's attention mask: 0 hides a key"),
        # With it sequence i is the rows from cu_seqlens[i] to cu_seqlens[i + 1] of the flattened [B, S], and no mask.
        replace(CU_SEQLENS, optional=True, packed=True),
    ),
    outputs=(TensorSpec("y", ("B", "S", "H")),),
    attributes=(NUM_HEADS, AttrSpec("scale", "float", minimum=0.0, maximum=1e4, doc="usually 1 / sqrt(H / num_heads)")),
    body=body,
)
