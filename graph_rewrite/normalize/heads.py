"""Following the heads by doing: the views between a projection and a product are run on numbered elements.

Whatever sequence of Reshape, Transpose, Split, Slice, Gather and Squeeze an exporter writes, what counts is where each
element of the projection's output ends up. That also tells packed projections apart: which of their columns are Q's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..eight_bit import check_same_rounding, rows_together
from ..graph import as_weight
from ..nodes import NoMatch, is_float_cast, producer, scalar
from ..shapes import Dim, monomial
from ..weights import Weight

# Batch and sequence of the runs. Two, so that a constant of the graph is not taken for one of them.
_RUNS = ((2, 3), (5, 7))
_MAX_ELEMENTS = 1 << 25
_TO_THE_END = (1 << 31) - 1  # from here on, and below its negative, a bound of a Slice is no length

_BATCH, _SEQUENCE, _HEADS, _SIZE = "batch", "sequence", "heads", "size"


@dataclass
class View:
    """`tensor` as `base` seen through `nodes` (views and scalings, first to last), the scalings multiplied up."""

    tensor: gs.Tensor
    base: gs.Tensor
    nodes: list[gs.Node]
    scale: float


def trace(tensor: gs.Tensor) -> View:
    """Walk up through views and multiplications by a scalar."""
    base, nodes, scale = tensor, [], 1.0
    while (node := producer(base)) is not None:
        if is_view(node):
            base, nodes = node.inputs[0], [node, *nodes]
        elif (step := scaling(node)) is not None:
            base, scale, nodes = step[0], scale * step[1], [node, *nodes]
        else:
            break
    return View(tensor, base, nodes, scale)


def is_view(node: gs.Node) -> bool:
    """Whether the node only moves elements of its first input, or changes their float type."""
    return (node.op in _VIEWS and not isinstance(node.inputs[0], gs.Constant)) or is_float_cast(node)


def scaling(node: gs.Node) -> tuple[gs.Tensor, float] | None:
    """(x, factor) when the node multiplies x by a constant scalar or divides it by one."""
    if node.op == "Mul":
        for x, factor in (node.inputs, node.inputs[::-1]):
            if (value := scalar(factor)) is not None and not _adds_axes(factor, x):
                return x, value
    if node.op == "Div" and (value := scalar(node.inputs[1])) and not _adds_axes(*node.inputs[::-1]):
        return node.inputs[0], 1.0 / value
    return None


def _adds_axes(number: gs.Tensor, x: gs.Tensor) -> bool:
    """Whether a constant of one element has more axes than `x`: the result has them, too."""
    return len(number.shape) > (1 if x.shape is None else len(x.shape))


def columns(view: View, heads: int, transposed: bool, side_by_side: bool, what: str, product: gs.Node) -> np.ndarray:
    """Which columns of `view.base` [B, S, W] arrive as which head and place: integers [heads, size].

    The view is [B, heads, S, size] or [B*heads, S, size], with `transposed` the last two axes exchanged; with
    `side_by_side` it is [B, S, heads*size]. Raises NoMatch with the layout that was found when it is anything else.
    """
    found = None
    where = view.nodes[-1] if view.nodes else product
    wanted = "[batch, heads, size, sequence]" if transposed else "[batch, heads, sequence, size]"
    for shape in dict.fromkeys(base_shape(view.base, sizes) for sizes in _RUNS):
        array = _run(view, shape)
        by_head = _by_head(array, shape, heads, transposed, side_by_side)
        if by_head is None:
            raise NoMatch(where, f"{what} arrives as {_describe(array, shape)}", wanted=wanted)
        if found is not None and not np.array_equal(found, by_head):
            raise NoMatch(where, f"{what} takes other columns for another length", wanted="the same columns")
        found = by_head
    return found


def _by_head(
    array: np.ndarray, shape: tuple[int, int, int], heads: int, transposed: bool, side_by_side: bool
) -> np.ndarray | None:
    """The column of each [head, place] when numbered elements of [B, S, W] are arranged by head, else None."""
    batch, sequence, width = shape
    if not side_by_side and array.shape[:-2] not in ((batch, heads), (batch * heads,)):
        return None  # where axes have one element each, numbers do not tell which is which
    try:
        if side_by_side:
            by_head = array.reshape(batch, sequence, heads, -1).transpose(0, 2, 1, 3)
        else:
            by_head = array.reshape(batch, heads, *array.shape[-2:])
            by_head = by_head.swapaxes(2, 3) if transposed else by_head
        rows = np.arange(batch * sequence).reshape(batch, 1, sequence, 1) * width
        right = array.ndim in (3, 4) and np.array_equal(by_head, rows + by_head[:1, :, :1, :])
    except (ValueError, IndexError):
        return None
    return by_head[0, :, 0, :] if right and by_head.size else None


def head_count(view: View) -> int:
    """How many heads the view of Q has: its second axis, or what the first holds besides the batch."""
    shape = base_shape(view.base, _RUNS[0])
    array = _run(view, shape)
    return array.shape[1] if array.ndim == 4 else max(array.shape[0] // shape[0], 1) if array.ndim == 3 else 1


def rank(view: View) -> int:
    """The number of axes that the view has."""
    return _run(view, base_shape(view.base, _RUNS[0])).ndim


def base_shape(base: gs.Tensor, sizes: tuple[int, int]) -> tuple[int, int, int]:
    """[B, S, W] of a projection's output in numbers; fixed axes keep theirs."""
    shape = base.shape
    if shape is None or len(shape) != 3 or not isinstance(shape[2], int) or shape[2] == 0:
        raise NoMatch(producer(base) or base.name, f"'{base.name}' is {shape}", wanted="[B, S, H]")
    batch, sequence = (dim if isinstance(dim, int) else size for dim, size in zip(shape[:2], sizes, strict=True))
    if not 0 < batch * sequence * shape[2] <= _MAX_ELEMENTS:
        raise NoMatch(producer(base) or base.name, f"'{base.name}' is {shape}", wanted="a size that can be tried out")
    return batch, sequence, shape[2]


