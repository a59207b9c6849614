"""The op list. Order is that of fusion: an op that takes more of the graph comes before one that takes less."""

from ..spec import OpSpec
from . import (
    add_qkv_bias,
    attention_variant,
    embed_layer_norm,
    first_tokens,
    fused_attention,
    fused_gated_gemm,
    fused_gemm_residual_norm,
    fused_gemm_rotary,
    fused_rms_norm,
    pack_tokens,
    ragged_positions,
    rotary_tables,
    unpack_tokens,
)
from .products import PRODUCTS

OPS: dict[str, OpSpec] = {
    op.name: op
    for op in (
        embed_layer_norm.OP,
        fused_attention.OP,
        attention_variant.OP,
        add_qkv_bias.OP,
        *PRODUCTS,
        fused_gated_gemm.OP,
        fused_gemm_residual_norm.OP,
        fused_gemm_rotary.OP,
        fused_rms_norm.OP,
        rotary_tables.OP,
        pack_tokens.OP,
        unpack_tokens.OP,
        first_tokens.OP,
        ragged_positions.OP,
    )
}

# What only families beyond BERT have.
FAMILY_OPS: dict[str, OpSpec] = {
    module.OP.name: module.OP
    for module in (
        attention_variant,
        fused_gated_gemm,
        fused_gemm_residual_norm,
        fused_gemm_rotary,
        fused_rms_norm,
        rotary_tables,
    )
}

# What passes write to move packed rows; the others compute what a model computes.
PACKING_OPS = ("PackTokens", "UnpackTokens", "FirstTokens", "RaggedPositions")
MODEL_OPS = tuple(name for name in OPS if name not in PACKING_OPS)

__all__ = ["FAMILY_OPS", "MODEL_OPS", "OPS", "PACKING_OPS"]
