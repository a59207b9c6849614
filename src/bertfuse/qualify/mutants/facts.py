"""What mutating a model needs to know of it: types and shapes of all tensors, and which nodes decide what."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from bertfuse.errors import BertfuseError

from .inputs import Signature, feed, signature, sizes_of
from .sessions import session

# Two sizes tell axes apart: what is 2 and 3 is a batch, what is 7 and 5 a length.
_SIZES = ((2, 7), (3, 5))
_NORMS = ("LayerNormalization", "ReduceMean", "Pow", "Sqrt", "Sub", "Reciprocal")
_GELUS = ("Erf", "Tanh", "Gelu", "FastGelu")
_SHAPE_OPERANDS = {"Reshape": 1, "Expand": 1, "Slice": 1, "ConstantOfShape": 0, "Tile": 1, "Split": 1, "Range": 0}


@dataclass(frozen=True)
class Kind:
    """Element type and shape at both sizes: tensors of one Kind may stand for each other."""

    element: int
    shape: tuple[tuple[int, int], ...]

    @property
    def is_float(self) -> bool:
        return self.element in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)

    @property
    def is_whole(self) -> bool:
        return self.element in (TensorProto.INT64, TensorProto.INT32)


@dataclass
class Facts:
    """Of the model as it was given. `weights` says of each node, by its first output, how often it is chosen."""

    kinds: dict[str, Kind]
    weights: dict[str, float]
    signature: Signature
    numbers: list[int] = field(default_factory=list)


def facts(model: onnx.ModelProto) -> Facts:
    """Runs the model at two sizes. Raises BertfuseError for one that does not run on a text encoder's inputs."""
    read = signature(model)
    shapes = [_shapes(model, read, *sizes) for sizes in _SIZES]
    kinds = {}
    for name, array in shapes[0].items():
        other = shapes[1].get(name)
        if other is None or other.ndim != array.ndim:
            continue
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        kinds[name] = Kind(element, tuple(zip(array.shape, other.shape, strict=True)))
    for tensor in model.graph.initializer:
        kinds[tensor.name] = Kind(tensor.data_type, tuple((d, d) for d in tensor.dims))
    read.longest = _longest(model, read)
    return Facts(kinds, _weights(model, kinds), read, read.numbers)


def _shapes(model: onnx.ModelProto, read: Signature, batch: int, length: int) -> dict[str, np.ndarray]:
    copy = deepcopy(model)
    outputs = {value.name for value in copy.graph.output}
    for node in copy.graph.node:
        copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output if n and n not in outputs)
    try:
        given = feed(read, "ones", sizes_of(read, batch, length), np.random.default_rng(0))
        runner = session(copy)
        arrays = runner.run(None, given)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise BertfuseError(f"the model does not run on random inputs {batch}x{length}: {text}") from error
    made = dict(zip((o.name for o in runner.get_outputs()), arrays, strict=True))
    return {name: a for name, a in (made | given).items() if isinstance(a, np.ndarray)}


def _longest(model: onnx.ModelProto, read: Signature) -> int:
    """The longest sequence that the model runs with, of those that its tables could mean."""
    runner = session(model)
    for length in range(read.longest, max(2, read.longest - 4), -1):
        try:
            runner.run(None, feed(read, "ones", sizes_of(read, 1, length), np.random.default_rng(0)))
        except Exception:  # a position beyond its table
            continue
        return length
    return max(2, read.longest - 4)


def _weights(model: onnx.ModelProto, kinds: dict[str, Kind]) -> dict[str, float]:
    """Nodes that make masks, positions, embeddings, scores, LayerNorm and GELU come first, shapes and weights last."""
    large = {t.name for t in model.graph.initializer if np.prod(t.dims) >= 64 and t.data_type == TensorProto.FLOAT}
    floats = {v.name for v in model.graph.input if len(v.type.tensor_type.shape.dim) == 3}
    data = set(floats)
    normed: set[str] = set()
    for node in model.graph.node:
        if (large | data) & set(node.input) and node.op_type != "Shape":
            data.update(node.output)
            if node.op_type in ("LayerNormalization", "Sqrt") or normed & set(node.input):
                normed.update(node.output)
    steering = _steering(model, data)
    weights = {}
    for node in model.graph.node:
        if not node.output:
            continue
        if node.output[0] in data:
            weights[node.output[0]] = _weight_of_data(node, data, normed)
        else:
            weights[node.output[0]] = 5.0 if steering & set(node.output) else 0.5
    return weights


def _steering(model: onnx.ModelProto, data: set[str]) -> set[str]:
    """Tensors that become masks, positions or ids: above what meets the data, but not as a shape."""
    found: set[str] = set()
    for node in reversed(model.graph.node):
        for index, name in enumerate(node.input):
            if index >= _SHAPE_OPERANDS.get(node.op_type, 99) and not found & set(node.output):
                continue
            if (data & set(node.output) and name not in data) or found & set(node.output):
                found.add(name)
    return found


def _weight_of_data(node: onnx.NodeProto, data: set[str], normed: set[str]) -> float:
    of_data = sum(name in data for name in node.input)
    if node.op_type == "Softmax" or (node.op_type == "MatMul" and of_data == 2) or node.op_type == "Attention":
        return 4.0
    if node.op_type in _GELUS or node.op_type == "Gather":
        return 4.0
    if node.op_type in _NORMS or not normed & set(node.input):
        return 3.0
    if node.op_type in ("Mul", "Div", "Add", "Where", "Transpose", "Reshape"):
        return 2.0
    return 1.0
