"""The ops as a careful PyTorch user writes them for speed: what ours are compared with. `torch` is the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bertfuse.graph_rewrite.ops.activations import GELUS, NONE


def _heads(torch: Any, qkv: Any, bias: Any, num_heads: int) -> Any:
    batch, sequence, width = qkv.shape
    return (qkv + bias).view(batch, sequence, 3, num_heads, width // 3 // num_heads).permute(2, 0, 3, 1, 4)


def _add_qkv_bias(torch: Any, qkv: Any, bias: Any, num_heads: int) -> Any:
    return _heads(torch, qkv, bias, num_heads).contiguous()


def _fused_attention(torch: Any, qkv: Any, bias: Any, mask: Any, num_heads: int, scale: float) -> Any:
    q, k, v = _heads(torch, qkv, bias, num_heads)
    seen = None if mask is None else (mask != 0)[:, None, None, :]
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    return y.transpose(1, 2).reshape(qkv.shape[0], qkv.shape[1], -1)


def _fused_attention_variant(
    torch: Any,
    qkv: Any,
    bias: Any,
    mask: Any,
    cos: Any,
    sin: Any,
    q_gamma: Any,
    k_gamma: Any,
    distance_bias: Any,
    positions: Any,
    num_heads: int,
    kv_num_heads: int,
    scale: float,
    pairs: str,
    epsilon: float,
    window_left: int,
    window_right: int,
    bias_left: int,
    positions_left: int,
    hidden_queries: str,
    gamma_offset: float,
) -> Any:
    batch, sequence, width = qkv.shape
    qkv = qkv if bias is None else qkv + bias
    heads = qkv.view(batch, sequence, -1, width // (num_heads + 2 * kv_num_heads)).transpose(1, 2)
    q, k, v = heads.split([num_heads, kv_num_heads, kv_num_heads], dim=1)
    if q_gamma is not None:
        q, k = (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * (gamma + gamma_offset)
            for x, gamma in ((q, q_gamma), (k, k_gamma))
        )
    if cos is not None:
        q, k = (_rotary(torch, x, cos, sin, pairs) for x in (q, k))
    k, v = (x.repeat_interleave(num_heads // kv_num_heads, dim=1) for x in (k, v))
    place = torch.arange(sequence, device=qkv.device)
    distance = place[None, :] - place[:, None]
    added = torch.zeros(1, 1, sequence, sequence, device=qkv.device, dtype=qkv.dtype)
    if distance_bias is not None:
        added = distance_bias[0][:, (distance + bias_left).clamp(0, distance_bias.shape[2] - 1)][None]
    if positions is not None:
        row = (distance + positions_left).clamp(0, positions.shape[2] - 1)
        of_q, of_k = (x @ table.transpose(-1, -2) for x, table in zip((q, k), positions, strict=True))
        by_position = of_q.gather(-1, row.expand_as(distance[None, None].expand(*of_q.shape[:2], -1, -1)))
        by_position = by_position + of_k.gather(-1, row.T.expand_as(by_position)).transpose(-1, -2)
        added = added + by_position * scale
    hidden = (distance < -window_left) & (window_left >= 0) | (distance > window_right) & (window_right >= 0)
    hidden = hidden[None, None]
    if mask is not None:
        hidden = hidden | (mask == 0)[:, None, None, :]
        hidden = hidden | (mask == 0)[:, None, :, None] if hidden_queries == "alike" else hidden
    # Finite, so that a query that no key is visible to attends to all alike.
    least = torch.finfo(torch.float16 if qkv.dtype == torch.float16 else torch.float32).min
    added = torch.where(hidden, torch.full_like(added[:1, :1, :1, :1], least), added)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
    return y.transpose(1, 2).reshape(batch, sequence, -1)


def _rotary(torch: Any, x: Any, cos: Any, sin: Any, pairs: str) -> Any:
    size = cos.shape[-1]
    rest = x[..., 2 * size :]
    if pairs == "neighbours":
        a, b = x[..., : 2 * size].unflatten(-1, (size, 2)).unbind(-1)
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = x[..., :size], x[..., size : 2 * size]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned, rest], -1)


_GELUS = {name: approximate for approximate, name in GELUS.items()}


def _activated(torch: Any, y: Any, activation: str) -> Any:
    if activation in _GELUS:
        return torch.nn.functional.gelu(y, approximate=_GELUS[activation])
    if activation == "silu":
        return torch.nn.functional.silu(y)
    return y if activation == NONE else y * (1.702 * y).sigmoid()


def _fused_gemm(torch: Any, x: Any, weight: Any, bias: Any, activation: str = NONE) -> Any:
    return _activated(torch, torch.nn.functional.linear(x, weight, bias), activation)


def _fused_gated_gemm(torch: Any, x: Any, weight: Any, bias: Any, activation: str) -> Any:
    gate, up = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
    return _activated(torch, gate, activation) * up


def _fused_gemm_residual_norm(
    torch: Any,
    x: Any,
    weight: Any,
    residual: Any,
    gamma: Any,
    bias: Any,
    beta: Any,
    product_gamma: Any,
    epsilon: float,
    norm: str,
    gamma_offset: float,
) -> Any:
    product = torch.nn.functional.linear(x, weight, bias)
    if product_gamma is not None:
        product = torch.nn.functional.rms_norm(product, gamma.shape, product_gamma[0] + gamma_offset, epsilon)
    total = product + residual
    if norm == "rms":
        return torch.nn.functional.rms_norm(total, gamma.shape, gamma + gamma_offset, epsilon), total
    return torch.nn.functional.layer_norm(total, gamma.shape, gamma, beta, epsilon), total


def _fused_gemm_rotary(
    torch: Any,
    x: Any,
    weight: Any,
    cos: Any,
    sin: Any,
    bias: Any,
    num_heads: int,
    kv_num_heads: int,
    pairs: str,
    places_in: str,
) -> Any:
    y = torch.nn.functional.linear(x, weight, bias)
    size = y.shape[-1] // (num_heads + 2 * kv_num_heads)
    heads = y.unflatten(-1, (-1, size)).transpose(1, 2)
    turning, v = heads.split([num_heads + kv_num_heads, kv_num_heads], dim=1)
    return torch.cat([_rotary(torch, turning, cos, sin, pairs), v], 1).transpose(1, 2).flatten(-2)


def _fused_rms_norm(torch: Any, x: Any, gamma: Any, epsilon: float, gamma_offset: float) -> Any:
    return torch.nn.functional.rms_norm(x, gamma.shape, gamma + gamma_offset, epsilon)


def _rotary_tables(torch: Any, tokens: Any, frequencies: Any, like: Any, angle: str, scaling: float) -> Any:
    wide = frequencies.float()
    places = torch.arange(tokens.shape[-1], device=wide.device, dtype=wide.dtype)[:, None]
    angles = places * wide if angle == "product" else places / wide
    if like.dtype == torch.float64:  # a reference: of the same angles
        angles = angles.double()
    return (angles.cos() * scaling).to(like.dtype), (angles.sin() * scaling).to(like.dtype)


def _fused_gemm_gelu(torch: Any, x: Any, weight: Any, bias: Any, approximate: str) -> Any:
    return _fused_gemm(torch, x, weight, bias, GELUS[approximate])


def _fused_gemm_layer_norm(
    torch: Any,
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    gamma: Any,
    beta: Any,
    epsilon: float,
    activation: str = NONE,
    y_use: str = "read",
) -> Any:
    y = _fused_gemm(torch, x, weight, bias, activation) + residual
    return torch.nn.functional.layer_norm(y, gamma.shape, gamma, beta, epsilon)


def _fused_gemm_gelu_layer_norm(
    torch: Any, x: Any, weight: Any, bias: Any, gamma: Any, beta: Any, residual: Any, epsilon: float, approximate: str
) -> Any:
    y = _fused_gemm_gelu(torch, x, weight, bias, approximate)
    return torch.nn.functional.layer_norm(y if residual is None else y + residual, gamma.shape, gamma, beta, epsilon)


def _embed_layer_norm(
    torch: Any,
    ids: Any,
    word: Any,
    position: Any,
    gamma: Any,
    beta: Any,
    types: Any,
    type_table: Any,
    position_ids: Any,
    epsilon: float,
) -> Any:
    embedding = torch.nn.functional.embedding
    ids = torch.where(ids < 0, ids + word.shape[0], ids)
    y = embedding(ids, word)
    if types is not None:
        y = y + embedding(torch.where(types < 0, types + type_table.shape[0], types), type_table)
    if position is None:
        pass
    elif position_ids is None:
        y = y + position[: ids.shape[1]]
    else:
        y = y + embedding(torch.where(position_ids < 0, position_ids + position.shape[0], position_ids), position)
    return torch.nn.functional.layer_norm(y, gamma.shape, gamma, beta, epsilon)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "AddQKVBias": _add_qkv_bias,
    "EmbedLayerNorm": _embed_layer_norm,
    "FusedAttention": _fused_attention,
    "FusedAttentionVariant": _fused_attention_variant,
    "FusedGatedGemm": _fused_gated_gemm,
    "FusedGemm": _fused_gemm,
    "FusedGemmGelu": _fused_gemm_gelu,
    "FusedGemmGeluLayerNorm": _fused_gemm_gelu_layer_norm,
    "FusedGemmLayerNorm": _fused_gemm_layer_norm,
    "FusedGemmResidualNorm": _fused_gemm_residual_norm,
    "FusedGemmRotary": _fused_gemm_rotary,
    "FusedRMSNorm": _fused_rms_norm,
    "RotaryTables": _rotary_tables,
}
