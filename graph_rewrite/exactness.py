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
from .ops import OPS
from .spec import DOMAIN, DTYPE_VARIABLES

FLOATS = tuple(DTYPE_VARIABLES["T"].values())


class Kind(enum.IntEnum):
    """What a float is made of. Of a node's inputs the greatest decides."""

    CONSTANT = 0
    SWITCH = 1  # conditions and constants: a mask that is added, 0 or 1
    NUMBER = 2  # integers: places, counts, angles
    FED = 3  # floats that the model is fed, not yet multiplied by a weight: hidden states, and ids, lengths, times
    ACTIVATION = 4


_PRODUCTS = (
    "MatMul", "Gemm", "Conv", "Einsum", "LayerNormalization", "Softmax", "LogSoftmax", "Attention", "LSTM", "GRU",
)  # fmt: skip
_ELEMENTWISE = (
    "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Max", "Min", "Clip", "Sum",
    "Mean", "Where", "Cast", "Identity", "Sign", "Floor", "Ceil", "Round",
)  # fmt: skip
_EIGHT_BIT = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul")
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
_ANGLES = ("Sin", "Cos", "Tan")
_SMOOTH = ("Tanh", "Erf", "Relu", "Gelu", "Sigmoid", "Silu", "Elu", "LeakyRelu")
_LEAST_WIDTH = 8  # of rows that are looked up or fed: fewer numbers are no embedding and no hidden state


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
            found[id(tensor)] = Kind.FED
    for node in nodes:
        kind = _kind(node, found)
        for output in node.outputs:
            if is_float(output) or node.op in _EIGHT_BIT:
                found[id(output)] = kind
    return found


def _kind(node: gs.Node, found: dict[int, Kind]) -> Kind:
    if node.domain == DOMAIN or has_body(node) or _looks_up(node) or _looks_up_integers(node):
        return Kind.ACTIVATION
    if node.op in _EIGHT_BIT and node.inputs:
        return found.get(id(node.inputs[0]), Kind.NUMBER)
    floats = [t for t in node.inputs if is_float(t)]
    greatest = max((found.get(id(t), Kind.CONSTANT) for t in floats), default=Kind.CONSTANT)
    if greatest >= Kind.FED:
        weighed = node.op in _PRODUCTS and not _of_few(node)
        return Kind.ACTIVATION if greatest == Kind.ACTIVATION or weighed else Kind.FED
    if node.op == "Constant" or (floats and node.op in _MOVES and greatest == Kind.CONSTANT):
        return Kind.NUMBER  # which elements they are depends on integers
    if floats and greatest == Kind.CONSTANT and len(floats) == len(node.inputs):
        return Kind.NUMBER  # slopes, frequencies
    small = all(is_float(t) or _is_condition(t) or node.op in _MOVES for t in node.inputs if not t.is_empty())
    if small and greatest <= Kind.SWITCH and node.op in (*_ELEMENTWISE, *_MOVES):
        return Kind.SWITCH
    return Kind.NUMBER


def _is_condition(tensor: gs.Tensor) -> bool:
    return tensor.dtype is not None and not isinstance(tensor.dtype, int) and np.dtype(tensor.dtype) == bool


def _looks_up_integers(node: gs.Node) -> bool:
    """Whether the node makes floats of rows of a table of 8-bit numbers, or rows of what were such numbers."""
    above = producer(node.inputs[0]) if node.op in ("Gather", "DequantizeLinear") and node.inputs else None
    if above is None or {node.op, above.op} != {"Gather", "DequantizeLinear"}:
        return False
    shape = above.inputs[0].shape if isinstance(above.inputs[0], gs.Constant) else ()
    return len(shape) == 2 and shape[1] >= _LEAST_WIDTH


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
    made = {id(t): t for node in nodes for t in node.outputs}
    hidden = _hidden_states(nodes, kind, made)
    wide = {i for i, k in kind.items() if k == Kind.NUMBER or (k == Kind.FED and i not in hidden)}
    _add_angles(nodes, kind, wide)
    _add_sums(nodes, kind, wide)
    _add_switches(nodes, kind, wide, made)
    _add_scores(nodes, kind, wide)
    _add_scales(nodes, wide)
    return wide


def _add_scales(nodes: list[gs.Node], wide: set[int]) -> None:
    """What 8-bit numbers are multiples of."""
    for node in nodes:
        if node.domain == DOMAIN:
            given = zip(OPS[node.op].inputs, node.inputs, strict=False)
            wide.update(id(t) for spec, t in given if spec.dtype == "S" and isinstance(t, gs.Variable) and t.inputs)


def _of_few(node: gs.Node) -> bool:
    """Whether a product sums up fewer numbers than a hidden state has: times or coordinates by a weight are angles."""
    if node.op == "Einsum":
        return not all(_looks_hidden(t) for t in node.inputs if not isinstance(t, gs.Constant))
    if node.op not in ("MatMul", "Gemm"):
        return False
    x, weight = (t.shape for t in node.inputs[:2])
    summed = [x[-1] if x and not node.attrs.get("transA") else None]
    if weight:
        summed.append(weight[-1] if node.attrs.get("transB") or len(weight) == 1 else weight[-2])
    known = [size for size in summed if isinstance(size, int)]
    return not known or min(known) < _LEAST_WIDTH


def _looks_hidden(tensor: gs.Tensor) -> bool:
    """Whether the tensor has the shape of hidden states, [B, S, H]."""
    shape = tensor.shape
    return shape is not None and len(shape) > 2 and isinstance(shape[-1], int) and shape[-1] >= _LEAST_WIDTH


