"""The account of a fusion: every op that was promised or found, in which layer, and what broke those that were not."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import onnx_graphsurgeon as gs

from .dialect.pattern import GELU, LAYER_NORM, LINEAR, Output, PatternNode, patterns
from .expected import EIGHT_BIT, Expectation, eight_bit_words
from .graph import FusionGraph
from .match import Match
from .nodes import NoMatch, describe, node_name, producer
from .ops import FAMILY_OPS, OPS
from .order import inputs_of
from .result import Miss, Part
from .spec import OpSpec

_ATTENTIONS = ("FusedAttention", "AddQKVBias")


@dataclass(frozen=True)
class Credit:
    """An op that was fused, as the node it became, with its attributes."""

    spec: OpSpec
    output: str
    attributes: dict[str, Any]
    note: str


@dataclass(frozen=True)
class _Origin:
    """A node as it was. `depth` is how many attentions lead to it, one after the other."""

    name: str
    output: str
    position: int
    depth: int
    does: str
    above: str  # the names of a node that it reads from and of one that reads from it
    below: str

    @property
    def place(self) -> str:
        """ "Div by 11.3137 between MatMul_12 and Softmax_14"."""
        if self.above and self.below:
            return f"{self.does} between {self.above} and {self.below}"
        return self.does + (f" after {self.above}" if self.above else f" before {self.below}" if self.below else "")


class Survey:
    """What has to be known of the graph before it is normalised, to speak of it afterwards."""

    def __init__(self, graph: FusionGraph, wanted: list[Expectation]) -> None:
        self.wanted = wanted
        self._origins: dict[int, _Origin] = {}
        attentions = {id(e.anchor) for e in wanted if e.op in _ATTENTIONS}
        for position, node in enumerate(graph.gs.nodes):
            above = [p for t in inputs_of(node) if (p := producer(t)) is not None]
            below = next((consumer for t in node.outputs for consumer in t.outputs), None)
            depth = max((self._origins[id(p)].depth for p in above if id(p) in self._origins), default=0)
            self._origins[id(node)] = _Origin(
                node_name(node),
                node.outputs[0].name if node.outputs else "",
                position,
                depth + (id(node) in attentions),
                describe(node),
                node_name(above[0]) if above else "",
                node_name(below) if below is not None else "",
            )
        self._by_name = {origin.name: origin for origin in reversed(self._origins.values())}

    def account(self, graph: FusionGraph, credits: dict[int, Credit]) -> tuple[dict[str, int], list[Part], int]:
        """Expected counts, a Part for everything expected or found, and the number of layers.

        `credits` holds what was fused by the id of the original node that it was found at.
        """
        expected: Counter[str] = Counter()
        order = list(OPS)
        found: list[tuple[_Origin, Part]] = []
        taken = graph.taken()
        for anchor, credit in credits.items():
            origin = self._origins[anchor]
            part = Part(
                credit.spec.name,
                origin.name,
                origin.depth,
                credit.output,
                self._replaced(origin, taken.get(anchor, [])),
                credit.attributes,
                credit.note,
            )
            found.append((origin, part))
        # An op of families beyond BERT stands for every op that was expected of the nodes it took.
        within = {id(n) for a, c in credits.items() if c.spec.name in FAMILY_OPS for n in taken.get(a, [])}
        within |= {anchor for anchor, credit in credits.items() if credit.spec.name in FAMILY_OPS}
        for expectation in self.wanted:
            credit = credits.get(id(expectation.anchor))
            if id(expectation.anchor) in within and (credit is None or credit.spec.name != expectation.op):
                continue
            op = expectation.op if credit is None else credit.spec.name
            # Nothing came out, or an op that takes less.
            if credit is None or order.index(op) > order.index(expectation.op):
                op = expectation.op
                origin = self._origins[id(expectation.anchor)]
                failure = _failure(graph, expectation, op)
                found.append((origin, Part(op, origin.name, origin.depth, miss=self._miss(op, origin, failure))))
            expected[op] += 1
        # Found beyond what was expected: the promise is at least what was kept.
        for op, count in Counter(credit.spec.name for credit in credits.values()).items():
            expected[op] = max(expected[op], count)
        found.sort(key=lambda pair: (pair[0].depth, pair[0].position))
        layers = max((origin.depth for origin, _ in found), default=0)
        return in_order(expected), _with_head([part for _, part in found], layers), layers

    def _replaced(self, anchor: _Origin, nodes: list[gs.Node]) -> tuple[str, ...]:
        """The first outputs of the original ones among the nodes, those from before the anchor's layer left out.

        What all layers read, a mask's subgraph, gives way to the last of them and belongs to none. A layer begins with
        projections, which have one attention less above them than its Softmax has.
        """
        origins = (self._origins.get(id(node)) for node in nodes)
        return tuple(o.output for o in origins if o is not None and o.depth >= anchor.depth - 1)

    def _miss(self, op: str, origin: _Origin, failure: NoMatch | None) -> Miss:
        if failure is None:
            return Miss(op, origin.name, origin.name, "was not reached", layer=origin.depth)
        # A node that stands for others has their last one's name; one that fusion made says nothing to anybody.
        at = self._origins.get(id(failure.at)) or self._by_name.get(failure.node)
        node = failure.node if at is not None or failure.at is None else origin.name
        place = at.place if at is not None else ""
        return Miss(op, origin.name, node, failure.found, failure.wanted, failure.hint, origin.depth, place)


def _failure(graph: FusionGraph, expectation: Expectation, op: str) -> NoMatch | None:
    """Why the op did not come out: what was wrong with a product of 8-bit numbers, that there are such, or else."""
    own = graph.failure(expectation.anchor, op)
    if expectation.refusal is None:
        return own
    of_products = (graph.failure(node) for node in expectation.products)
    told = next((failure for failure in of_products if failure is not None), None)
    if told is not None or own is None:
        return told or expectation.refusal
    if own.at is not None and own.at.op in EIGHT_BIT:  # where matching broke, which the nearest such node need not be
        return NoMatch(own.at, eight_bit_words(own.at), expectation.refusal.hint, wanted=expectation.refusal.wanted)
    return expectation.refusal if graph.is_live(expectation.refusal.at) else own


def _with_head(parts: list[Part], layers: int) -> list[Part]:
    """What the last layer has beyond the one before it is the model's head.

    A layer is what lies between attentions, whatever the order of its norms: where they come first, a layer ends with
    the next one's first norm, and the last with that of the whole model.
    """
    if not layers:
        return parts
    before = [_kind(part.op) for part in parts if part.layer == layers - 1]
    only = _only_layer([part.op for part in parts if part.layer == layers])
    usual = Counter(before if layers > 1 else map(_kind, only))
    done = []
    for part in parts:
        if part.layer == layers:
            if not usual[_kind(part.op)]:
                miss = part.miss and replace(part.miss, layer=layers + 1)
                part = replace(part, layer=layers + 1, miss=miss)
            else:
                usual[_kind(part.op)] -= 1
        done.append(part)
    return sorted(done, key=lambda part: part.layer)


def _kind(op: str) -> str:
    """Of a pre-norm model only the last sum is read by its norm alone."""
    return "FusedGemmLayerNorm" if op == "FusedGemmResidualNorm" else op


def _only_layer(ops: list[str]) -> list[str]:
    """Those of the ops behind one attention, in order, that are a layer's: up to the product behind its activation.

    An activation with a norm right behind it is a head's: in a layer a product comes between.
    """
    activated = False
    for index, op in enumerate(ops):
        does = _operations(OPS[op])
        if {GELU, LAYER_NORM} <= does:
            return ops[:index]
        if activated and LINEAR in does:
            return ops[: index + 1]
        activated = activated or GELU in does
    return ops


@cache
def _operations(spec: OpSpec) -> set[str]:
    """The operations of the dialect that the op's body is made of."""
    found, waiting = set(), [pattern.root for pattern in patterns(spec)]
    while waiting:
        node = waiting.pop()
        node = node.node if isinstance(node, Output) else node
        if isinstance(node, PatternNode):
            found.add(node.op)
            waiting += node.inputs
    return found


def credit(spec: OpSpec, found: Match, made: gs.Node) -> Credit:
    """What is to be said of the fused node `made`."""
    attributes = {a.name: found.attributes[a.name] for a in spec.found_attributes}
    return Credit(spec, made.outputs[0].name, attributes, _unusual_scale(found, attributes))


def _unusual_scale(found: Match, attributes: dict[str, Any]) -> str:
    """A remark when the scores' scale is not 1 / sqrt(head size), which every BERT has: often a broken export."""
    heads, scale = attributes.get("num_heads"), attributes.get("scale")
    shape = found.inputs["bias"].shape if "bias" in found.inputs else None
    if not heads or not scale or not shape or not isinstance(shape[-1], int):
        return ""
    size = shape[-1] // 3 // heads
    if not size or math.isclose(scale, size**-0.5, rel_tol=1e-3):
        return ""
    return f"scale {scale:.6g} = 1/{1 / scale:.6g}, expected 1/sqrt({size}); kept as it is"


def in_order(counts: Counter[str]) -> dict[str, int]:
    """The counts that are not zero, in the order of the ops."""
    return {name: counts[name] for name in OPS if counts[name]}
