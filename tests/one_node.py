"""A model of one fused node, and a run of it in ONNX Runtime into outputs that were poisoned before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from bertfuse.graph_rewrite.spec import DOMAIN, NODE_MARKERS, OP_VERSION, TensorSpec
from tests.cases import FLOATS, Case, Shape, shape_of

NODE_NAME = "layer/fused"
_ONNX_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
}


def _dtype(case: Case, output: TensorSpec) -> np.dtype:
    if output.dtype == "S":
        return np.dtype(np.float32)
    return case.inputs["y_zero_point"].dtype if output.dtype == "Q" else np.dtype(FLOATS[case.dtype])


def _declared(case: Case, shape: Sequence[int], name: str, how: str) -> list[int | str] | None:
    if how == "unknown":
        return None
    return list(shape) if how == "known" else [f"{name}_{axis}" for axis in range(len(shape))]


def model(case: Case, *, shapes: str = "free", constants: bool = False) -> onnx.ModelProto:
    """The case's op as a model. `shapes` of the inputs: "known", "free" (named) or "unknown" (not even the rank).

    `constants` makes initialisers of the inputs that fusion wants as such, as in a fused model.
    """
    given = {name: array for name, array in case.inputs.items() if array is not None}
    weights = {tensor.name for tensor in case.spec.inputs if constants and tensor.constant and tensor.name in given}
    inputs = [
        helper.make_tensor_value_info(name, _ONNX_TYPES[array.dtype.name], _declared(case, array.shape, name, shapes))
        for name, array in given.items()
        if name not in weights
    ]
    described = case.spec.outputs_of(given)
    outputs = [helper.make_tensor_value_info(t.name, _ONNX_TYPES[_dtype(case, t).name], None) for t in described]
    names = [tensor.name if tensor.name in given else "" for tensor in case.spec.inputs]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(
        case.op,
        names,
        [tensor.name for tensor in described],
        name=NODE_NAME,
        domain=DOMAIN,
        **NODE_MARKERS,
        **case.attributes,
    )
    initializers = [
        helper.make_tensor(
            name, _ONNX_TYPES[given[name].dtype.name], given[name].shape, given[name].tobytes(), raw=True
        )
        for name in weights
    ]
    graph = helper.make_graph([node], "one_node", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, OP_VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session(
    proto: onnx.ModelProto, library: Path, provider: str = "CPUExecutionProvider"
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=[provider])


def _value(array: np.ndarray) -> onnxruntime.OrtValue:
    bits = array.view(f"uint{8 * array.itemsize}") if array.dtype.name in ("bfloat16", "float8_e4m3fn") else array
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_TYPES[array.dtype.name])


def run(runner: onnxruntime.InferenceSession, case: Case, output_shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Runs the case on the CPU into arrays of NaN of those shapes: what the kernel does not write stays NaN."""
    binding = runner.io_binding()
    fed = {entry.name for entry in runner.get_inputs()}
    for name, array in case.inputs.items():
        if array is not None and name in fed:
            binding.bind_ortvalue_input(name, _value(np.require(array, requirements="C")))
    described = case.spec.outputs_of([name for name, array in case.inputs.items() if array is not None])
    outputs = []
    for tensor, shape in zip(described, output_shapes, strict=True):
        dtype = _dtype(case, tensor)
        outputs.append(np.full(shape, 85, dtype) if dtype == np.int8 else np.full(shape, np.nan, dtype))
    for tensor, array in zip(described, outputs, strict=True):
        binding.bind_ortvalue_output(tensor.name, _value(array))
    runner.run_with_iobinding(binding)
    return outputs


def as_float64(inputs: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
    """The inputs for the oracle: floats widened, indices as they are."""
    return {
        name: array if array is None or array.dtype.kind == "i" else array.astype(np.float64)
        for name, array in inputs.items()
    }


def output_shapes(case: Case, shape: Shape) -> list[tuple[int, ...]]:
    return [shape_of(tensor, shape) for tensor in case.spec.outputs]
