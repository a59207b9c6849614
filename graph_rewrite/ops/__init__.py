"""The op list. Order is that of fusion: an op that takes more of the graph comes before one that takes less."""

from ..spec import OpSpec
from . import (
    add_qkv_bias,
    embed_layer_norm,
    first_tokens,
    fused_attention,
    fused_gemm,
    fused_gemm_gelu,
    fused_gemm_gelu_layer_norm,
    fused_gemm_layer_norm,
    pack_tokens,
    ragged_positions,
    unpack_tokens,
)

OPS: dict[str, OpSpec] = {
    module.OP.name: module.OP
    for module in (
        embed_layer_norm,
        fused_attention,
        add_qkv_bias,
        fused_gemm_gelu_layer_norm,
        fused_gemm_layer_norm,
        fused_gemm_gelu,
        fused_gemm,
        pack_tokens,
        unpack_tokens,
        first_tokens,
        ragged_positions,
    )
}

# What passes write to move packed rows; the others compute what a model computes.
PACKING_OPS = ("PackTokens", "UnpackTokens", "FirstTokens", "RaggedPositions")
MODEL_OPS = tuple(name for name in OPS if name not in PACKING_OPS)

__all__ = ["MODEL_OPS", "OPS", "PACKING_OPS"]
