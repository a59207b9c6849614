"""The core of an attention: what stands between Q, K, V and their context; around a Softmax, or one Attention node."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import onnx_graphsurgeon as gs
from onnx import TensorProto

from .. import known_attributes
from ..graph import FusionGraph
from ..nodes import NoMatch, data_type, is_float_cast, matrix, node_name, producer, scalar
from . import heads

_MAX_STEPS = 8
_MAX_VIEWS = 8
# What may stand in place of a hidden score: it must be below all that are visible, where one that is added to the score
# must only exceed their differences. Nearly float16's least number, which exporters write.
SELECTED = -6e4
# What else is done to scores, element by element: attention that no op computes, but attention.
_CHANGES = ("Mul", "Div", "Sub", "Pow", "Clip", "Min", "Max", "Tanh", "Neg", "Abs", "Relu", "Sigmoid")
# What may be done to scores that stand beside others: their greatest is subtracted.
_CHANGES_BESIDE = ("Sub", "Cast", "Mul", "Div", "Add")


@dataclass
class ScoreMask:
    """What hides keys: `kind` "added" to the scores, or a condition, "kept" where true or "hidden" where true."""

    node: gs.Node
    tensor: gs.Tensor
    kind: str
    hidden: float = -math.inf  # what a condition puts in place of a score
    factor: float = 1.0  # by which everything is multiplied afterwards
    merged: bool = False  # among scores [B*heads, S, S]


@dataclass
class Core:
    """`context` = softmax(scale * q kᵀ + masks) v. `nodes` are its nodes, first to last.

    `k_transposed` says that K comes as [.., size, S]; `heads` is set where q, k and v are [B, S, H] and not by head.
    `views` are Reshapes that take the heads of scores [B*heads, S, S] apart, and bring those of weights together.
    `zeroed` says that rows of weights without a visible key are 0.
    """

    q: gs.Tensor
    k: gs.Tensor
    v: gs.Tensor
    context: gs.Tensor
    nodes: list[gs.Node]
    scale: float
    masks: list[ScoreMask]
    k_transposed: bool = True
    heads: int = 0
    views: tuple[gs.Node | None, gs.Node | None] = (None, None)
    zeroed: bool = False


@dataclass
class _Scores:
    """The way from q kᵀ to the Softmax."""

    product: gs.Node
    nodes: list[gs.Node] = field(default_factory=list)
    scale: float = 1.0
    masks: list[ScoreMask] = field(default_factory=list)
    view: gs.Node | None = None


def is_core(node: gs.Node) -> bool:
    """Whether the node is an Attention, or a Softmax that a product of two activations leads to."""
    if node.op == "Attention":
        return True
    try:
        return _scores(node.inputs[0], _MAX_STEPS) is not None or _is_with_sinks(node)
    except NoMatch:
        return True  # it does, through something that `core` will refuse with a reason


def _is_with_sinks(softmax: gs.Node) -> bool:
    """Whether scores stand beside others at the Softmax: sinks, which take weight from every key."""
    beside = producer(softmax.inputs[0])
    while beside is not None and beside.op in _CHANGES_BESIDE:
        beside = producer(beside.inputs[0])
    if beside is None or beside.op != "Concat":
        return False
    for tensor in beside.inputs:
        try:
            if _scores(tensor, _MAX_STEPS) is not None:
                return True
        except NoMatch:
            return True
    return False


def core(graph: FusionGraph, node: gs.Node, views: bool = False) -> Core:
    """The attention at this Softmax or Attention. Raises NoMatch where it is another function.

    With `views` scores and weights may be reshaped, which the caller has to look at.
    """
    return _named(graph, node) if node.op == "Attention" else _around(node, views)


def _around(softmax: gs.Node, views: bool) -> Core:
    shape = softmax.inputs[0].shape
    if softmax.attrs.get("axis", -1) not in (-1, None if shape is None else len(shape) - 1):
        raise NoMatch(softmax, f"Softmax over axis {softmax.attrs['axis']}", wanted="the last axis")
    scores = _scores(softmax.inputs[0], _MAX_STEPS, views)
    if scores is None:
        raise NoMatch(softmax, "has more than the scores to share its weights among (sinks)", wanted="scores alone")
    after, product = _product_with_v(softmax, views, scores.masks)
    q, k = scores.product.inputs
    nodes = [scores.product, *scores.nodes, softmax, *after, product]
    seen = (scores.view, next((node for node in after if node.op == "Reshape"), None))
    last = scores.masks[-1].tensor if scores.masks else None
    zeroed = any(node.op == "Where" and node.inputs[0] is last for node in after)
    return Core(
        q, k, product.inputs[1], product.outputs[0], nodes, scores.scale, scores.masks, views=seen, zeroed=zeroed
    )


def _scores(tensor: gs.Tensor, steps: int, views: bool = False) -> _Scores | None:
    """Walk up from the Softmax to the product of two activations, through scalings, masks and changes of type."""
    node = producer(tensor)
    if node is None or steps == 0:
        return None
    if node.op == "MatMul":
        return None if any(map(_is_weight, node.inputs)) else _Scores(node)
    if is_float_cast(node):
        found = _scores(node.inputs[0], steps - 1, views)
        if found is not None:
            if not _widens(node):
                raise NoMatch(node, "casts the scores to a narrower type", wanted="the type of the product, or wider")
            found.nodes.append(node)
        return found
    if (step := heads.scaling(node)) is not None:
        found = _scores(step[0], steps - 1, views)
        if found is not None:
            found.scale *= step[1]
            for mask in found.masks:
                mask.factor *= step[1]
            found.nodes.append(node)
        return found
    if node.op == "Reshape" and (found := _scores(node.inputs[0], steps - 1, views)) is not None:
        if not views or found.view is not None:
            raise reshaped(node)
        found.nodes.append(node)
        found.view = node
        found.masks = [replace(mask, merged=True) for mask in found.masks]
        return found
    if node.op in ("Add", "Where"):
        operands = node.inputs if node.op == "Add" else node.inputs[1:]
        for x, other in (operands, operands[::-1]):
            found = _scores(x, steps - 1, views)
            if found is None:
                continue
            found.nodes.append(node)
            found.masks.append(_mask_of(node, x, other))
            return found
    if node.op in _CHANGES and any(_scores(t, steps - 1, views) is not None for t in node.inputs):
        raise NoMatch(node, f"{node.op} of the scores", wanted="a constant scale, or a mask that is added or selects")
    return None


def reshaped(node: gs.Node) -> NoMatch:
    """That the scores are reshaped at this node."""
    what = "changes the shape of the scores between the product and the Softmax"
    return NoMatch(node, what, wanted="scores [B, heads, S, S] throughout")


def _widens(cast: gs.Node) -> bool:
    """Whether every score survives the cast: in float16 they overflow, in bfloat16 they lose their digits."""
    given, made = data_type(cast.inputs[0].dtype), cast.attrs["to"]
    return made == given or (made in (TensorProto.FLOAT, TensorProto.DOUBLE) and given != TensorProto.DOUBLE)


def _is_weight(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) or matrix(tensor) is not None


def _mask_of(node: gs.Node, x: gs.Tensor, other: gs.Tensor) -> ScoreMask:
    if node.op == "Add":
        return ScoreMask(node, other, "added")
    hidden = scalar(other)
    if hidden is None or not hidden <= SELECTED:
        raise NoMatch(
            node,
            f"selects between the scores and {hidden if hidden is not None else repr(other.name)}",
            wanted=f"a constant of {SELECTED:g} or less",
        )
    return ScoreMask(node, node.inputs[0], "kept" if x is node.inputs[1] else "hidden", hidden)


def _product_with_v(softmax: gs.Node, views: bool, masks: list[ScoreMask]) -> tuple[list[gs.Node], gs.Node]:
    """The nodes after the Softmax that change rows without a visible key alone, and the product with V."""
    weights, nodes = softmax.outputs[0], []
    while True:
        users = computing(weights)
        guards = [user for user in users if user.op == "IsNaN"]
        if guards:
            nodes += [guards[0], _guarded(guards[0], weights)]
        elif len(users) == 1 and masks and _hides_again(users[0], weights, masks[-1]):
            nodes.append(users[0])
        elif len(users) == 1 and (is_float_cast(users[0]) or (views and users[0].op == "Reshape")):
            views &= users[0].op != "Reshape"
            nodes.append(users[0])
        else:
            break
        weights = nodes[-1].outputs[0]
    products = [user for user in users if user.op == "MatMul" and user.inputs[0] is weights]
    if len(products) != 1 or len(users) != 1:
        raise NoMatch(
            softmax, f"its output feeds {', '.join(map(node_name, users)) or 'nothing'}", wanted="one product with V"
        )
    return nodes, products[0]


def _hides_again(node: gs.Node, weights: gs.Tensor, last: ScoreMask) -> bool:
    """Whether the node puts 0 in place of weights whose scores the last mask has hidden, by the same condition.

    They are 0 already, except in rows without a visible key. DeBERTa's code did so up to transformers 4.46.
    """
    if node.op != "Where" or last.kind == "added" or node.inputs[0] is not last.tensor or last.factor != 1:
        return False
    zero, kept = node.inputs[1:] if last.kind == "hidden" else node.inputs[:0:-1]
    return scalar(zero) == 0 and kept is weights


def _guarded(guard: gs.Node, weights: gs.Tensor) -> gs.Node:
    """The Where of Where(IsNaN(p), 0, p): rows with every key hidden."""
    selects = computing(guard.outputs[0])
    if (
        len(selects) != 1
        or selects[0].op != "Where"
        or scalar(selects[0].inputs[1]) != 0.0
        or selects[0].inputs[2] is not weights
    ):
        raise NoMatch(guard, "guards the Softmax by something else than its NaNs", wanted="Where(IsNaN(p), 0, p)")
    return selects[0]


def merge(graph: FusionGraph, found: Core, base: gs.Tensor, by_head: tuple[int, int]) -> tuple[gs.Node, list[gs.Node]]:
    """From the product with V down to [B, S, H]: the node that gives it, and the nodes on the way."""
    if found.heads:
        return found.nodes[-1], []
    context, views = found.context, []
    rank = len(found.v.shape) if found.v.shape is not None else 4
    for _ in range(_MAX_VIEWS):
        users = computing(context)
        if len(users) != 1 or not heads.is_view(users[0]) or graph.is_output(context):
            break
        views.append(users[0])
        context = users[0].outputs[0]
        if heads.merges(views, base, by_head, rank):
            return views[-1], views
    raise NoMatch(producer(context), f"the heads stay apart after '{context.name}'", wanted="them merged to [B, S, H]")


def computing(tensor: gs.Tensor) -> list[gs.Node]:
    """Consumers that use the values, not only the shape."""
    return list({id(n): n for n in tensor.outputs if n.op != "Shape"}.values())


def _named(graph: FusionGraph, node: gs.Node) -> Core:
    """Attention of opset 23: on heads, [B, heads, S, size], or on [B, S, H] with the number of heads as attribute."""
    attrs, inputs = node.attrs, node.inputs
    for index, what in ((4, "past keys"), (5, "past values"), (6, "lengths of keys")):
        if len(inputs) > index and not inputs[index].is_empty():
            raise NoMatch(node, f"takes {what} '{inputs[index].name}'", wanted="none")
    known_attributes.check(node, graph.opset)
    if any(t.outputs or graph.is_output(t) for t in node.outputs[1:] if not t.is_empty()):
        raise NoMatch(node, "gives more than the context", wanted="its first output alone")
    node.outputs = node.outputs[:1]  # whatever takes its place has one
    q, k, v = inputs[:3]
    count = attrs.get("q_num_heads", 0) if q.shape is not None and len(q.shape) == 3 else 0
    if attrs.get("kv_num_heads", count) != count:
        raise NoMatch(node, f"kv_num_heads is {attrs['kv_num_heads']}", wanted=f"{count}, as q_num_heads")
    size = q.shape[-1] if q.shape is not None else None
    if not isinstance(size, int) or not size:
        raise NoMatch(node, f"'{q.name}' is {q.shape}", wanted="a head size that is known")
    scale = attrs.get("scale", 1 / math.sqrt(size // (count or 1)))
    masks = []
    if len(inputs) > 3 and not inputs[3].is_empty():
        masks.append(ScoreMask(node, inputs[3], "kept" if inputs[3].dtype == bool else "added"))
        length = k.shape[-2] if k.shape is not None and len(k.shape) > 2 else None
        if graph.opset >= 24 and (length is None or inputs[3].shape is None or inputs[3].shape[-1] != length):
            raise NoMatch(
                node, f"its mask is {inputs[3].shape}, which hides keys beyond it", wanted=f"one for {length}"
            )
    return Core(q, k, v, node.outputs[0], [node], float(scale), masks, k_transposed=False, heads=count)
