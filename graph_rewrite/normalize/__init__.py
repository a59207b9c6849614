"""From the exporters' dialects to one: each module finds its anchors and replaces a region by one dialect node.

A module offers `anchors(graph)`, the nodes to start from, and `rewrite(graph, node)`, which replaces a region or raises
NoMatch; and `OF_OP` where the reason in that is one for a single op. Order matters: linear layers build on products of
8-bit numbers, attention and embeddings on linear layers and LayerNorms already found.
"""

from . import attention, clutter, embedding, gate, gelu, layer_norm, linear, quantized, rms_norm

NORMALIZERS = (quantized, linear, gelu, layer_norm, rms_norm, gate, attention, embedding)

__all__ = ["NORMALIZERS", "clutter", "quantized"]
