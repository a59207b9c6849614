"""The small dialect in which op bodies are written, and what can be done with a body.

A body is a Python function of a dialect object. Each module here is one such object:

    reference.py     computes with NumPy in float64                  -> the test oracle
    standard_ops.py  emits standard ONNX nodes                       -> the model-local function, unfused leftovers
    pattern.py       records which dialect op was applied to what    -> the pattern that fusion looks for

All of them offer the same methods, those that fusion looks for

    linear(x[..., K], weight[N, K], bias[N], residual[..., N])     x Wᵀ + bias + residual
    add(a, b)                                                      element-wise, broadcasting
    gelu(x, approximate)                                           "none": by erf; "tanh": by tanh
    layer_norm(x[..., N], gamma[N], beta[N], epsilon)              over the last axis, biased variance
    embedding(table[V, H], ids[B, S]) -> [B, S, H]                 rows of the table
    positions(ids[B, S]) -> [1, S]                                 0, 1, ..., S-1
    split_heads(qkv[B, S, 3H], num_heads) -> 3 x [B, heads, S, D]  D = H / heads; of a mask [B, S] given as well other
                                                                   sizes end the run
    attention(q, k, v, mask[B, S] or None, scale) -> [B, S, H]     softmax(q kᵀ scale + mask) v, heads merged
    of_one_shape(mask[B, S], x[B, S, ...]) -> [B, S]               the mask; of other sizes it ends the run

those of families beyond BERT, which are looked for where their ops are written (variants.py)

    rms_norm(x[..., N], gamma[N], epsilon)                         x over the root of its mean square, times gamma
    halves(x[..., 2N]) -> 2 x [..., N]
    activation(x, kind)                                            a name of ops/activations.py
    multiply(a, b)
    split_grouped_heads(qkv[B, S, (G + 2 J) D], G, J)              [B, G, S, D], 2 x [B, J, S, D]
    rotary(x[B, G, S, D], cos[S, R], sin[S, R], pairs)             the first 2R columns rotated in pairs; or tables of
                                                                   each batch, [B, 1, S, R]
    only_row(table[1, N]) -> [N]
    offset(x, number)                                              with a number added to each element
    rows_at(table[C, R], places[B, S]) -> [B, 1, S, R]
    rotary_tables(tokens[..., C], frequencies[R], like, angle, scaling) -> 2 x [C, R]
                                                                   cosine and sine of place times ("product") or over
                                                                   ("quotient") frequency, rounded to float32; times
                                                                   scaling
    join_heads(q[B, G, S, D], k[B, J, S, D], v[B, J, S, D])        [B, S, (G + 2 J) D]
    attention_variant(q, k, v, mask, bias[1, G or 1, L], bias_left, positions[2, G, M, D], positions_left, scale, left,
                      right, hidden)                               attention in a window, with a bias by distance, and
                                                                   Q and K multiplied with vectors by distance

and those of packed rows, which no model has before a pass put them there. Packed rows are [B, S, ...] with the real
ones first (reference.py, kernels), or [1, T, ...] with the T real ones alone (standard_ops.py):

    pack_tokens(mask[N, S]) -> token_index[N, S], cu_seqlens[N + 1], row_count
    take_tokens(values[B, S], token_index)                         what of each token is in `values`
    columns_of(places, table[C, R])                                places of a batch of texts of C tokens, in their text
    places(token_index, ids[B, S])                                 each token's place in its sequence, with padding
    unpack_tokens(x, mask[B, S], token_index, row_count)           [B, S, H], zeros on padding
    first_tokens(x, cu_seqlens[N + 1]) -> [N, H]                   zeros where a sequence has no token
    pad_sequences(x, cu_seqlens[N + 1], token_index) -> [N, longest, K], mask
                                                                   each sequence in a row of its own, its tokens as
                                                                   far apart as token_index says; None: side by side
    first_rows(table[C, R], x[N, longest, K])                      the first `longest` ones
    join_sequences(y[N, longest, H], mask, x)                      and back, with as many rows as `x`
    ragged_positions(tokens[1, T], cu_seqlens, max_seqlen[M])      2 x [1, T]: which sequence, which place in it

and those of quantised weights, which a pass gives a fused model (quantized.py has the rule):

    quantized_linear(x[..., K], weight[N, K], weight_scale[N], x_smooth[1, K], x_scale, bias, residual, x_zero)
    linear_of_quantized(x[..., K], row_scale[...], weight[N, K], weight_scale[N], bias, residual, compensation[N])
                                                                   the same of an x in 8 bits
    quantize_rows(y[..., N], zero_point, smooth[1, N], scale)      y in 8 bits of the zero point's type, scales [...]
    quantized_embedding(table[V, H], scale[V], ids[B, S]) -> [B, S, H]
"""
