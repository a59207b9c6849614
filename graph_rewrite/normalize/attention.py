"""Multi-head self-attention: one packed QKV product, SplitHeads and ScaledDotProductAttention take its place."""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import ADD, LINEAR, SDPA, SPLIT_HEADS
from ..graph import FusionGraph
from ..nodes import DIALECT, NoMatch, node_name, producer
from ..proof import prover
from ..proof.rule import HIDING
from ..spec import DOMAIN, NODE_MARKERS
from . import heads, variant
from .heads import View, packed
from .scores import Core, core, is_core, merge

_LEAST_SCALE, _LARGEST_SCALE = 1e-4, 1e4


def anchors(graph: FusionGraph) -> list[gs.Node]:
    """Softmaxes between two products of activations, and Attention nodes."""
    return [node for node in graph.nodes("Softmax", "Attention") if is_core(node)]


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    try:
        _rewrite(graph, node)
    except NoMatch as miss:
        variant.rewrite(graph, node, miss)


def _rewrite(graph: FusionGraph, node: gs.Node) -> None:
    found = core(graph, node)
    views = {name: heads.trace(t) for name, t in zip("qkv", (found.q, found.k, found.v), strict=True)}
    linears = _projections(views)
    _check_ranks(views, found)
    num_heads = found.heads or heads.head_count(views["q"])
    columns = {name: _columns(name, views[name], found, num_heads) for name in "qkv"}
    _check_widths(linears, columns)
    root, after = merge(graph, found, views["v"].base, columns["v"].shape)
    if views["v"].scale != 1.0:
        raise NoMatch(views["v"].nodes[-1], "V is scaled", wanted="V as it is projected")
    mask = _mask(graph, found, linears["q"].outputs[0], num_heads)
    scale = _scale(found, views)
    interior = [*found.nodes, *after, *linears.values(), *(n for v in views.values() for n in v.nodes)]
    _replace(graph, root, linears, columns, mask, scale, interior)


def _scale(found: Core, views: dict[str, View]) -> float:
    """The product of all scales: each of a size that, moved past a product, takes nothing out of the type's range."""
    nodes = {"the scores": found.nodes[0], **{name: (views[name].nodes or found.nodes)[-1] for name in "qk"}}
    scales = {"the scores": found.scale, "q": views["q"].scale, "k": views["k"].scale}
    for name, scale in scales.items():
        if scale and not _LEAST_SCALE <= abs(scale) <= _LARGEST_SCALE:
            what = name if name == "the scores" else name.upper()
            raise NoMatch(nodes[name], f"scales {what} by {scale:g}", wanted=f"{_LEAST_SCALE:g} to {_LARGEST_SCALE:g}")
    return math.prod(scales.values())


def _projections(views: dict[str, View]) -> dict[str, gs.Node]:
    linears = {}
    for name, view in views.items():
        node = producer(view.base)
        if node is None or node.op != LINEAR or node.domain != DIALECT:
            what = node_name(node) if node is not None else f"input '{view.base.name}'"
            raise NoMatch(
                what,
                f"{name.upper()} comes from '{view.base.name}'",
                _rotation_hint(node),
                wanted="a projection with constant weight",
            )
        linears[name] = node
    x = linears["q"].inputs[0]
    for name, node in linears.items():
        if node.inputs[0] is not x:
            raise NoMatch(
                node,
                f"{name.upper()} projects '{node.inputs[0].name}'",
                "Q, K and V must project one tensor: cross-attention is not fused",
                wanted=f"'{x.name}', which Q projects",
            )
        if node.inputs[1].shape[1] != linears["q"].inputs[1].shape[1]:
            raise NoMatch(node, f"{name.upper()} multiplies by a matrix of another height", wanted="that of Q's")
    return linears


def _rotation_hint(node: gs.Node | None) -> str:
    """What to say of x cos + rotated(x) sin."""
    if node is None or node.op not in ("Add", "Concat", "RotaryEmbedding"):
        return ""
    products = [p for t in node.inputs if (p := producer(t)) is not None and p.op == "Mul"]
    rotary = node.op == "RotaryEmbedding" or (node.op == "Add" and len(products) == 2)
    return "rotary position embeddings between projection and product are not fused" if rotary else ""


