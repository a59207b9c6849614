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

__all__ = ["OPS"]
