"""Whether what a model computes from rows of padding comes to nothing, so that they may as well hold zeros.

Rows of padding are followed from where they are restored. They may come out at outputs that have a row for each token,
or meet a weight that is shown to be 0 for every token that the mask hides, as in pooling by the mean. Where they take
part in anything else (pooling by the mean of all rows, by the greatest number, by the last row) the model is another
one without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ..elements.expr import Expr, Read, walk
from ..elements.poly import ZERO, Poly
from ..graph import FusionGraph
from ..nodes import DEFAULT_DOMAINS, NoMatch, matrix, node_name, producer
from ..proof.intervals import Interval
from ..proof.key_mask import check_no_places
from ..proof.scalar import ranges
from ..spec import DOMAIN
from . import rows
from .zero_rows import bounds_of_rows

_ELEMENTWISE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log",
    "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Selu",
    "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
}  # fmt: skip
# Operators that work along an axis: of those behind the sequence they keep every row to itself.
_ALONG = {
    "Concat", "Gather", "LogSoftmax", "LpNormalization", "LayerNormalization", "Softmax", "Split", "ArgMax",
}  # fmt: skip
_REDUCTIONS = {"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"}
_LAST_BY_DEFAULT = ("Softmax", "LogSoftmax", "LpNormalization", "LayerNormalization")
_SAME_NUMBERS = ("Cast", "Identity", "Squeeze", "Unsqueeze")
_ZERO, _OTHER = 2, 1  # what a value is; 0 is left to intervals that hold both


def reason_to_keep(graph: FusionGraph, starts: Iterable[gs.Tensor], inside: list[gs.Node], mask: gs.Tensor) -> str:
    """Why rows of padding must be what they were, in words; "" where they need not.

    `starts` are tensors [B, S, ...] made by the nodes `inside` and read by others, of which each row depends on its
    own token and on those that `mask` [B, S] shows. The first row of each sequence may be read: pooling by the first
    token takes the first one that is there.
    """
    readers = rows.consumers(graph)
    weights = _Weights(graph, mask)
    members = {id(node) for node in inside}
    stack, seen = list(starts), set()
    bounds = bounds_of_rows(graph, stack, members)
    begins = {id(t) for t in stack}
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if graph.is_read_by_body(tensor):
            return f"what padding gives is needed: the body of a node reads it, in '{tensor.name}'"
        is_finite = bounds[id(tensor)] is not None
        if graph.is_output(tensor) and not is_finite:
            return f"what padding gives is needed: of zeros the output '{tensor.name}' may be infinite, or NaN"
        for node in readers.get(id(tensor), []):
            if id(node) in members or (id(tensor) in begins and rows.first_row(node) is tensor):
                continue
            if _looks_at_shape(node):
                continue
            if weights.meets(node, tensor):
                if is_finite or node.op == "Where":
                    continue
                what = f"{node.op} {node_name(node)} multiplies it by 0, in '{tensor.name}'"
                return f"what padding gives is needed: of zeros it may be infinite, or NaN, and {what}"
            if not _keeps_rows(node, tensor, mask):
                why = f": {weights.why}" if weights.why else ""
                return f"what padding gives is needed: {node.op} {node_name(node)} reads it, in '{tensor.name}'{why}"
            stack += node.outputs
    return ""


def hiding_values(graph: FusionGraph, mask: gs.Tensor, source: gs.Tensor) -> list[tuple[np.generic, np.generic]]:
    """Which values of `source` [B, S], an input of the model, hide a token by themselves: ranges, both ends included.

    Raises NoMatch where the mask hangs on more than the token's own value.
    """
    return _Weights(graph, mask).hidden(None, source)


def _looks_at_shape(node: gs.Node) -> bool:
    return node.op in ("Shape", "Size") and node.domain in DEFAULT_DOMAINS


def _keeps_rows(node: gs.Node, tensor: gs.Tensor, mask: gs.Tensor) -> bool:
    """Whether every output is [B, S, ...], of which a row depends on the same row of `tensor` [B, S, ...] alone."""
    rank, out = _rank(tensor), _rank(node.outputs[0])
    if node.domain == DOMAIN:
        if node.op in rows.ATTENTIONS:
            return rows.get_input(node, "mask") is mask and rows.get_input(node, "qkv") is tensor
        found = rows.row_inputs(node)
        return found is not None and any(node.inputs[i] is tensor for i in found)
    if node.domain not in DEFAULT_DOMAINS or rank is None or out is None or rank < 2 or out < 2:
        return False
    if node.op in _ELEMENTWISE:
        return out == rank
    if node.op == "MatMul":
        return tensor is node.inputs[0] and tensor is not node.inputs[1] and rank > 2 and _is_matrix(node.inputs[1])
    if node.op in _ALONG:
        if node.op == "Gather" and tensor is not node.inputs[0]:
            return False
        axes: list[int] | None = [node.attrs.get("axis", -1 if node.op in _LAST_BY_DEFAULT else 0)]
    elif node.op == "Slice":
        axes = _axes(node, 3)
    elif node.op in _REDUCTIONS:
        axes = node.attrs.get("axes") or _axes(node, 1)
    elif node.op in ("Squeeze", "Unsqueeze"):
        axes = _axes(node, 1)
        rank = max(rank, out)
    elif node.op == "Reshape":
        return tensor.shape[:2] == node.outputs[0].shape[:2] and None not in tensor.shape[:2]
    else:
        return False
    return bool(axes) and all((axis + rank if axis < 0 else axis) >= 2 for axis in axes)


def _is_matrix(tensor: gs.Tensor) -> bool:
    return matrix(tensor) is not None


def _rank(tensor: gs.Tensor) -> int | None:
    return None if tensor.shape is None else len(tensor.shape)


def _axes(node: gs.Node, index: int) -> list[int] | None:
    given = node.inputs[index] if len(node.inputs) > index else None
    return np.asarray(given.values).ravel().tolist() if isinstance(given, gs.Constant) else None


class _Weights:
    """What is 0 for each token that the mask hides. `why` says what stood in the way of the last one looked at."""

    def __init__(self, graph: FusionGraph, mask: gs.Tensor) -> None:
        self._mask, self._runner = mask, graph.constants.runner
        self._elements = graph.elements
        self._ids = [root for node in rows.embeddings(graph) for root in rows.roots(rows.ids_of(node))]
        self.why = ""

    def meets(self, node: gs.Node, tensor: gs.Tensor) -> bool:
        """Whether `tensor` [B, S, ...] meets such a weight at `node`, and nothing of hidden tokens is left."""
        self.why = ""
        others = [t for t in node.inputs if t is not tensor]
        if node.domain not in DEFAULT_DOMAINS or len(node.inputs) - len(others) != 1:
            return False
        rank = _rank(tensor)
        if node.op == "Mul":
            return _rank(others[0]) == rank and self._is_zero(others[0], 1, False)
        if node.op == "Where" and tensor is not node.inputs[0]:
            return _rank(others[0]) == rank and self._is_zero(others[0], 1, tensor is node.inputs[2])
        if node.op == "MatMul" and tensor is node.inputs[1]:
            return _rank(others[0]) == rank == 3 and self._is_zero(others[0], 2, False)
        return False

    def _is_zero(self, weight: gs.Tensor, axis: int, negated: bool) -> bool:
        """Whether `weight`, of which the first axis is the batch and `axis` the sequence, is 0 for hidden tokens.

        A condition is to be false; with `negated`, true.
        """
        for source, hidden in self._sources():
            try:
                extents = self._elements.shape(weight)
                places, expr = self._elements.generic(weight, source)
                read = self._only_read(weight, places[0], places[axis], expr)
                own = self._elements.shape(read.tensor)
                if hidden is not None and read.tensor is not source:
                    raise NoMatch(weight.name, f"'{weight.name}' comes from '{read.name}' and not from '{source.name}'")
                wanted = hidden if hidden is not None else self.hidden(source, read.tensor)
                if (own[0], own[-1]) != (extents[0], extents[axis]):
                    raise NoMatch(weight.name, f"'{weight.name}' {extents} has other sizes than '{read.name}' {own}")
                found = [part for part in ranges(expr, read, _zeros(negated), self._runner) if part.kind == _ZERO]
                if all(any(part.low <= low and high <= part.high for part in found) for low, high in wanted):
                    return True
                raise NoMatch(weight.name, f"'{weight.name}' is not 0 for every token that '{self._mask.name}' hides")
            except NoMatch as miss:
                self.why = self.why or miss.reason
        return False

    def _only_read(self, tensor: gs.Tensor, batch: Poly, key: Poly, expr: Expr) -> Read:
        """The one element that the expression is made of: that of the batch and the place in the sequence."""
        check_no_places(expr, tensor)
        reads = [part for part in walk(expr) if isinstance(part, Read)]
        if not reads:
            raise NoMatch(tensor.name, f"'{tensor.name}' does not depend on '{self._mask.name}'")
        for read in reads:
            wanted = (batch, *(ZERO for _ in read.index[2:]), key)
            if read.tensor is not reads[0].tensor or read.index != wanted:
                raise NoMatch(tensor.name, f"'{tensor.name}' reads '{read.name}' at another place than the token's")
        return reads[0]

    def hidden(self, source: gs.Tensor | None, read_from: gs.Tensor) -> list[tuple[np.generic, np.generic]]:
        """Which values of the tensor that the mask is made of hide a token."""
        places, expr = self._elements.generic(self._mask, source)
        read = self._only_read(self._mask, places[0], places[-1], expr)
        if read.tensor is not read_from:
            raise NoMatch(self._mask.name, f"the mask comes from '{read.name}' and not from '{read_from.name}'")
        return [(p.low, p.high) for p in ranges(expr, read, _zeros(False), self._runner) if p.kind == _ZERO]

    def _sources(self) -> Iterator[tuple[gs.Tensor | None, list[tuple[int, int]] | None]]:
        """What mask and weight may both be made of: inputs of the model (None), or a tensor that the mask comes from.

        Where a token is shown that has the greatest number of its text (`masks.py`), the numbers that hide it are no
        fixed ones: there masks of 0 and 1 are looked at alone, and the values that hide are given. So they are, after
        everything else, where 1 alone shows a token: 2 would hide it, and weigh more than 1 in pooling by the mask.
        """
        tensor, value = self._mask, 0  # which of 0 and 1 hides a token, None where that is not known
        above, of_two, greatest, compared = [], [], False, False
        while (node := producer(tensor)) is not None:
            above.append(tensor)
            given = [t for t in node.inputs if not isinstance(t, gs.Constant) and not t.is_empty()]
            if (number := hiding_number(node)) is not None:
                is_greatest = _number_beside_greatest(node) is not None
                greatest, compared = greatest or is_greatest, True
                given = given[:1]
                # Beside the greatest the others hide; what is the greatest itself is no fixed number.
                value = number if value == 0 else 1 - number if value == 1 and not is_greatest else None
            elif node.op == "Not" and value is not None:
                value = 1 - value
            elif node.op not in _SAME_NUMBERS:
                value = None
            if len(given) != 1 or node.domain not in DEFAULT_DOMAINS:
                break
            tensor = given[0]
            if compared and value is not None and self._may_be_of_two(tensor):
                of_two.append((tensor, [(value, value)]))
        if not greatest:
            yield None, None
            yield from ((tensor, None) for tensor in above)
        yield from of_two

    def _may_be_of_two(self, tensor: gs.Tensor) -> bool:
        """Whether it holds 0 and 1 alone, or is what a mask is fed as: ids are numbers of many kinds."""
        node = producer(tensor)
        source = node.inputs[0] if node is not None and node.op == "Cast" else tensor
        return source.dtype == bool or not any(any(root is other for other in self._ids) for root in rows.roots(tensor))


def hiding_number(node: gs.Node) -> int | None:
    """Of 0 and 1 the one for which Equal(x, 1) or Equal(x, 0), or one beside the greatest, is not true; else None."""
    if node.op != "Equal" or node.domain not in DEFAULT_DOMAINS:
        return None
    values = [np.asarray(t.values).ravel() for t in node.inputs if isinstance(t, gs.Constant)]
    if len(values) == 1:
        return {1: 0, 0: 1}.get(values[0][0]) if values[0].size == 1 else None
    return _number_beside_greatest(node)


def _number_beside_greatest(node: gs.Node) -> int | None:
    """Of Equal(x, Max(ReduceMax(x), 1)) 0, of Equal(x, Min(ReduceMin(x), 0)) 1; else None."""
    if node.op != "Equal" or node.domain not in DEFAULT_DOMAINS:
        return None
    x, limit = node.inputs
    limit_node = producer(limit)
    reduced = producer(limit_node.inputs[0]) if limit_node is not None and limit_node.op in ("Max", "Min") else None
    if reduced is None or reduced.op != f"Reduce{limit_node.op}" or reduced.inputs[0] is not x:
        return None
    return 0 if limit_node.op == "Max" else 1


def _zeros(negated: bool) -> Callable[[Interval], np.ndarray]:
    """How to tell whether results are 0 (`negated`: are not)."""

    def classify(result: Interval) -> np.ndarray:
        zero = (result.low == 0) & (result.high == 0) & ~result.nan
        other = (result.low > 0) | (result.high < 0) | result.nan
        kinds = (_OTHER, _ZERO) if negated else (_ZERO, _OTHER)
        return np.where(zero, kinds[0], np.where(other, kinds[1], 0))

    return classify
