from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import CU_SEQLENS, NUM_HEADS, QKV, QKV_BIAS, QUANTIZED_BY_TENSOR, Y_QUANTIZED, Y_SCALE

AXES = ("B", "S", "H")


def body(d, qkv, bias, mask, cu_seqlens, y_zero_point, y_smooth, y_tensor_scale, *, num_heads, scale):
    qkv = d.add(qkv, bias)
    if cu_seqlens is None:
        y = d.attention(*d.split_heads(qkv, num_heads, mask), mask, scale)
    else:
        padded, real = d.pad_sequences(qkv, cu_seqlens)
        y = d.join_sequences(d.attention(*d.split_heads(padded, num_heads), real, scale), real, qkv)
    return y if y_zero_point is None else (y, *d.quantize_rows(y, y_zero_point, y_smooth, y_tensor_scale))


OP = OpSpec(
    name="FusedAttention",
    doc="AddQKVBias, softmax(QKᵀ scale + mask) V, heads merged. A row whose mask hides every key attends to all alike.",
    inputs=(
        QKV,
        QKV_BIAS,
        TensorSpec("mask", ("B", "S"), dtype="I", optional=True, doc="the model's attention mask: 0 hides a key"),
        # With it sequence i is the rows from cu_seqlens[i] to cu_seqlens[i + 1] of the flattened [B, S], and no mask.
        replace(CU_SEQLENS, optional=True, packed=True),
        *(replace(tensor, axes=("I", "H")) if tensor.name == "y_smooth" else tensor for tensor in QUANTIZED_BY_TENSOR),
    ),
    outputs=(TensorSpec("y", AXES),),
    quantized_outputs=(replace(Y_QUANTIZED, axes=AXES), replace(Y_SCALE, axes=AXES[:2])),
    attributes=(NUM_HEADS, AttrSpec("scale", "float", minimum=0.0, maximum=1e4, doc="usually 1 / sqrt(H / num_heads)")),
    body=body,
)
