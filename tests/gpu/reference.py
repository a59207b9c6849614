"""The ops in float64 on the GPU, with PyTorch: an oracle that is quick at sizes where NumPy is not.

Written apart from graph_rewrite/ops on purpose; tests/graph_rewrite/test_gpu_reference.py compares both.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def _wide(tensor):
    return None if tensor is None else tensor.double()


def _gelu(x, approximate):
    return F.gelu(x, approximate=approximate)


def _layer_norm(x, gamma, beta, epsilon):
    return F.layer_norm(x, x.shape[-1:], _wide(gamma), _wide(beta), epsilon)


def add_qkv_bias(qkv, bias, num_heads):
    batch, sequence, width = qkv.shape
    x = (_wide(qkv) + _wide(bias)).view(batch, sequence, 3, num_heads, width // 3 // num_heads)
    return tuple(x.permute(2, 0, 3, 1, 4))


def fused_attention(qkv, bias, mask, num_heads, scale):
    q, k, v = add_qkv_bias(qkv, bias, num_heads)
    score = q @ k.transpose(-1, -2) * scale
    if mask is not None:
        hidden = (mask == 0)[:, None, None, :]
        # Where every key is hidden, all count alike.
        score = torch.where(
            hidden.all(-1, keepdim=True), torch.zeros_like(score), score.masked_fill(hidden, -torch.inf)
        )
        score = score.nan_to_num(nan=0.0, neginf=-1e300)
    y = torch.softmax(score, -1) @ v
    return y.transpose(1, 2).reshape(qkv.shape[0], qkv.shape[1], -1)


def fused_attention_variant(
    qkv, bias, mask, cos, sin, q_gamma, k_gamma, distance_bias, positions,
    num_heads, kv_num_heads, scale, pairs, epsilon, window_left, window_right, bias_left, positions_left,
    hidden_queries, gamma_offset=0.0,
):  # fmt: skip
    batch, sequence = qkv.shape[:2]
    x = _wide(qkv) if bias is None else _wide(qkv) + _wide(bias)
    x = x.view(batch, sequence, num_heads + 2 * kv_num_heads, -1).permute(2, 0, 1, 3)  # [heads, B, S, D]
    q, k, v = x[:num_heads], x[num_heads:-kv_num_heads], x[-kv_num_heads:]
    if q_gamma is not None:
        gammas = (_wide(gamma) + gamma_offset for gamma in (q_gamma, k_gamma))
        q, k = (F.rms_norm(t, t.shape[-1:], gamma, epsilon) for t, gamma in zip((q, k), gammas, strict=True))
    if cos is not None:
        q, k = (_turned(t, torch.complex(_wide(cos), _wide(sin)), pairs) for t in (q, k))
    shared = torch.arange(num_heads, device=qkv.device) // (num_heads // kv_num_heads)
    score = torch.einsum("hbqd,hbkd->hbqk", q, k[shared])
    places = torch.arange(sequence, device=qkv.device)
    distance = places - places[:, None]
    if positions is not None:
        rows = (distance + positions_left).clamp(0, positions.shape[2] - 1)
        of_q, of_k = (x @ _wide(table)[:, None].mT for x, table in zip((q, k[shared]), positions, strict=True))
        score = score + of_q.gather(-1, rows.expand_as(score)) + of_k.gather(-1, rows.T.expand_as(score)).mT
    score = score * scale
    if distance_bias is not None:
        columns = (distance + bias_left).clamp(0, distance_bias.shape[2] - 1)
        score = score + _wide(distance_bias)[0, :, None].expand(-1, batch, -1)[:, :, columns]
    seen = torch.ones_like(score, dtype=torch.bool)
    seen &= distance >= -window_left if window_left >= 0 else True
    seen &= distance <= window_right if window_right >= 0 else True
    seen &= True if mask is None else (mask != 0)[:, None]
    seen &= (mask != 0)[:, :, None] if mask is not None and hidden_queries == "alike" else True
    alike = ~seen.any(-1, keepdim=True)
    score = torch.where(alike, 0.0, score.masked_fill(~(seen | alike), -torch.inf))
    return torch.einsum("hbqk,hbkd->bqhd", torch.softmax(score, -1), v[shared]).flatten(2)


def _turned(x, angles, pairs):
    """Pairs of columns as complex numbers, times those of the angles [S, pairs]."""
    count = angles.shape[-1]
    turned, rest = x[..., : 2 * count], x[..., 2 * count :]
    split = (2, count) if pairs == "halves" else (count, 2)
    a, b = turned.unflatten(-1, split).unbind(-2 if pairs == "halves" else -1)
    product = torch.complex(a, b) * angles
    both = torch.stack([product.real, product.imag], -2 if pairs == "halves" else -1).flatten(-2)
    return torch.cat([both, rest], -1)


def attention_spread(qkv, bias, num_heads, scale):
    """Of each result the mean distance of the values from it, under its probabilities: no mask."""
    q, k, v = add_qkv_bias(qkv, bias, num_heads)
    p = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
    y = p @ v
    spread = torch.einsum("bhqk,bhqkd->bhqd", p, (v.unsqueeze(-3) - y.unsqueeze(-2)).abs())
    return spread.transpose(1, 2).reshape(qkv.shape[0], qkv.shape[1], -1)


def fused_gemm(x, weight, bias, activation="none"):
    y = _wide(x) @ _wide(weight).T
    y = y if bias is None else y + _wide(bias)
    return y if activation == "none" else _gelu(y, {"gelu": "none", "gelu_tanh": "tanh"}[activation])


def fused_gemm_gelu(x, weight, bias, approximate):
    return _gelu(fused_gemm(x, weight, bias), approximate)


def fused_gemm_layer_norm(x, weight, bias, residual, gamma, beta, epsilon, activation="none", y_use="read"):
    return _layer_norm(fused_gemm(x, weight, bias, activation) + _wide(residual), gamma, beta, epsilon)


def fused_gemm_gelu_layer_norm(x, weight, bias, gamma, beta, residual, epsilon, approximate):
    y = fused_gemm_gelu(x, weight, bias, approximate)
    return _layer_norm(y if residual is None else y + _wide(residual), gamma, beta, epsilon)


def _activated(x, activation):
    if activation in ("silu", "quick_gelu"):
        return x * torch.sigmoid((1.702 if activation == "quick_gelu" else 1.0) * x)
    return _gelu(x, {"gelu": "none", "gelu_tanh": "tanh"}[activation])


def rotary_tables(tokens, frequencies, like, angle="product", scaling=1.0):
    places = torch.arange(tokens.shape[-1], dtype=torch.float32, device=frequencies.device)[:, None]
    frequencies = frequencies.float()
    angles = _wide(places * frequencies if angle == "product" else places / frequencies)
    return angles.cos() * scaling, angles.sin() * scaling


def fused_gemm_rotary(x, weight, cos, sin, bias, num_heads, kv_num_heads, pairs, places_in="tables", places=None):
    heads = fused_gemm(x, weight, bias).unflatten(-1, (num_heads + 2 * kv_num_heads, -1))  # [B, S, heads, D]
    turn = torch.complex(_wide(cos), _wide(sin))
    if places is not None:
        turn = turn[places.long() % len(turn) if places_in == "batch" else places.long()]
    turning, v = heads.split([num_heads + kv_num_heads, kv_num_heads], dim=2)
    turned = _turned(turning.movedim(2, 0), turn, pairs).movedim(0, 2)
    return torch.cat([turned, v], 2).flatten(-2)


def fused_gated_gemm(x, weight, bias, activation):
    gate, up = fused_gemm(x, weight, bias).chunk(2, -1)
    return _activated(gate, activation) * up


def fused_gemm_residual_norm(x, weight, residual, gamma, bias, beta, product_gamma, epsilon, norm, gamma_offset=0.0):
    product = fused_gemm(x, weight, bias)
    if product_gamma is not None:
        product = F.rms_norm(product, product.shape[-1:], _wide(product_gamma[0]) + gamma_offset, epsilon)
    total = product + _wide(residual)
    if norm == "rms":
        return F.rms_norm(total, total.shape[-1:], _wide(gamma) + gamma_offset, epsilon), total
    return _layer_norm(total, gamma, beta, epsilon), total


def fused_rms_norm(x, gamma, epsilon, gamma_offset=0.0):
    return F.rms_norm(_wide(x), x.shape[-1:], _wide(gamma) + gamma_offset, epsilon)


def embed_layer_norm(ids, word, position, gamma, beta, token_type_ids, token_type, position_ids, epsilon):
    y = _wide(word)[ids.long()]
    if token_type_ids is not None:
        y = y + _wide(token_type)[token_type_ids.long()]
    if position is not None:
        positions = torch.arange(ids.shape[1], device=ids.device) if position_ids is None else position_ids.long()
        y = y + _wide(position)[positions]
    return _layer_norm(y, gamma, beta, epsilon)
