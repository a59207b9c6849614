"""Disentangled attention: the products of Q and K with vectors by distance that are added to scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import LAYER_NORM, LINEAR
from ..dialect.reference import Reference
from ..elements import poly
from ..elements.engine import Elements
from ..elements.expr import Number, Read
from ..elements.poly import ONE, ZERO
from ..graph import FusionGraph
from ..nodes import DIALECT, NoMatch, is_float_cast, producer
from ..proof.positions import ByDistance, Summands, Table
from ..proof.rotary import Heads
from . import heads
from .scores import Core, ScoreMask
from .sources import base_of

_MAX_STEPS = 40
_VIEWS = ("Unsqueeze", "Squeeze", "Reshape", "Slice", "Identity", "Cast", "Expand")


@dataclass(frozen=True, eq=False)
class Positions:
    """`vectors` [2, heads, rows, size] for Q and for K, whose products are added to scores, by distance from -left on.

    `nodes` are those between the products and their sum.
    """

    vectors: np.ndarray
    left: int
    nodes: list[gs.Node]

    def __str__(self) -> str:
        right = self.vectors.shape[2] - 1 - self.left
        return f"Q and K times vectors by distance, from {-self.left} to {right}, the last ones beyond"


@dataclass
class _Way:
    """From a tensor of scores up to the products of heads with all vectors, and the look-ups on it."""

    products: list[gs.Node]
    gathers: list[gs.Node]
    nodes: list[gs.Node]


def is_sum_of_positions(tensor: gs.Tensor) -> bool:
    """Whether elements of products of activations are looked up in what is added to scores."""
    way = _way(tensor)
    return way is not None and bool(way.gathers)


def _way(tensor: gs.Tensor) -> _Way | None:
    way, stack = _Way([], [], []), [tensor]
    while stack:
        node = producer(current := stack.pop())
        if node is None or any(node is seen for seen in way.nodes):
            if isinstance(current, gs.Constant) or node is not None:
                continue
            return None
        way.nodes.append(node)
        if len(way.nodes) > _MAX_STEPS:
            return None
        if node.op == "MatMul":
            way.products.append(node)
        elif node.op == "Add":
            stack.extend(node.inputs)
        elif (step := heads.scaling(node)) is not None:
            stack.append(step[0])
        elif node.op in ("GatherElements", "Transpose", "Reshape", "Neg", "Identity") or is_float_cast(node):
            way.gathers += [node] if node.op == "GatherElements" else []
            stack.append(node.inputs[0])
        else:
            return None
    return way


def find(graph: FusionGraph, found: Core, mask: ScoreMask, of_heads: dict[str, Heads]) -> Positions:
    """The vectors by distance at what `mask` adds to the scores. Raises NoMatch where it is anything else."""
    way = _way(mask.tensor)
    _check_views(graph, found, mask, len(of_heads["q"].columns))
    tables = {id(node): _table(graph, node) for node in way.products}
    known = graph.worked_out.setdefault(_Known, _Known())
    summands = Summands(graph.constants.runner, mask.tensor, mask.merged, tables, of_heads, known)
    read = _read(graph, summands, way, tables, of_heads["q"].base)
    kinds = [one.of_keys for one in read]
    if len(kinds) > 2 or len(set(kinds)) != len(kinds):
        raise NoMatch(mask.node, f"adds {len(kinds)} products with positions", wanted="one of Q and one of K")
    left, right = (max(f(one) for one in read) for f in (lambda x: x.left, lambda x: len(x.rows) - 1 - x.left))
    columns = of_heads["q"].columns.shape
    vectors = np.zeros((2, columns[0], left + 1 + right, columns[1]))
    for one in read:
        rows = one.rows[np.clip(np.arange(-left, right + 1) + one.left, 0, len(one.rows) - 1)]
        vectors[int(one.of_keys)] = mask.factor * one.factor * _projected(one, rows)
    return Positions(vectors, left, [*way.nodes, *_between(way.products)])


class _Known(dict):
    """Rows by distance that attentions of one graph share."""


def _read(graph: FusionGraph, summands: Summands, way: _Way, tables: dict[int, Table], base: gs.Tensor):
    try:
        return summands.read(graph.elements, way.products)
    except NoMatch as miss:
        name, count = base.shape[1], max(len(table.values) for table in tables.values())
        if not isinstance(name, str) or count < 2:
            raise
        reason = miss
    # As long as texts are no longer than half of the table, and then: rows may be cut to the text's length.
    most = count // 2
    short, long = graph.elements.assuming(name, 1, most), graph.elements.assuming(name, most + 1)
    try:
        near = summands.read(short, way.products, most - 1)
    except NoMatch as miss:
        raise miss from reason
    if _ends_the_run(long, way.gathers, count):
        return near
    far = summands.read(long, way.products)
    if len(near) != len(far) or not all(a.same_as(b, most - 1) for a, b in zip(near, far, strict=True)):
        raise NoMatch(way.products[0], "positions of short texts are others than those of long ones", wanted="the same")
    return far


def _ends_the_run(elements: Elements, gathers: list[gs.Node], count: int) -> bool:
    """Whether a look-up lies behind all rows of a table of `count`, which ends the run."""
    for gather in gathers:
        try:
            shape = elements.shape(gather.inputs[1])
            ends = [(shape[-2] - ONE, ZERO), (ZERO, shape[-1] - ONE)]
            found = [elements.at(gather.inputs[1], (*(ZERO for _ in shape[:-2]), *end)) for end in ends]
        except NoMatch:
            continue
        numbers = [one.poly for one in found if isinstance(one, Number)]
        if any(poly.nonnegative(number - poly.number(count)) for number in numbers):
            return True
    return False


def _check_views(graph: FusionGraph, found: Core, mask: ScoreMask, count: int) -> None:
    """Raise NoMatch where Reshapes do more than to take heads apart, and to bring them together again."""
    elements = graph.elements
    for view, apart in zip(found.views, (True, False), strict=True):
        if view is None:
            if mask.merged:
                raise NoMatch(found.nodes[-1], "weights stay apart where scores were together", wanted="both alike")
            continue
        whole = view.outputs[0] if apart else view.inputs[0]
        shape = elements.shape(whole)
        if len(shape) != 4 or shape[1] != poly.number(count) or not mask.merged:
            raise NoMatch(view, f"the scores are {shape}", wanted=f"[batch, {count}, sequence, sequence]")
        b, h, q, k = map(poly.place, "bhqk", shape)
        places = [(b, h, q, k), (b * shape[1] + h, q, k)]
        to, of = places if apart else places[::-1]
        read = elements.at(view.outputs[0], to, view.inputs[0], symbolic=True)
        if not isinstance(read, Read) or read.tensor is not view.inputs[0] or read.index != of:
            raise NoMatch(view, "arranges the scores anew", wanted="batch and heads as one axis, or apart")


def _table(graph: FusionGraph, product: gs.Node) -> Table:
    base, _ = base_of(product.inputs[1], "positions")
    linear = producer(base)
    if linear.op != LINEAR:
        raise NoMatch(linear, "normalises positions by head", wanted="their projection alone")
    tensor = linear.inputs[0]
    while True:
        values = _worked_out(graph, tensor)
        if values is not None:
            return Table(tensor, values.reshape(-1, values.shape[-1]), linear)
        node = producer(tensor)
        if node is None or node.op not in _VIEWS:
            raise NoMatch(linear, f"positions are projected from '{tensor.name}'", wanted="rows of a table")
        tensor = node.inputs[0]


def _worked_out(graph: FusionGraph, tensor: gs.Tensor) -> np.ndarray | None:
    """The constant matrix that the tensor is, which may be a LayerNorm of one; None where it is none."""
    values = graph.constants.value(tensor)
    if values is None and (node := producer(tensor)) is not None and (node.domain, node.op) == (DIALECT, LAYER_NORM):
        x = graph.constants.value(node.inputs[0])
        if x is not None:
            gamma, beta = (np.asarray(t.values).astype(np.float64) for t in node.inputs[1:3])
            values = Reference().layer_norm(x.astype(np.float64), gamma, beta, node.attrs["epsilon"])
    return None if values is None or values.ndim < 2 or values.size != np.prod(values.shape[-2:]) else values


def _projected(one: ByDistance, rows: np.ndarray) -> np.ndarray:
    """[heads, rows, size] of those rows of the table."""
    weight, columns = np.asarray(one.table.linear.inputs[1].values).astype(np.float64), one.heads.columns
    used, back = np.unique(rows, return_inverse=True)
    y = one.table.values[used].astype(np.float64) @ weight[columns.ravel()].T
    if len(one.table.linear.inputs) > 2:
        y = y + np.asarray(one.table.linear.inputs[2].values).astype(np.float64)[columns.ravel()]
    y = y.reshape(len(used), *columns.shape).transpose(1, 0, 2)
    y = y if one.heads.added is None else y + one.heads.added[:, None]
    return y[:, back]


def _between(products: list[gs.Node]) -> list[gs.Node]:
    """The nodes that bring heads of Q and K into the products."""
    return [node for product in products for node in base_of(product.inputs[0], "heads")[1]]
