"""Multi-head self-attention, found at its Softmax: one packed QKV product, SplitHeads and Attention take its place."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import ADD, ATTENTION, LINEAR, SPLIT_HEADS
from ..graph import FusionGraph, as_weight
from ..nodes import DIALECT, NoMatch, node_name, producer, scalar
from ..weights import concatenated
from . import heads
from .heads import BATCH, HEADS, SEQUENCE, SIZE, View

_MAX_STEPS = 8


@dataclass
class _ScoreMask:
    """What hides keys: a tensor that is added, or (`hidden` given) a condition that keeps a score or puts `hidden`."""

    tensor: gs.Tensor
    hidden: float | None = None
    factor: float = 1.0  # by which everything is multiplied afterwards


@dataclass
class _Scores:
    """The way from q kᵀ to the Softmax: its nodes, the scale, and what is added or selected by."""

    product: gs.Node
    nodes: list[gs.Node] = field(default_factory=list)
    scale: float = 1.0
    masks: list[_ScoreMask] = field(default_factory=list)


def anchors(graph: FusionGraph) -> list[gs.Node]:
    """Softmaxes between two products of activations: q kᵀ before, times v after."""
    return [node for node in graph.nodes("Softmax") if is_attention(node)]


def is_attention(softmax: gs.Node) -> bool:
    """Whether a product of two activations leads to the Softmax."""
    try:
        return _scores(softmax.inputs[0], _MAX_STEPS) is not None
    except NoMatch:
        return True  # it does, through something that `rewrite` will refuse with a reason


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    rank = len(node.inputs[0].shape) if node.inputs[0].shape is not None else None
    if node.attrs.get("axis", -1) not in (-1, None if rank is None else rank - 1):
        raise NoMatch(node, f"Softmax over axis {node.attrs['axis']}", wanted="the last axis")
    scores = _scores(node.inputs[0], _MAX_STEPS)
    context, v_operand, after = _context(graph, node)
    views = {name: heads.trace(t) for name, t in zip("qkv", (*scores.product.inputs, v_operand), strict=True)}
    x, linears = _projections(views)
    sizes = _sizes(views["q"], scores.product.inputs[0])
    _check_layouts(views, sizes, scores.product)
    root, after = _merge(graph, context, after, sizes)
    scale = scores.scale * views["q"].scale * views["k"].scale
    if views["v"].scale != 1.0:
        raise NoMatch(views["v"].nodes[-1], "V is scaled", wanted="V as it is projected")
    mask = _mask(graph, scores)
    interior = [
        scores.product,
        *scores.nodes,
        node,
        *after,
        *linears.values(),
        *(n for v in views.values() for n in v.nodes),
    ]
    _replace(graph, root, x, list(linears.values()), mask, int(sizes[HEADS]), scale, interior)


def _scores(tensor: gs.Tensor, steps: int) -> _Scores | None:
    """Walk up from the Softmax to the product of two activations, through scalings and masks."""
    node = producer(tensor)
    if node is None or steps == 0:
        return None
    if node.op == "MatMul":
        return None if any(isinstance(t, gs.Constant) for t in node.inputs) else _Scores(node)
    if (step := heads.scaling(node)) is not None:
        found = _scores(step[0], steps - 1)
        if found is not None:
            found.scale *= step[1]
            for mask in found.masks:
                mask.factor *= step[1]
            found.nodes.append(node)
        return found
    if node.op == "Reshape" and _scores(node.inputs[0], steps - 1) is not None:
        raise NoMatch(
            node,
            "changes the shape of the scores between the product and the Softmax",
            wanted="scores [B, heads, S, S] throughout",
        )
    if node.op in ("Add", "Where"):
        operands = node.inputs if node.op == "Add" else node.inputs[1:]
        for x, other in (operands, operands[::-1]):
            found = _scores(x, steps - 1)
            if found is None:
                continue
            found.nodes.append(node)
            found.masks.append(_mask_of(node, x, other))
            return found
    return None


def _mask_of(node: gs.Node, x: gs.Tensor, other: gs.Tensor) -> _ScoreMask:
    if node.op == "Add":
        return _ScoreMask(other)
    hidden = scalar(other)
    if hidden is None or hidden > -1000 or x is not node.inputs[1]:
        raise NoMatch(
            node,
            "selects between the scores and something other than a large negative number",
            wanted="Where(visible, scores, -1000 or less)",
        )
    return _ScoreMask(node.inputs[0], hidden)


def _context(graph: FusionGraph, softmax: gs.Node) -> tuple[gs.Tensor, gs.Tensor, list[gs.Node]]:
    """The product of the weights with V: its output, V, and the nodes from the Softmax (not included) to it."""
    weights, nodes = softmax.outputs[0], []
    users = _computing(weights)
    guards = [u for u in users if u.op == "IsNaN"]
    if guards:  # Where(IsNaN(p), 0, p): rows with every key hidden
        selects = _computing(guards[0].outputs[0])
        if (
            len(selects) != 1
            or selects[0].op != "Where"
            or scalar(selects[0].inputs[1]) != 0.0
            or selects[0].inputs[2] is not weights
        ):
            raise NoMatch(
                guards[0], "guards the Softmax by something else than its NaNs", wanted="Where(IsNaN(p), 0, p)"
            )
        nodes = [guards[0], selects[0]]
        weights = selects[0].outputs[0]
        users = _computing(weights)
    products = [u for u in users if u.op == "MatMul" and u.inputs[0] is weights]
    if len(products) != 1 or len(users) != 1:
        raise NoMatch(
            softmax, f"its output feeds {', '.join(map(node_name, users)) or 'nothing'}", wanted="one product with V"
        )
    return products[0].outputs[0], products[0].inputs[1], [*nodes, products[0]]


def _computing(tensor: gs.Tensor) -> list[gs.Node]:
    """Consumers that use the values, not only the shape."""
    return list({id(n): n for n in tensor.outputs if n.op != "Shape"}.values())


def _projections(views: dict[str, View]) -> tuple[gs.Tensor, dict[str, gs.Node]]:
    linears = {}
    for name, view in views.items():
        node = producer(view.base)
        if node is None or node.op != LINEAR or node.domain != DIALECT:
            what = node_name(node) if node is not None else f"input '{view.base.name}'"
            raise NoMatch(
                what,
                f"{name.upper()} comes from '{view.base.name}'",
                wanted="a projection with constant weight",
            )
        linears[name] = node
    x = linears["q"].inputs[0]
    for name, node in linears.items():
        if node.inputs[0] is not x:
            raise NoMatch(
                node,
                f"{name.upper()} projects '{node.inputs[0].name}'",
                "cross-attention is not fused",
                wanted=f"'{x.name}', which Q projects",
            )
        if node.inputs[1].shape[0] != linears["q"].inputs[1].shape[0]:
            raise NoMatch(
                node,
                f"{name.upper()} is {node.inputs[1].shape[0]} wide",
                wanted=f"{linears['q'].inputs[1].shape[0]}, as Q is",
            )
    if len({id(n) for n in linears.values()}) != 3:
        raise NoMatch(linears["q"], "one projection gives several of Q, K and V", wanted="three projections")
    return x, linears


def _sizes(view: View, operand: gs.Tensor) -> dict[str, object]:
    base, shape = view.base.shape, operand.shape
    if (
        base is None
        or len(base) != 3
        or shape is None
        or not isinstance(shape[-1], int)
        or not isinstance(base[-1], int)
    ):
        raise NoMatch(
            producer(operand) or operand.name,
            f"'{view.base.name}' is {base} and '{operand.name}' {shape}",
            wanted="[B, S, H] and [..., head size]",
        )
    if shape[-1] == 0 or base[-1] % shape[-1]:
        raise NoMatch(producer(operand) or operand.name, f"head size {shape[-1]}", wanted=f"a divisor of {base[-1]}")
    return {BATCH: base[0], SEQUENCE: base[1], HEADS: base[-1] // shape[-1], SIZE: shape[-1]}


def _check_layouts(views: dict[str, View], sizes: dict[str, object], product: gs.Node) -> None:
    wanted = {
        "q": (heads.BY_HEAD, heads.MERGED_BY_HEAD),
        "k": (heads.BY_HEAD_TRANSPOSED, heads.MERGED_BY_HEAD_TRANSPOSED),
        "v": (heads.BY_HEAD, heads.MERGED_BY_HEAD),
    }
    for name, view in views.items():
        found = heads.layout(heads.PROJECTED, sizes, view.nodes)
        if found not in wanted[name]:
            where = view.nodes[-1] if view.nodes else product
            raise NoMatch(
                where, f"{name.upper()} arrives as {heads.describe(found)}", wanted=heads.describe(wanted[name][0])
            )


def _merge(
    graph: FusionGraph, context: gs.Tensor, nodes: list[gs.Node], sizes: dict[str, object]
) -> tuple[gs.Node, list[gs.Node]]:
    """From the product with V down to [B, S, H]: the node that gives it."""
    start = heads.BY_HEAD if len(context.shape or ()) == 4 else heads.MERGED_BY_HEAD
    views: list[gs.Node] = []
    for _ in range(_MAX_STEPS):
        users = _computing(context)
        if len(users) != 1 or users[0].op not in ("Transpose", "Reshape") or graph.is_output(context):
            break
        views.append(users[0])
        context = users[0].outputs[0]
        if heads.layout(start, sizes, views) == heads.PROJECTED:
            return views[-1], [*nodes, *views]
    raise NoMatch(producer(context), f"the heads stay apart after '{context.name}'", wanted="them merged to [B, S, H]")


def _mask(graph: FusionGraph, scores: _Scores) -> gs.Tensor | None:
    if not scores.masks:
        return None
    if len(scores.masks) > 1:
        raise NoMatch(scores.nodes[-1], "adds more than one mask or bias to the scores", wanted="one")
    (mask,) = scores.masks
    if mask.hidden is not None and mask.hidden * mask.factor > -1000:
        raise NoMatch(
            scores.nodes[-1],
            f"scales a hidden score of {mask.hidden:g} by {mask.factor:g}, which hides nothing",
            wanted="-1000 or less",
        )
    return graph.prober.mask_source(mask.tensor, mask.hidden is not None, mask.factor)


def _replace(graph, root, x, linears, mask, num_heads, scale, interior) -> None:
    output = root.outputs[0]
    batch, sequence, hidden_size = output.shape
    size = hidden_size // num_heads
    weight = concatenated([as_weight(n.inputs[1]).transposed() for n in linears], axis=1)
    biases = [n.inputs[2] if len(n.inputs) > 2 else graph.zeros(hidden_size, output.dtype) for n in linears]
    bias = np.concatenate([np.asarray(b.values) for b in biases])
    stem = linears[0].outputs[0].name
    qkv = graph.variable(f"{stem}_qkv", output.dtype, [batch, sequence, 3 * hidden_size])
    biased = graph.variable(f"{stem}_qkv_bias", output.dtype, qkv.shape)
    parts = [
        graph.variable(f"{stem}_{name}_by_head", output.dtype, [batch, num_heads, sequence, size]) for name in "qkv"
    ]
    # Standard MatMul: every runtime has its best GEMM behind it, and nothing follows that a custom op could save.
    product = graph.add_node("MatMul", [x, graph.constant(f"{stem}_qkv_weight", weight)], [qkv])
    add = graph.add_node(ADD, [qkv, graph.constant(f"{stem}_qkv_bias_values", bias)], [biased])
    split = graph.add_node(SPLIT_HEADS, [biased], parts, DIALECT, num_heads=num_heads)
    inputs = [*parts, *([mask] if mask is not None else [])]
    try:
        graph.replace(root, ATTENTION, inputs, interior, scale=float(scale))
    except NoMatch:
        for node in (product, add, split):
            node.inputs.clear()
            node.outputs.clear()
        raise
