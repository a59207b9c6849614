"""Small questions about nodes and tensors of an onnx-graphsurgeon graph, and the one way a match fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

DIALECT = "bertfuse.dialect"
DEFAULT_DOMAINS = (None, "", "ai.onnx")


class NoMatch(Exception):
    """A match that broke at `node`: what was `found` there, what was `wanted` instead, and maybe a `hint` what to do.

    `at` is the node itself (None where `node` is a tensor's name). `depth` is how many nodes from its
    root matching came (infinite: not while matching).
    """

    def __init__(self, node: gs.Node | str, found: str, hint: str = "", *, wanted: str = "") -> None:
        super().__init__(found)
        self.at = node if isinstance(node, gs.Node) else None
        self.node = node if isinstance(node, str) else node_name(node)
        self.found = found
        self.wanted = wanted
        self.hint = hint
        self.depth = math.inf

    @property
    def reason(self) -> str:
        """What was found and what was wanted, in one line."""
        return f"{self.found}, expected {self.wanted}" if self.wanted else self.found


def node_name(node: gs.Node) -> str:
    """How a node is called in messages: its name, or type and output where it has none."""
    return node.name or f"{node.op}->{node.outputs[0].name if node.outputs else '?'}"


def describe(node: gs.Node) -> str:
    """What a node does: "Div by 11.3137"."""
    words = {"Div": "by", "Mul": "by", "Pow": "to", "Add": "of", "Sub": "of"}
    values = [value for tensor in node.inputs if (value := scalar(tensor)) is not None]
    return f"{node.op} {words[node.op]} {values[0]:.6g}" if node.op in words and values else node.op


def data_type(dtype: Any) -> int:
    """ONNX's number for the dtype of a tensor; onnx-graphsurgeon has numbers itself for what NumPy does not know."""
    return dtype if isinstance(dtype, int) else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


_FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
}


def is_float_cast(node: gs.Node) -> bool:
    """Whether the node turns one float type into another."""
    dtype = node.inputs[0].dtype if node.op == "Cast" else None
    return dtype is not None and data_type(dtype) in _FLOATS and data_type(node.attrs["to"]) in _FLOATS


def scalar(tensor: gs.Tensor) -> float | None:
    """The value of a constant of one element, or of one computed from constants and known sizes; else None."""
    if isinstance(tensor, gs.Constant):
        return float(np.asarray(tensor.values).reshape(-1)[0]) if math.prod(tensor.shape) == 1 else None
    values = _computed(tensor, _ARITHMETIC_DEEP)
    return float(values[0]) if values is not None and len(values) == 1 and np.isfinite(values[0]) else None


def _computed(tensor: gs.Tensor, depth: int) -> np.ndarray | None:
    """A few numbers as float64, NaN where they hang on a dynamic axis: 1 / sqrt(head size) in older exporters' way."""
    if isinstance(tensor, gs.Constant):
        small = math.prod(tensor.shape) <= _FEW and np.dtype(tensor.dtype).kind in "iuf"
        return np.asarray(tensor.values, np.float64).reshape(-1) if small else None
    node, shape = producer(tensor), tensor.shape
    few = shape is not None and all(isinstance(d, int) for d in shape) and math.prod(shape) <= _FEW
    if node is None or depth == 0 or not few or node.domain not in DEFAULT_DOMAINS:
        return None
    if node.op == "Shape":
        dims = node.inputs[0].shape
        if dims is None:
            return None
        sizes = np.array([d if isinstance(d, int) else np.nan for d in dims], np.float64)
        return sizes[node.attrs.get("start", 0) : node.attrs.get("end", len(sizes))]
    if node.op not in _ARITHMETIC:
        return None
    given = [_computed(t, depth - 1) for t in node.inputs if not t.is_empty()]
    whole = tensor.dtype is None or np.dtype(tensor.dtype).kind != "f"
    if any(values is None for values in given) or (node.op == "Div" and whole):
        return None
    with np.errstate(all="ignore"):
        try:
            return np.atleast_1d(_ARITHMETIC[node.op](*given))
        except (IndexError, TypeError, ValueError):  # forms that are not looked into
            return None


def _sliced(values: np.ndarray, starts: np.ndarray, ends: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    limits = [int(np.clip(limit[0], -_FEW - 1, _FEW + 1)) for limit in (starts, ends)]
    return values[slice(*limits, int(rest[1][0]) if len(rest) > 1 else None)]


# Of Squeeze, Unsqueeze and Reshape the second input, of numbers in a row, says nothing.
_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "Slice": _sliced,
    "Gather": lambda values, index: values[index.astype(np.int64)],
    "Cast": lambda values: values,
    "Squeeze": lambda values, *_: values,
    "Unsqueeze": lambda values, *_: values,
    "Reshape": lambda values, *_: values,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Neg": np.negative,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
}
_ARITHMETIC_DEEP, _FEW = 12, 8


def matrix(tensor: gs.Tensor) -> tuple[gs.Constant, bool] | None:
    """The constant matrix that `tensor` is, and whether it is that one transposed; None where it is none."""
    node, source = producer(tensor), tensor
    if node is not None and node.op == "Transpose" and list(node.attrs.get("perm", [1, 0])) == [1, 0]:
        source = node.inputs[0]
    if not isinstance(source, gs.Constant) or len(source.shape) != 2:
        return None
    return source, source is not tensor


def check_rank(node: gs.Node, x: gs.Tensor) -> None:
    """Raise NoMatch if what `node` gives has more axes than `x`: constants of one element may add axes of 1."""
    shape = node.outputs[0].shape
    if shape is not None and x.shape is not None and len(shape) != len(x.shape):
        raise NoMatch(node, f"has {len(shape)} axes", wanted=f"{len(x.shape)}, as '{x.name}' has")


def producer(tensor: gs.Tensor) -> gs.Node | None:
    return tensor.inputs[0] if tensor.inputs else None
