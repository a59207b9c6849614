"""What the subgraphs that build masks and position ids compute, shown for every size and value."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx_graphsurgeon as gs

from ..elements import poly
from ..elements.expr import Number, value_of
from ..elements.poly import ONE
from ..graph import FusionGraph
from ..nodes import NoMatch, producer
from ..shapes import Dim
from . import key_mask, masks, samples, score_terms
from .key_mask import Above
from .key_range import EVERY_KEY
from .rule import Rule
from .score_terms import DistanceBias, ScoreTerms


class _Unrelated(NoMatch):
    """The mask is not the one by which keys are hidden."""


class Prover:
    """Answers questions about tensors of one graph, each worked out once."""

    def __init__(self, graph: FusionGraph) -> None:
        self._graph = graph
        self._elements = graph.elements
        self._answers: dict[tuple, tuple[gs.Tensor, Rule] | ScoreTerms | NoMatch | bool | None] = {}
        self._made: dict[tuple[str, Rule], gs.Tensor] = {}

    def mask_source(
        self, target: gs.Tensor, kind: str, factor: float, batch: Dim, length: Dim, heads: int
    ) -> gs.Tensor | None:
        """The [B, S] tensor of integers, 0 where a key is hidden, that `target` hides keys by; None if it hides none.

        `target` is broadcast to [batch, heads, length, length]. By `kind` it is "added" to scores, 0 where the key is
        visible and at most HIDING / factor where not, or a condition, "kept" or "hidden" where true. The result is an
        input of the model, or made of the first tensor above `target` that says which keys to hide. Raises NoMatch
        with what `target` is instead.
        """
        key = (target.name, kind, factor, batch, length)
        if key not in self._answers:
            try:
                self._answers[key] = self._find_mask(target, kind, factor)
            except NoMatch as miss:
                self._answers[key] = miss
        answer = self._answers[key]
        if isinstance(answer, NoMatch):
            raise answer
        key_mask.check_sizes(self._elements, target, batch, length, heads)
        if answer is None:
            return None
        mask, rule = answer
        key_mask.check_mask(self._elements, mask, batch, length)
        return self.visible(mask, rule)

    def visible(self, mask: gs.Tensor, rule: Rule) -> gs.Tensor:
        """[B, S] integers, not 0 where `rule` shows the key of `mask`; made once."""
        if (mask.name, rule) not in self._made:
            self._made[mask.name, rule] = masks.visible(self._graph, mask, rule)
        return self._made[mask.name, rule]

    def score_terms(
        self, target: gs.Tensor, kind: str, factor: float, batch: Dim, length: Dim, heads: int
    ) -> ScoreTerms:
        """What `target` does to scores [batch, heads, length, length], by `kind` as for `mask_source`.

        Raises NoMatch where that is more than a range of keys, a mask of keys and a bias by head and distance.
        """
        key = ("terms", target.name, kind, factor, heads)
        if key not in self._answers:
            try:
                self._answers[key] = self._find_terms(target, kind, factor, heads)
            except NoMatch as miss:
                self._answers[key] = miss
        answer = self._answers[key]
        if isinstance(answer, NoMatch):
            raise answer
        key_mask.check_sizes(self._elements, target, batch, length, heads)
        if answer.mask is not None:
            key_mask.check_mask(self._elements, answer.mask, batch, length)
        return answer

    def _find_terms(self, target: gs.Tensor, kind: str, factor: float, heads: int) -> ScoreTerms:
        misses: list[NoMatch] = []
        above = Above(self._elements, target)
        for candidate in (None, *above.candidates()):
            try:
                return self._terms(target, candidate, kind, factor, heads)
            except NoMatch as miss:
                if not isinstance(miss, _Unrelated):
                    misses.append(miss)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                where = producer(target) or target.name
                raise NoMatch(where, f"'{target.name}' cannot be followed ({error})") from error
        raise misses[1 if above.inputs and len(misses) > 1 else 0]

    def _terms(self, target: gs.Tensor, mask: gs.Tensor | None, kind: str, factor: float, heads: int) -> ScoreTerms:
        runner, where = self._graph.constants.runner, producer(target) or target.name
        places, expr = self._elements.generic(target, mask, symbolic=True)
        summands = score_terms.terms(expr, where) if kind == "added" else [expr]
        biases = [term for term in summands if score_terms.is_bias(term)]
        hiding = [term for term in summands if not score_terms.is_bias(term)]
        if len(biases) > 1 or len(hiding) > 1:
            raise NoMatch(where, f"'{target.name}' is a sum of {len(summands)}", wanted="one mask and one bias")
        keys, rule, bias, queries = EVERY_KEY, None, None, False
        for term in hiding:
            found = score_terms.hiding(self._elements, runner, target, mask, term, places, kind, factor)
            keys, rule, queries = found.keys, found.rule, found.queries
            if rule is not None and not biases:
                samples.check(self._graph, target, mask, rule, kind, factor, keys, queries)
        if mask is not None and rule is None:
            raise _Unrelated(where, f"'{target.name}' does not depend on '{mask.name}'")
        for term in biases:
            bias = score_terms.bias(self._elements, runner, term, places, heads, where)
            bias = DistanceBias(bias.values * np.float32(factor), bias.left)
            score_terms.check_bias(bias, where)
        return ScoreTerms(keys, None if rule is None else mask, rule, bias, queries)

    def _find_mask(self, target: gs.Tensor, kind: str, factor: float) -> tuple[gs.Tensor, Rule] | None:
        where = producer(target) or target.name
        above = Above(self._elements, target)
        if kind == "added" and any(target is t for t in above.inputs):
            raise NoMatch(
                where,
                f"'{target.name}', which is added to the scores, is an input of the model",
                "export the model with its 0/1 mask as input",
                wanted="a [B, S] mask of keys",
            )
        if key_mask.shows_every_key(self._elements, target, kind, factor):
            return None
        misses = []
        for candidate in above.candidates():
            try:
                return candidate, self._prove(target, candidate, kind, factor)
            except NoMatch as miss:
                misses.append(miss)
        names = ", ".join(f"'{t.name}'" for t in above.inputs) or "no input"
        if isinstance(target, gs.Constant):
            raise NoMatch(where, f"'{target.name}' is a constant that biases scores", wanted="a [B, S] mask of keys")
        if not misses:
            raise NoMatch(where, f"the mask '{target.name}' comes from {names}", wanted="a [B, S] mask of keys")
        raise NoMatch(
            misses[0].at or misses[0].node,
            f"'{target.name}', made of {names}, is more than a key mask: {misses[0].found}",
            wanted="a mask that hides padded keys and nothing else",
        )

    def _prove(self, target: gs.Tensor, mask: gs.Tensor, kind: str, factor: float) -> Rule:
        try:
            rule = key_mask.prove(self._elements, self._graph.constants.runner, target, mask, kind, factor)
            samples.check(self._graph, target, mask, rule, kind, factor)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Types and attributes that contradict each other come to light in many places.
            raise NoMatch(producer(target) or target.name, f"'{target.name}' cannot be followed ({error})") from error
        return rule

    def counts_up(self, index: gs.Tensor, ids: gs.Tensor, rows: int) -> bool:
        """Whether `index`, which looks up a table of `rows`, is 0, 1, ..., S-1 in every row, S being that of `ids`."""
        key = (index.name, ids.name, rows)
        if key not in self._answers:
            self._answers[key] = False
            with contextlib.suppress(NoMatch):
                self._answers[key] = self._counts_up(index, ids, rows)
        return self._answers[key]

    def _counts_up(self, index: gs.Tensor, ids: gs.Tensor, rows: int) -> bool:
        of_ids = self._elements.shape(ids)
        if len(of_ids) != 2:
            return False
        batch, length = of_ids
        extents = self._elements.shape(index)
        if not extents or any(n not in (ONE, batch) for n in extents[:-1]) or len(extents) > 2:
            return False
        if extents[-1] != length and not poly.one_size(extents[-1], length):
            return False
        places, expr = self._elements.generic(index)
        last = places[-1]
        if not isinstance(expr, Number):
            return False
        limit = poly.limit(expr.poly, last)
        # Cut off beyond the table's end: the look-up fails before that makes a difference.
        return expr.poly == last or (limit is not None and limit >= rows)

    def is_spread(self, tensor: gs.Tensor, ids: gs.Tensor) -> bool:
        """Whether `tensor`, broadcast together with `ids`, has the shape of `ids`."""
        with contextlib.suppress(NoMatch):
            own, wanted = self._elements.shape(tensor), self._elements.shape(ids)
            ends = wanted[len(wanted) - len(own) :]
            return len(own) <= len(wanted) and all(
                n in (ONE, end) or poly.one_size(n, end) for n, end in zip(own, ends, strict=True)
            )
        return False

    def one_value(self, tensor: gs.Tensor) -> np.ndarray | None:
        """The typed number that every element of `tensor` is, whatever the inputs and sizes; else None."""
        with contextlib.suppress(NoMatch):
            return value_of(self._elements.generic(tensor)[1])
        return None


def prover(graph: FusionGraph) -> Prover:
    """The graph's own: what it was asked once it knows."""
    if Prover not in graph.worked_out:
        graph.worked_out[Prover] = Prover(graph)
    return graph.worked_out[Prover]
