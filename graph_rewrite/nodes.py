"""Small questions about nodes and tensors of an onnx-graphsurgeon graph, and the one way a match fails."""

from __future__ import annotations

import math
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
    if node.op not in words:
        return node.op
    value = next((value for tensor in node.inputs if (value := scalar(tensor)) is not None), None)
    return node.op if value is None else f"{node.op} {words[node.op]} {value:.6g}"


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
    """The value of a constant number of one element, else None. What is computed of constants is one by now."""
    if not isinstance(tensor, gs.Constant) or math.prod(tensor.shape) != 1 or not is_number(tensor.dtype):
        return None
    return float(np.asarray(tensor.values).reshape(-1)[0])


def is_number(dtype: Any) -> bool:
    """Whether elements of this type are numbers that NumPy, or ml_dtypes, computes with."""
    return dtype is not None and not isinstance(dtype, int) and np.dtype(dtype).kind in "biufV"


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