def _hidden_states(nodes: list[gs.Node], kind: dict[int, Kind], made: dict[int, gs.Tensor]) -> set[int]:
    """Of the floats that are fed those that are activations, by all that is done with them.

    They reach products with a weight, normalisations and ops of ours, through arithmetic at most; or, as they are, a
    sum with an activation. Anything else may be a length or a time: 2049 - 2048 is 0 in float16, and 70,000 infinite.
    """
    users: dict[int, list[gs.Node]] = {}
    for node in nodes:
        for tensor in {id(t): t for t in node.inputs}.values():
            if kind.get(id(tensor)) == Kind.FED:
                users.setdefault(id(tensor), []).append(node)
    fed = [i for i, k in kind.items() if k == Kind.FED]
    tensors = made | {id(t): t for node in nodes for t in node.inputs}
    direct = {i for i in fed if i not in made}
    for node in nodes:
        given = [t for t in node.inputs if kind.get(id(t)) == Kind.FED]
        if node.op in (*_MOVES, "Cast", "Identity") and given and all(id(t) in direct for t in given):
            direct.update(id(t) for t in node.outputs if kind.get(id(t)) == Kind.FED)
    hidden: set[int] = set()
    for i in reversed(fed):  # in the order of the graph: users first
        tensor = tensors.get(i)
        alone = i in direct or (tensor is not None and _looks_hidden(tensor))  # as an output of the graph
        read = users.get(i, ())
        if (read or alone) and all(_as_activation(node, tensor, kind, hidden, i in direct) for node in read):
            hidden.add(i)
    return hidden


def _as_activation(node: gs.Node, tensor: gs.Tensor, kind: dict[int, Kind], hidden: set[int], direct: bool) -> bool:
    """Whether the node reads fed floats as an activation is read."""
    if node.domain not in DEFAULT_DOMAINS:
        width = tensor.shape[-1] if tensor.shape else None
        few = isinstance(width, int) and width < _LEAST_WIDTH
        return not few if node.domain == DOMAIN else _looks_hidden(tensor)
    if node.op in _LOOK_AT_SHAPE:
        return True
    if node.op in _PRODUCTS:
        return not _of_few(node)
    floats = [t for t in node.outputs if is_float(t)]
    if not floats or has_body(node):
        return False
    if any(kind[id(t)] == Kind.ACTIVATION for t in floats):
        return direct and node.op in ("Add", "Sub", "Mul")
    arithmetic = node.op in ("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Neg", "Sum", "Mean", "Cast", "Identity")
    reduced = node.op in (*_REDUCTIONS, "ReduceMax", "ReduceMin")
    if not (arithmetic or reduced or node.op in _MOVES or (node.op in _SMOOTH and _looks_hidden(tensor))):
        return False
    return all(id(t) in hidden for t in floats)


def _add_angles(nodes: list[gs.Node], kind: dict[int, Kind], wide: set[int]) -> None:
    """What is looked up in a table and is an angle: its sine hangs on every digit."""
    rows: set[int] = set()
    for node in nodes:
        given = [t for t in node.inputs if is_float(t) and not isinstance(t, gs.Constant)]
        of_rows = given and all(id(t) in rows or kind.get(id(t), Kind.ACTIVATION) <= Kind.FED for t in given)
        if _looks_up(node) or (of_rows and node.op in (*_ELEMENTWISE, *_MOVES)):
            rows.update(id(t) for t in node.outputs if is_float(t))
    for node in reversed(nodes):
        if node.op in _ANGLES or any(id(t) in wide and id(t) in rows for t in node.outputs):
            wide.update(id(t) for t in node.inputs if id(t) in rows)


def _add_scores(nodes: list[gs.Node], kind: dict[int, Kind], wide: set[int]) -> None:
    """Scores to which distances or places are added, up to their Softmax.

    Only differences count there: slope * place may be thousands in each score of a row, and the score is rounded so.
    """
    for node in nodes:
        if node.op not in ("Softmax", "LogSoftmax"):
            continue
        tensor, path = node.inputs[0], []
        while kind.get(id(tensor)) == Kind.ACTIVATION:
            above = producer(tensor)
            if above is None or above.domain not in DEFAULT_DOMAINS or above.op not in _ELEMENTWISE:
                break
            path.append(id(tensor))
            others = [t for t in above.inputs if kind.get(id(t)) != Kind.ACTIVATION]
            if above.op in ("Add", "Sub", "Sum") and any(id(t) in wide or _is_graded(t) for t in others):
                wide.update(path)
            scores = [t for t in above.inputs if kind.get(id(t)) == Kind.ACTIVATION]
            if len(scores) != 1:
                break
            tensor = scores[0]


def _is_graded(tensor: gs.Tensor) -> bool:
    """Whether a constant holds more than what hides and what does not."""
    if not isinstance(tensor, gs.Constant) or not is_float(tensor):
        return False
    return np.unique(np.asarray(as_weight(tensor).load(), np.float32)).size > 2


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
    given = [t for t in node.inputs if id(t) in wide]
    if node.domain == DOMAIN:  # a product of a few fed numbers
        fed = [t for t in given if kind[id(t)] == Kind.FED and t.shape]
        return any(isinstance(t.shape[-1], int) and t.shape[-1] < _LEAST_WIDTH for t in fed)
    floats = [t for t in node.outputs if is_float(t)]
    if any(id(t) in wide for t in floats) or node.op in _REDUCTIONS:
        return True
    if not floats or node.op in (*_ANGLES, "Softmax", "LogSoftmax"):
        return bool(given)
    if node.op in _PRODUCTS:
        return any(kind[id(t)] == Kind.FED for t in given) and _of_few(node)
    # x / |x|: the sum is beyond half precision, the quotient is not.
    return node.op in _ELEMENTWISE and any(kind[id(t)] >= Kind.FED for t in given)
