"""The small dialect in which op bodies are written, and what can be done with a body.

A body is a Python function of a dialect object. Each module here is one such object:

    reference.py   computes with NumPy in float64                  -> the test oracle
    function.py    emits standard ONNX nodes                       -> the model-local function, unfused leftovers
    pattern.py     records which dialect op was applied to what    -> the pattern that fusion looks for

All of them offer the same eight methods:

    linear(x[..., K], weight[N, K], bias[N]) -> [..., N]           x Wᵀ + bias
    add(a, b)                                                      element-wise, broadcasting
    gelu(x, approximate)                                           "none": by erf; "tanh": by tanh
    layer_norm(x[..., N], gamma[N], beta[N], epsilon)              over the last axis, biased variance
    embedding(table[V, H], ids[B, S]) -> [B, S, H]                 rows of the table
    positions(ids[B, S]) -> [1, S]                                 0, 1, ..., S-1
    split_heads(qkv[B, S, 3H], num_heads) -> 3 x [B, heads, S, D]  D = H / heads
    attention(q, k, v, mask[B, S] or None, scale) -> [B, S, H]     softmax(q kᵀ scale + mask) v, heads merged
"""