def packed(linears: dict[str, gs.Node], columns: dict[str, np.ndarray]) -> tuple[Weight, np.ndarray]:
    """The rows of the projections' weights, and their biases, that give these columns of each side by side."""
    weights = {name: as_weight(node.inputs[1]).rows(columns[name].ravel()) for name, node in linears.items()}
    other = check_same_rounding(weights)
    if other is not None:
        name, how = other
        raise NoMatch(linears[name], f"{name.upper()} {how}", wanted="one rounding of what all of them project")
    return rows_together(list(weights.values())), np.concatenate(
        [_bias(linears[k])[columns[k].ravel()] for k in linears]
    )


def _bias(linear: gs.Node) -> np.ndarray:
    weight = linear.inputs[1]
    if len(linear.inputs) > 2:
        return np.asarray(linear.inputs[2].values)
    return np.zeros(weight.shape[0], weight.dtype)


def merges(nodes: list[gs.Node], base: gs.Tensor, by_head: tuple[int, int], rank: int) -> bool:
    """Whether `nodes` lead from [B, heads, S, size], or of rank 3 [B*heads, S, size], to [B, S, heads*size]."""
    heads, size = by_head
    for batch, sequence, _ in dict.fromkeys(base_shape(base, sizes) for sizes in _RUNS):
        merged = np.arange(batch * sequence * heads * size, dtype=np.int32).reshape(batch, sequence, heads, size)
        start = merged.transpose(0, 2, 1, 3)
        start = start if rank == 4 else start.reshape(batch * heads, sequence, size)
        result = _moved(start, nodes, _symbols(base, (batch, sequence)), [0] * len(nodes))
        if not np.array_equal(result, merged.reshape(batch, sequence, heads * size)):
            return False
    return True


def _run(view: View, shape: tuple[int, int, int]) -> np.ndarray:
    chosen = [n.outputs.index(t) for n, t in zip(view.nodes, _path(view), strict=True)]
    return _moved(
        np.arange(np.prod(shape), dtype=np.int32).reshape(shape), view.nodes, _symbols(view.base, shape[:2]), chosen
    )


def _path(view: View) -> list[gs.Tensor]:
    """The output of each node that the view goes through."""
    return [*(node.inputs[0] if is_view(node) else scaling(node)[0] for node in view.nodes[1:]), view.tensor][
        : len(view.nodes)
    ]


def _moved(array: np.ndarray, nodes: list[gs.Node], symbols: dict[str, int], chosen: list[int]) -> np.ndarray:
    for index, node in enumerate(nodes):
        if node.op in _VIEWS:  # not a scaling or a change of type
            try:
                array = _VIEWS[node.op](node, array, symbols, chosen[index])
            except (ValueError, IndexError, np.exceptions.AxisError) as error:
                raise NoMatch(node, f"cannot take {list(array.shape)}: {error}", wanted="heads kept apart") from error
    return array


def _symbols(base: gs.Tensor, sizes: tuple[int, int]) -> dict[str, int]:
    return {dim: size for dim, size in zip(base.shape[:2], sizes, strict=True) if isinstance(dim, str)}


