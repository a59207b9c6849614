"""Which numbers of a graph must stay float32 when it is converted to a half precision type.

Activations bear the rounding: that is what half precision is for. What indices, places, lengths and angles are computed
from does not: 2049 is 2048 in float16, a rotation by 3000.5 is another by 3000, and a sum of squares overflows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import numpy as np
import onnx_graphsurgeon as gs

from .graph import as_weight
from .nodes import DEFAULT_DOMAINS, data_type, producer
from .spec import DOMAIN, DTYPE_VARIABLES

FLOATS = tuple(DTYPE_VARIABLES["T"].values())


class Kind(enum.IntEnum):
    """What a float is made of. Of a node's inputs the greatest decides."""

    CONSTANT = 0
    SWITCH = 1  # conditions and constants: a mask that is added, 0 or 1
    NUMBER = 2  # integers: places, counts, angles
    FED = 3  # floats that the model is fed, not yet multiplied by a weight: ids and lengths among them
    ACTIVATION = 4


_PRODUCTS = (
    "MatMul", "Gemm", "Conv", "Einsum", "LayerNormalization", "Softmax", "LogSoftmax", "Attention", "LSTM", "GRU",
)  # fmt: skip
_ELEMENTWISE = (
    "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Max", "Min", "Clip", "Sum",
    "Mean", "Where", "Cast", "Identity", "Sign", "Floor", "Ceil", "Round",
)  # fmt: skip
_MOVES = (
    "Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Concat", "Tile", "Flatten", "Gather",
    "GatherElements", "GatherND", "Split",
)  # fmt: skip
# Of many numbers one, larger than each or rounded at every step.
_REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceProd", "CumSum", "LpNormalization",
)  # fmt: skip
_SQUARES = ("Mul", "Pow", "Abs", "Exp")
_LOOK_AT_SHAPE = ("Shape", "Size")
_LEAST_WIDTH = 8  # of rows that are looked up: fewer numbers are no embedding


def is_float(tensor: gs.Tensor) -> bool:
    """Whether the tensor is of one of the types that conversion changes."""
    return not tensor.is_empty() and tensor.dtype is not None and data_type(tensor.dtype) in FLOATS


def has_body(node: gs.Node) -> bool:
    return any(isinstance(value, gs.Graph) for value in node.attrs.values())


def kinds(nodes: Iterable[gs.Node], inputs: Iterable[gs.Tensor]) -> dict[int, Kind]:
    """The kind of every float tensor that is computed or fed, by id; `nodes` in topological order."""
    found: dict[int, Kind] = {}
    for tensor in inputs:
        if is_float(tensor):
            few = tensor.shape is not None and len(tensor.shape) < 3
            found[id(tensor)] = Kind.FED if few else Kind.ACTIVATION
    for node in nodes:
        kind = _kind(node, found)
        for output in node.outputs:
            if is_float(output):
                found[id(output)] = kind
    return found


def _kind(node: gs.Node, found: dict[int, Kind]) -> Kind:
    if node.domain == DOMAIN or has_body(node) or _looks_up(node):
        return Kind.ACTIVATION
    floats = [t for t in node.inputs if is_float(t)]
    greatest = max((found.get(id(t), Kind.CONSTANT) for t in floats), default=Kind.CONSTANT)
    if greatest >= Kind.FED:
        return Kind.ACTIVATION if greatest == Kind.ACTIVATION or node.op in _PRODUCTS else Kind.FED
    if node.op == "Constant" or (floats and node.op in _MOVES and greatest == Kind.CONSTANT):
        return Kind.NUMBER  # which elements they are depends on integers
    small = all(is_float(t) or _is_condition(t) or node.op in _MOVES for t in node.inputs if not t.is_empty())
    if small and greatest <= Kind.SWITCH and node.op in (*_ELEMENTWISE, *_MOVES):
        return Kind.SWITCH
    return Kind.NUMBER


def _is_condition(tensor: gs.Tensor) -> bool:
    return tensor.dtype is not None and not isinstance(tensor.dtype, int) and np.dtype(tensor.dtype) == bool


def _looks_up(node: gs.Node) -> bool:
    """Whether the node gives rows of an embedding table; a buffer of places is none."""
    if node.op != "Gather" or not isinstance(node.inputs[0], gs.Constant) or not is_float(node.inputs[0]):
        return False
    shape = node.inputs[0].shape
    if len(shape) != 2 or shape[1] < _LEAST_WIDTH:
        return False
    row = np.asarray(as_weight(node.inputs[0]).load()[:1], np.float32)
    return not (row.size and np.all(row == np.round(row)) and np.ptp(row) > 1)


def exact(nodes: list[gs.Node], kind: dict[int, Kind]) -> set[int]:
    """The ids of float tensors that stay float32."""
    wide = {i for i, k in kind.items() if k == Kind.NUMBER}
    made = {id(t): t for node in nodes for t in node.outputs}
    _add_what_leads_to_integers(nodes, kind, wide)
    _add_sums(nodes, kind, wide)
    _add_switches(nodes, kind, wide, made)
    return wide


def _add_what_leads_to_integers(nodes: list[gs.Node], kind: dict[int, Kind], wide: set[int]) -> None:
    for node in reversed(nodes):
        if node.op in _LOOK_AT_SHAPE or node.domain not in DEFAULT_DOMAINS or node.op in ("IsNaN", "IsInf"):
            continue
        floats = [t for t in node.outputs if is_float(t)]
        if any(id(t) in wide for t in floats) or not floats:
            wide.update(id(t) for t in node.inputs if kind.get(id(t)) == Kind.FED)


def _add_sums(nodes: list[gs.Node], kind: dict[int, Kind], wide: set[int]) -> None:
    """Sums of activations, the squares that are summed, and what is made of sums alone."""
    for node in nodes:
        if node.op in _REDUCTIONS and node.domain in DEFAULT_DOMAINS:
            if node.op != "LpNormalization":
                wide.update(id(t) for t in node.outputs if is_float(t))
            above = producer(node.inputs[0])
            while above is not None and above.op in _SQUARES and kind.get(id(above.outputs[0])) == Kind.ACTIVATION:
                wide.add(id(above.outputs[0]))
                above = producer(above.inputs[0])
        elif node.op in (*_ELEMENTWISE, *_MOVES) and not _looks_up(node):
            floats = [t for t in node.inputs if is_float(t) and not isinstance(t, gs.Constant)]
            if floats and all(id(t) in wide for t in floats):
                wide.update(id(t) for t in node.outputs if is_float(t))


def _add_switches(nodes: list[gs.Node], kind: dict[int, Kind], wide: set[int], made: dict[int, gs.Tensor]) -> None:
    """Switches in the midst of numbers are numbers."""
    for node in reversed(nodes):
        floats = [t for t in node.outputs if is_float(t)]
        number = any(id(t) in wide and kind[id(t)] != Kind.ACTIVATION for t in floats)
        if number or (not floats and node.op not in _LOOK_AT_SHAPE):
            wide.update(id(t) for t in node.inputs if kind.get(id(t)) == Kind.SWITCH)


def runs_wide(node: gs.Node, kind: dict[int, Kind], wide: set[int]) -> bool:
    """Whether the node computes in float32, whatever type its results are kept in."""
    floats = [t for t in node.outputs if is_float(t)]
    if any(id(t) in wide for t in floats) or node.op in _REDUCTIONS:
        return True
    given = [t for t in node.inputs if id(t) in wide]
    if not floats:
        return bool(given)
    # x / |x|: the sum is beyond half precision, the quotient is not.
    return node.op in _ELEMENTWISE and any(kind[id(t)] >= Kind.FED for t in given)