def _check_ranks(views: dict[str, View], found: Core) -> None:
    """Products of tensors of three axes and of four broadcast: batch by head."""
    ranks = {name: heads.rank(view) for name, view in views.items()}
    if len(set(ranks.values())) > 1:
        axes = ", ".join(f"{name.upper()} {rank}" for name, rank in ranks.items())
        raise NoMatch(found.nodes[0], f"multiplies tensors of different numbers of axes: {axes}", wanted="the same")


def _columns(name: str, view: View, found: Core, num_heads: int) -> np.ndarray:
    transposed = name == "k" and found.k_transposed
    return heads.columns(view, num_heads, transposed, bool(found.heads), name.upper(), found.nodes[0])


def _check_widths(linears: dict[str, gs.Node], columns: dict[str, np.ndarray]) -> None:
    taken: set[tuple[int, int]] = set()
    for name, own in columns.items():
        if own.shape != columns["q"].shape:
            raise NoMatch(
                linears[name], f"{name.upper()} has heads x size {own.shape}", wanted=f"{columns['q'].shape}, as Q has"
            )
        mine = {(id(linears[name]), int(column)) for column in own.flat}
        if mine & taken:
            raise NoMatch(linears[name], f"{name.upper()} shares columns with another", wanted="three projections")
        taken |= mine


def _mask(graph: FusionGraph, found: Core, q: gs.Tensor, num_heads: int) -> gs.Tensor | None:
    if not found.masks:
        return None
    if len(found.masks) > 1:
        bias = next((m for m in found.masks if _by_head(m.tensor)), None)
        if bias is not None:
            what = f"adds '{bias.tensor.name}' {list(bias.tensor.shape)}, which differs by head, to the scores"
            raise NoMatch(bias.node, what, "relative position biases are not fused", wanted="a mask of keys alone")
        raise NoMatch(found.masks[-1].node, "adds a second mask or bias to the scores", wanted="one mask")
    (mask,) = found.masks
    if mask.kind != "added" and mask.hidden * mask.factor > HIDING:
        raise NoMatch(
            mask.node,
            f"scales a hidden score of {mask.hidden:g} by {mask.factor:g}, which hides nothing",
            wanted=f"{HIDING:g} or less",
        )
    scores, own = found.nodes[0].outputs[0].shape, mask.tensor.shape
    if mask.node.op != "Attention" and (scores is None or own is None or len(own) > len(scores)):
        raise NoMatch(mask.node, f"adds axes to the scores {scores}", wanted="scores [B, heads, S, S] throughout")
    return prover(graph).mask_source(mask.tensor, mask.kind, mask.factor, *q.shape[:2], num_heads)


def _by_head(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and len(tensor.shape) >= 3 and tensor.shape[-3] not in (1, None)


def _replace(graph, root, linears, columns, mask, scale, interior) -> None:
    output = root.outputs[0]
    num_heads, size = columns["q"].shape
    hidden_size = num_heads * size
    base = linears["q"].outputs[0]
    if output.dtype != base.dtype:
        raise NoMatch(root, f"the context is {output.dtype}", wanted=f"{base.dtype}, as Q's projection")
    batch, sequence = base.shape[:2]
    weight, bias = packed(linears, columns)
    stem = base.name
    qkv = graph.variable(f"{stem}_qkv", output.dtype, [batch, sequence, 3 * hidden_size])
    biased = graph.variable(f"{stem}_qkv_bias", output.dtype, qkv.shape)
    parts = [
        graph.variable(f"{stem}_{name}_by_head", output.dtype, [batch, num_heads, sequence, size]) for name in "qkv"
    ]
    x = linears["q"].inputs[0]
    # One of ours although nothing is fused into it: another kernel here would wait for the one before it to end.
    packed_weight = graph.constant(f"{stem}_qkv_weight", weight)
    packed_bias = graph.constant(f"{stem}_qkv_bias_values", bias)
    inputs = [*parts, *([mask] if mask is not None else [])]
    with graph.transaction():
        graph.add_node("FusedGemm", [x, packed_weight], [qkv], DOMAIN, **NODE_MARKERS)
        graph.add_node(ADD, [qkv, packed_bias], [biased])
        graph.add_node(SPLIT_HEADS, [biased], parts, DIALECT, num_heads=num_heads)
        graph.replace(root, SDPA, inputs, interior, donors=[x], scale=float(scale))
