from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import CU_SEQLENS, GAMMA_OFFSET, QUANTIZED_BY_TENSOR, TOKEN_INDEX, Y_QUANTIZED, Y_SCALE

PACKED = "(num_heads+2*kv_num_heads)*D"
AXES = ("B", "S", "num_heads*D")


def body(
    d,
    qkv,
    bias,
    mask,
    cos,
    sin,
    q_gamma,
    k_gamma,
    distance_bias,
    positions,
    cu_seqlens,
    token_index,
    y_zero_point,
    y_smooth,
    y_tensor_scale,
    *,
    num_heads,
    kv_num_heads,
    scale,
    pairs,
    epsilon,
    window_left,
    window_right,
    bias_left,
    positions_left,
    hidden_queries,
    gamma_offset,
):
    x = qkv if bias is None else d.add(qkv, bias)
    if cu_seqlens is not None:
        x, mask = d.pad_sequences(x, cu_seqlens, token_index)
        cos, sin = (None if table is None else d.first_rows(table, x) for table in (cos, sin))
    elif mask is not None:
        mask = d.of_one_shape(mask, qkv)
    q, k, v = d.split_grouped_heads(x, num_heads, kv_num_heads)
    if q_gamma is not None:
        q_gamma, k_gamma = d.offset(q_gamma, gamma_offset), d.offset(k_gamma, gamma_offset)
        q, k = d.rms_norm(q, q_gamma, epsilon), d.rms_norm(k, k_gamma, epsilon)
    if cos is not None:
        q, k = d.rotary(q, cos, sin, pairs), d.rotary(k, cos, sin, pairs)
    by_distance = (distance_bias, bias_left, positions, positions_left)
    y = d.attention_variant(q, k, v, mask, *by_distance, scale, window_left, window_right, hidden_queries)
    y = y if cu_seqlens is None else d.join_sequences(y, mask, qkv)
    return y if y_zero_point is None else (y, *d.quantize_rows(y, y_zero_point, y_smooth, y_tensor_scale))


OP = OpSpec(
    name="FusedAttentionVariant",
    doc="softmax(QKᵀ scale + bias by head and distance) V over the keys in a window that the mask shows; Q and K are "
    "normalised by head (RMS) and rotated by their place; several heads of Q share one of K and V. With positions each "
    "key of a query also is Q times the first table's row of their distance, and K times the second's (disentangled "
    "attention). Heads are merged. A query that no key is visible to attends to all alike.",
    inputs=(
        TensorSpec("qkv", ("B", "S", PACKED), doc="x times the packed weight: heads of Q, of K and of V side by side"),
        TensorSpec("bias", (PACKED,), optional=True, constant=True, doc="the projections' biases, packed as qkv is"),
        TensorSpec("mask", ("B", "S"), dtype="I", optional=True, doc="the model's attention mask: 0 hides a key"),
        TensorSpec(
            "cos",
            ("C", "R"),
            optional=True,
            needs="sin",
            doc="of each place's angles, for 2 R columns of a head; C is S, of packed rows no less than any length",
        ),
        TensorSpec("sin", ("C", "R"), optional=True, needs="cos"),
        TensorSpec("q_gamma", ("D",), optional=True, constant=True, needs="k_gamma", doc="RMS norm of each head of Q"),
        TensorSpec("k_gamma", ("D",), optional=True, constant=True, needs="q_gamma"),
        TensorSpec(
            "distance_bias",
            # Of three axes, so that ranks tell it from the mask.
            ("J", "G", "L"),
            optional=True,
            constant=True,
            doc="added to logits by head (G is num_heads, or 1; J is 1) and by k - q + bias_left, cut off at both ends",
        ),
        TensorSpec(
            "positions",
            ("P", "num_heads", "M", "D"),
            optional=True,
            constant=True,
            doc="by head and by k - q + positions_left, cut off at both ends: a vector that Q is multiplied with, and "
            "one for K, whose products are added to QKᵀ; P is 2",
        ),
        # With it there is no mask, and places are counted from each sequence's first row: by rows, or where padding may
        # have been between them by what token_index says. Behind cu_seqlens, so that ranks tell it from a mask.
        replace(CU_SEQLENS, optional=True, packed=True),
        replace(TOKEN_INDEX, optional=True, packed=True, needs="cu_seqlens"),
        *(
            replace(tensor, axes=("I", AXES[-1])) if tensor.name == "y_smooth" else tensor
            for tensor in QUANTIZED_BY_TENSOR
        ),
    ),
    outputs=(TensorSpec("y", AXES),),
    quantized_outputs=(replace(Y_QUANTIZED, axes=AXES), replace(Y_SCALE, axes=AXES[:2])),
    attributes=(
        AttrSpec("num_heads", "int", minimum=1, maximum=4096, doc="heads of Q"),
        AttrSpec("kv_num_heads", "int", minimum=1, maximum=4096, doc="heads of K and of V; divides num_heads"),
        AttrSpec("scale", "float", minimum=0.0, maximum=1e4, doc="usually 1 / sqrt(size of a head)"),
        AttrSpec(
            "pairs", "string", "halves", choices=("halves", "neighbours"), doc="columns i and i + R, or 2i and 2i + 1"
        ),
        AttrSpec("epsilon", "float", 1e-6, minimum=0.0, maximum=1.0, doc="of the norms of Q and K"),
        AttrSpec("window_left", "int", -1, minimum=-1, doc="keys farther before the query are hidden; -1: none"),
        AttrSpec("window_right", "int", -1, minimum=-1, doc="keys farther behind it are hidden; 0: causal; -1: none"),
        AttrSpec("bias_left", "int", 0, minimum=0, doc="distance of the first column of distance_bias, negated"),
        AttrSpec("positions_left", "int", 0, minimum=0, doc="that of the first vectors of positions"),
        AttrSpec(
            "hidden_queries",
            "string",
            "as_others",
            choices=("as_others", "alike"),
            doc="what a token that the mask hides attends to: the visible keys, or to all keys alike",
        ),
        GAMMA_OFFSET,
    ),
    body=body,
)
