"""The exporters' model as a file, checked; of its weights there is never a second copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from bertfuse.errors import ExportError, first_line
from bertfuse.graph_rewrite.io import write
from bertfuse.graph_rewrite.weights import MIN_BYTES, Weight

if TYPE_CHECKING:
    import onnx_ir

_BYTES = {"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "INT32"}  # types whose elements are whole bytes


def save(exported: onnx_ir.Model, path: Path) -> None:
    """Writes `path`, and weights of 2 GB and more to a file beside it. Raises ExportError for an invalid model."""
    import onnx_ir

    weights: dict[str, Weight] = {}
    for name, value in exported.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < MIN_BYTES or tensor.dtype.name not in _BYTES:
            continue
        shape = list(tensor.shape.numpy())
        weights[name] = Weight(int(tensor.dtype), shape, tensor.numpy)
        # What is written as a name, a type and a shape.
        value.const_value = onnx_ir.ExternalTensor("", 0, tensor.nbytes, tensor.dtype, name=name, shape=tensor.shape)
    skeleton = onnx_ir.to_proto(exported)
    for tensor in skeleton.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
    _check(skeleton, weights)
    write(skeleton, weights, path)


def _check(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Large weights are inputs here: the checker would want their data, and read nothing of it but its size."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    del model.graph.initializer[:]
    inputs = {value.name for value in model.graph.input}
    for tensor in skeleton.graph.initializer:
        if tensor.name not in weights:
            model.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # ValidationError or InferenceError, which share no base
        raise ExportError(f"the exporter wrote an invalid model: {first_line(error)}; try another exporter") from error
