"""What is made of rows of zeros: bounds, or that it may be no finite number, as x / |x| is.

Padding is put back as zeros, where the original has numbers like any other. 0 times those is 0, but 0 times NaN is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import FusionGraph
from ..nodes import DEFAULT_DOMAINS
from ..spec import DOMAIN

# The least and the largest that an element may be; infinite where it may be any finite number.
Bounds = tuple[float, float]
_ZERO, _ANY, _FRACTION = (0.0, 0.0), (-math.inf, math.inf), (0.0, 1.0)
_TINY = 1e-30  # below that float32 may come to 0
_MOST = 1 << 20  # elements of a constant that is looked at


def bounds_of_rows(
    graph: FusionGraph, starts: Iterable[gs.Tensor], inside: Collection[int]
) -> dict[int, Bounds | None]:
    """Bounds of each tensor that comes of `starts`, rows of zeros, through nodes that are not `inside` (their ids).

    None where it may be infinite or NaN although what else goes into it is finite.
    """
    found: dict[int, Bounds | None] = {id(tensor): _ZERO for tensor in starts}
    for node in graph.gs.nodes:
        if id(node) not in inside and any(id(tensor) in found for tensor in node.inputs):
            made = _made(node, found)
            found.update((id(tensor), made) for tensor in node.outputs if id(tensor) not in found)
    return found


def _made(node: gs.Node, found: dict[int, Bounds | None]) -> Bounds | None:
    given = [_ANY if t.is_empty() else found[id(t)] if id(t) in found else _of_other(t) for t in node.inputs]
    if any(bounds is None for bounds in given):
        return None
    if node.domain == DOMAIN or node.op == "LayerNormalization":
        return _ANY if node.attrs.get("epsilon", 1e-5) > 0 else None
    rule = _RULES.get(node.op) if node.domain in DEFAULT_DOMAINS else None
    if rule is None:
        return _ANY
    # By what is no row of padding the original divides, too.
    return rule(node, given, [id(t) in found for t in node.inputs])


def _of_other(tensor: gs.Tensor) -> Bounds:
    if not isinstance(tensor, gs.Constant) or not 0 < math.prod(tensor.shape) <= _MOST:
        return _ANY
    values = np.asarray(tensor.values)
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        return _ANY
    return float(values.min()), float(values.max())


def _finite(low: float, high: float) -> Bounds:
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def _holds_zero(bounds: Bounds) -> bool:
    return bounds[0] <= _TINY and bounds[1] >= -_TINY


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b  # an infinite bound is no infinite number


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _add(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    return _finite(sum(low for low, _ in given), sum(high for _, high in given))


def _subtract(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    (a, b) = given
    return _finite(a[0] - b[1], a[1] - b[0])


def _multiply(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    made = _product(*given)
    return (0.0, made[1]) if node.inputs[0] is node.inputs[1] and made[0] < 0 else made


def _divide(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds | None:
    a, b = given
    if not _holds_zero(b):
        return _product(a, (1 / b[1] if b[1] else 0.0, 1 / b[0] if b[0] else 0.0))
    return None if rows[1] else _ZERO if a == _ZERO else _ANY


def _remainder(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds | None:
    return None if rows[1] and _holds_zero(given[1]) else _ANY


def _reciprocal(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds | None:
    return None if _holds_zero(given[0]) else (1 / given[0][1], 1 / given[0][0])


def _power(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds | None:
    (low, high), (least, largest) = given
    if low > _TINY:
        return 0.0, math.inf
    if least != largest or least < 0 or (low < 0 and least != int(least)):
        return None if rows[0] or rows[1] else _ANY
    if (low, high) == _ZERO and least > 0:
        return _ZERO
    return (0.0, math.inf) if least % 2 == 0 or low >= 0 else _ANY


def _root(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds | None:
    ((low, high),) = given
    return None if low < 0 else (math.sqrt(low), math.sqrt(high))


def _logarithm(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds | None:
    ((low, high),) = given
    return None if low <= _TINY else (math.log(low), math.log(high) if math.isfinite(high) else math.inf)


def _exponential(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    ((low, high),) = given
    return (math.exp(low) if -60 < low < 80 else 0.0), (math.exp(high) if high < 80 else math.inf)


def _absolute(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    low, high = given[0]
    ends = sorted((abs(low), abs(high)))
    return (0.0 if low < 0 < high else ends[0]), ends[1]


def _greatest(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    return max(low for low, _ in given), max(high for _, high in given)


def _least(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    return min(low for low, _ in given), min(high for _, high in given)


def _clipped(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    """The upper limit counts where it is below the lower one."""
    (low, high), *limits = given
    least = limits[0] if limits and not node.inputs[1].is_empty() else (-math.inf, -math.inf)
    most = limits[1] if len(limits) > 1 and not node.inputs[2].is_empty() else (math.inf, math.inf)
    return min(max(low, least[0]), most[0]), min(max(high, least[1]), most[1])


def _relu(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    return max(given[0][0], 0.0), max(given[0][1], 0.0)


def _joined(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    return min(low for low, _ in given), max(high for _, high in given)


def _moved(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    return given[0]


def _selected(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    return _joined(node, given[1:], rows)


def _cast(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    """To less precision what is next to 0 may come to it."""
    wide = str(node.outputs[0].dtype) in ("float32", "float64")
    return given[0] if wide or given[0] == _ZERO else _ANY


def _size_of_all(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    low, high = _absolute(node, given, rows)
    return low, (0.0 if high == 0 else math.inf)


def _total(node: gs.Node, given: Sequence[Bounds], rows: Sequence[bool]) -> Bounds:
    """Of as many numbers as there are: one at least."""
    low, high = given[0]
    return (low if low >= 0 else -math.inf), (high if high <= 0 else math.inf)


def _within(bounds: Bounds) -> Callable:
    return lambda node, given, rows: bounds


_SAME = (
    "Gather",
    "Identity",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Unsqueeze",
)
_RULES: dict[str, Callable[[gs.Node, Sequence[Bounds], Sequence[bool]], Bounds | None]] = {
    **dict.fromkeys(_SAME, _moved),
    **dict.fromkeys(("Sigmoid", "Softmax", "HardSigmoid"), _within(_FRACTION)),
    **dict.fromkeys(("Erf", "Sign", "Softsign", "Tanh"), _within((-1.0, 1.0))),
    **dict.fromkeys(("ReduceL1", "ReduceL2"), _size_of_all),
    "Abs": _absolute,
    "Add": _add,
    "Cast": _cast,
    "Clip": _clipped,
    "Concat": _joined,
    "Div": _divide,
    "Exp": _exponential,
    "Log": _logarithm,
    "Max": _greatest,
    "Min": _least,
    "Mod": _remainder,
    "Mul": _multiply,
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "ReduceSum": _total,
    "Relu": _relu,
    "Sqrt": _root,
    "Sub": _subtract,
    "Sum": _add,
    "Where": _selected,
}
