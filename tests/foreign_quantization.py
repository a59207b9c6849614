"""Models as other tools quantise them: ONNX Runtime's tools, and the form that TensorRT's Model Optimizer writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests import tiny_models

_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)


class Feeds:
    """Calibration data, as quantize_static reads it."""

    def __init__(self, model: Path, seed: int) -> None:
        names = {value.name for value in onnx.load(model, load_external_data=False).graph.input}
        given = [tiny_models.inputs(3, 11, seed + i) for i in range(3)]
        self._left = [{name: array for name, array in feed.items() if name in names} for feed in given]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def dynamic(source: Path, target: Path, rng: np.random.Generator) -> dict[str, Any]:
    """By quantize_dynamic, with options drawn at random among those that give weights without a zero; the options.

    Weights have 7 bits, because without VNNI ONNX Runtime's own sums saturate.
    """
    from onnxruntime import quantization

    unsigned = bool(rng.random() < 0.4)
    options = {
        "per_channel": bool(rng.random() < 0.5),
        "reduce_range": True,
        "weight_type": quantization.QuantType.QUInt8 if unsigned else quantization.QuantType.QInt8,
        "extra_options": {"WeightSymmetric": True} if unsigned else {},
    }
    quantization.quantize_dynamic(source, target, **options)
    return options


def static(source: Path, target: Path, rng: np.random.Generator, **changed: Any) -> dict[str, Any]:
    """By quantize_static, in QDQ form, the projections' inputs and weights alone; the options drawn."""
    from onnxruntime import quantization

    types = (quantization.QuantType.QInt8, quantization.QuantType.QUInt8)
    options = {
        "quant_format": quantization.QuantFormat.QDQ,
        "op_types_to_quantize": ["MatMul", "Gemm"],
        "per_channel": bool(rng.random() < 0.5),
        "activation_type": types[rng.integers(2)],
        "weight_type": quantization.QuantType.QInt8,
        "nodes_to_exclude": attention_products(source),
        "extra_options": {
            "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"],
            "ActivationSymmetric": bool(rng.random() < 0.5),
        },
    }
    options |= changed
    quantization.quantize_static(source, target, Feeds(source, int(rng.integers(1 << 20))), **options)
    return options


def attention_products(source: Path) -> list[str]:
    """The names of the products of two tensors that are computed."""
    graph = onnx.load(source).graph
    constants = {tensor.name for tensor in graph.initializer}
    return [n.name for n in graph.node if n.op_type == "MatMul" and not constants & set(n.input)]


def by_model_optimizer(source: Path, target: Path, rng: np.random.Generator, dtype: np.dtype) -> None:
    """As Model Optimizer's torch export has it: QuantizeLinear and DequantizeLinear before each projection.

    Weights are stored as floats [N, K], rounded by nodes, one scale for each output channel (of 8-bit floats one for
    all), and transposed.
    """
    model = onnx.load(source)
    (opset,) = (o for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if opset.version < 19:
        model = onnx.version_converter.convert_version(model, 19)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    largest = 127.0 if dtype == np.int8 else 448.0
    nodes: list[onnx.NodeProto] = []
    scales: dict[str, np.ndarray] = {}  # of tensors that are multiplied

    def constant(name: str, array: np.ndarray) -> str:
        if array.dtype == _FLOAT8:
            made = helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, array.shape, array.tobytes(), raw=True)
        else:
            made = numpy_helper.from_array(array, name)
        model.graph.initializer.append(made)
        return name

    def pair(tensor: str, stem: str, scale: np.ndarray, **axis: int) -> str:
        names = [constant(f"{stem}_scale", scale), constant(f"{stem}_zero", np.zeros(scale.shape, dtype))]
        nodes.append(helper.make_node("QuantizeLinear", [tensor, *names], [f"{stem}_q"], f"{stem}/Q", **axis))
        nodes.append(helper.make_node("DequantizeLinear", [f"{stem}_q", *names], [f"{stem}_dq"], f"{stem}/DQ", **axis))
        return f"{stem}_dq"

    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights and weights[node.input[1]].ndim == 2:
            stem, weight = node.output[0], np.ascontiguousarray(weights[node.input[1]].T)
            magnitude = np.abs(weight).max(axis=1) if dtype == np.int8 else np.abs(weight).max()
            scale = (np.asarray(magnitude) / largest).astype(np.float32)
            found = scales.setdefault(node.input[0], np.array(rng.uniform(1, 4) / largest, np.float32))
            x = pair(node.input[0], f"{stem}_x", found)
            stored = constant(f"{stem}_w", weight)
            w = pair(stored, f"{stem}_weight", scale, **({"axis": 0} if scale.ndim else {}))
            nodes.append(helper.make_node("Transpose", [w], [f"{stem}_wt"], perm=[1, 0]))
            node.input[0], node.input[1] = x, f"{stem}_wt"
        nodes.append(node)
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(made)
    onnx.save(model, target)
