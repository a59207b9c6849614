"""Which attributes of the operators that fusion recognises it knows, and which of their values it handles.

An operator with any other attribute, another value, or in a version that came after those listed may be another
function than the one it is taken for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from .domains import MICROSOFT, called
from .nodes import DIALECT, NoMatch
from .spec import DOMAIN

ANY = None  # every value, which whoever recognises the operator looks at
_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


@dataclass(frozen=True)
class _Known:
    """`version` is the newest known one; `attributes` maps names to the values that are handled."""

    version: int
    attributes: dict[str, tuple[Any, ...] | None] = field(default_factory=dict)


_ONNX = {
    "Add": _Known(14),
    "Sub": _Known(14),
    "Mul": _Known(14),
    "Div": _Known(14),
    "Pow": _Known(15),
    "Sqrt": _Known(13),
    "Reciprocal": _Known(13),
    "Neg": _Known(13),
    "Erf": _Known(13),
    "Tanh": _Known(13),
    "Sigmoid": _Known(13),
    "Swish": _Known(24, {"alpha": ANY}),
    "Where": _Known(16),
    "IsNaN": _Known(20),
    "MatMul": _Known(13),
    "Gemm": _Known(13, {"transA": (0,), "transB": (0, 1), "alpha": (1.0,), "beta": (1.0,)}),
    "Gelu": _Known(20, {"approximate": ("none", "tanh")}),
    "ReduceMean": _Known(18, {"axes": ANY, "keepdims": (1,), "noop_with_empty_axes": (0,)}),
    "LayerNormalization": _Known(17, {"axis": ANY, "epsilon": ANY, "stash_type": (onnx.TensorProto.FLOAT,)}),
    "RMSNormalization": _Known(23, {"axis": ANY, "epsilon": ANY, "stash_type": (onnx.TensorProto.FLOAT,)}),
    "Softmax": _Known(13, {"axis": ANY}),
    "Attention": _Known(
        25,
        {
            "is_causal": (0,),
            "kv_num_heads": ANY,
            "left_window_size": (-1,),
            "q_num_heads": ANY,
            "qk_matmul_output_mode": ANY,  # of an output that nothing uses
            "right_window_size": (-1,),
            "scale": ANY,
            "softcap": (0.0,),
            "softmax_precision": (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE),
        },
    ),
    # Between float types, to which the last two do not apply.
    "Cast": _Known(28, {"to": _TYPES, "saturate": ANY, "round_mode": ANY}),
    "QuantizeLinear": _Known(
        28, {"axis": ANY, "block_size": (0,), "output_dtype": ANY, "precision": (0,), "saturate": (1,)}
    ),
    "DequantizeLinear": _Known(28, {"axis": ANY, "block_size": (0,), "output_dtype": ANY}),
    "DynamicQuantizeLinear": _Known(11),
    "MatMulInteger": _Known(10),
    "Concat": _Known(13, {"axis": ANY}),
    "Expand": _Known(13),
    "Identity": _Known(25),
    "Reshape": _Known(25, {"allowzero": (0, 1)}),
    "Transpose": _Known(25, {"perm": ANY}),
    "Split": _Known(18, {"axis": ANY, "num_outputs": ANY}),
    "Slice": _Known(13),
    "Gather": _Known(13, {"axis": ANY}),
    "GatherElements": _Known(13, {"axis": ANY}),
    "Tile": _Known(13),
    "Squeeze": _Known(25),
    "Unsqueeze": _Known(25),
}
_MICROSOFT = dict.fromkeys(called(MICROSOFT, "Gelu", "FastGelu"), _Known(1))


def check(node: gs.Node, opset: int) -> None:
    """Raise NoMatch, with the attribute's name, for an operator that is not known in this form."""
    if node.domain in (DOMAIN, DIALECT):
        return
    if node.domain == MICROSOFT:
        known, version = _MICROSOFT.get(node.op), 1
    else:
        known, version = _ONNX.get(node.op), _version(node.op, opset)
    if known is None:
        raise NoMatch(node, f"{node.op} is not known", wanted="an operator whose attributes are known")
    if version > known.version:
        raise NoMatch(node, f"{node.op} is of opset {version}", wanted=f"of opset {known.version} or older")
    for name, value in node.attrs.items():
        if name not in known.attributes:
            raise NoMatch(node, f"has the attribute '{name}', which is not known", wanted="known attributes alone")
        handled = known.attributes[name]
        if handled is not ANY and value not in handled:
            raise NoMatch(node, f"{name} is {value!r}", wanted=" or ".join(map(repr, handled)))


def _version(op: str, opset: int) -> int:
    """The opset in which the operator took the form that it has in `opset`."""
    try:
        return onnx.defs.get_schema(op, opset, "").since_version
    except onnx.defs.SchemaError:
        return opset
