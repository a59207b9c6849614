"""A fused graph in another float type."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from .graph import FusionGraph, as_weight
from .weights import cast_array

DTYPES = {
    "fp32": onnx.TensorProto.FLOAT,
    "fp16": onnx.TensorProto.FLOAT16,
    "bf16": onnx.TensorProto.BFLOAT16,
}
_FLOATS = {onnx.helper.tensor_dtype_to_np_dtype(t): t for t in DTYPES.values()}


def convert(graph: FusionGraph, dtype: str) -> None:
    """Turn every float32, float16 and bfloat16 tensor of the graph, its inputs and outputs included, into `dtype`.

    Finite constants beyond the range of float16 (the -3.4e38 of masks) become its largest, those too small for it (the
    1e-9 under a division) its smallest. Kernels and function bodies accumulate in float32 whatever the type.
    """
    target = DTYPES[dtype]
    numpy_target = onnx.helper.tensor_dtype_to_np_dtype(target)
    for tensor in (*graph.gs.tensors().values(), *graph.defaults.values()):
        if not _is_other_float(tensor.dtype, target):
            continue
        if isinstance(tensor, gs.Constant):
            weight = as_weight(tensor).cast(target)
            tensor.values = weight if weight.nbytes >= 1024 else weight.load()
        else:
            tensor.dtype = numpy_target
    for node in graph.gs.nodes:
        if node.op == "Cast" and _is_other_float(node.attrs["to"], target):
            node.attrs["to"] = target
        value = node.attrs.get("value")
        if isinstance(value, gs.Constant) and _is_other_float(value.dtype, target):
            node.attrs["value"] = gs.Constant(value.name, cast_array(np.asarray(value.values), target))


def _is_other_float(dtype: object, target: int) -> bool:
    if dtype is None:
        return False
    data_type = dtype if isinstance(dtype, int) else _FLOATS.get(np.dtype(dtype))
    return data_type in DTYPES.values() and data_type != target