def _constant(node: gs.Node, index: int) -> np.ndarray | None:
    if len(node.inputs) <= index or node.inputs[index].is_empty():
        return None
    if not isinstance(node.inputs[index], gs.Constant):
        raise NoMatch(node, f"its input '{node.inputs[index].name}' is computed", wanted="a constant")
    return np.asarray(node.inputs[index].values)


def _reshape(node: gs.Node, array: np.ndarray, symbols: dict[str, int], chosen: int) -> np.ndarray:
    if isinstance(node.inputs[1], gs.Constant):
        wanted = np.asarray(node.inputs[1].values)
        if wanted.ndim != 1:
            raise NoMatch(node, f"its shape is a constant {list(wanted.shape)}", wanted="a list of sizes")
        shape = [int(size) for size in wanted]
        if not node.attrs.get("allowzero", 0):
            shape = [array.shape[i] if size == 0 else size for i, size in enumerate(shape)]
        return array.reshape(shape)
    inferred = node.outputs[0].shape
    if inferred is None:
        raise NoMatch(node, "its output's shape cannot be inferred", wanted="a shape")
    shape = [_size(dim, symbols) for dim in inferred]
    if shape.count(-1) > 1:
        raise NoMatch(node, f"reshapes to {inferred}", wanted="at most one axis that is not known")
    return array.reshape(shape)


def _size(dim: Dim, symbols: dict[str, int]) -> int:
    factors = monomial(dim)
    if factors is None or any(symbol not in symbols for symbol in factors[1]):
        return -1
    return factors[0] * int(np.prod([symbols[symbol] for symbol in factors[1]], dtype=np.int64))


def _transpose(node: gs.Node, array: np.ndarray, symbols: dict[str, int], chosen: int) -> np.ndarray:
    return array.transpose(node.attrs.get("perm"))


def _split(node: gs.Node, array: np.ndarray, symbols: dict[str, int], chosen: int) -> np.ndarray:
    axis, sizes = node.attrs.get("axis", 0), _constant(node, 1)
    if sizes is None:
        size = -(-array.shape[axis] // len(node.outputs))
        return np.split(array, np.arange(size, array.shape[axis], size), axis)[chosen]
    if sum(sizes) != array.shape[axis]:  # as many as there are for another length
        raise NoMatch(node, f"splits {array.shape[axis]} into {sizes.tolist()}", wanted="parts of every length")
    return np.split(array, np.cumsum(sizes)[:-1], axis)[chosen]


def _slice(node: gs.Node, array: np.ndarray, symbols: dict[str, int], chosen: int) -> np.ndarray:
    starts, ends, axes, steps = (_constant(node, index) for index in (1, 2, 3, 4))
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    taken = [slice(None)] * array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step <= 0:
            raise NoMatch(node, f"takes a step of {step}", wanted="a step of 1 or more")
        # Nothing is cut off here, but may be where that axis is longer.
        if any(array.shape[axis] < abs(int(bound)) < _TO_THE_END for bound in (start, end)):
            raise NoMatch(node, f"takes [{start}:{end}] of {array.shape[axis]}", wanted="bounds within the axis")
        taken[axis] = slice(int(start), int(end), int(step))
    return array[tuple(taken)]


def _gather(node: gs.Node, array: np.ndarray, symbols: dict[str, int], chosen: int) -> np.ndarray:
    return array.take(_constant(node, 1), node.attrs.get("axis", 0))


def _squeeze(node: gs.Node, array: np.ndarray, symbols: dict[str, int], chosen: int) -> np.ndarray:
    axes = _constant(node, 1)
    if axes is None:
        raise NoMatch(node, "squeezes every axis of one element", wanted="named axes")
    return array.squeeze(tuple(int(axis) for axis in axes))


def _unsqueeze(node: gs.Node, array: np.ndarray, symbols: dict[str, int], chosen: int) -> np.ndarray:
    return np.expand_dims(array, tuple(int(axis) for axis in _constant(node, 1)))


_VIEWS = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}


def _describe(array: np.ndarray, shape: tuple[int, int, int]) -> str:
    """What moves along each axis of numbered elements of [B, S, W]."""
    names = []
    for axis in range(array.ndim):
        line = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)[:, 0] if array.size else np.zeros(0, int)
        batch, sequence, column = np.unravel_index(line, shape)
        moving = [name for name, part in ((_BATCH, batch), (_SEQUENCE, sequence)) if np.ptp(part)] if line.size else []
        steps = set(np.abs(np.diff(column))) - {0}
        moving += [_SIZE if steps == {1} else _HEADS] if steps else []
        names.append("*".join(moving) or "1")
    return f"[{', '.join(names)}]"
