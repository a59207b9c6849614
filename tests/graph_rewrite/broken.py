"""Ways to break a model: each takes the model and a random generator, and changes the model in place."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from bertfuse.graph_rewrite.spec import DOMAIN


def _drop_node(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def _drop_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def _shuffle(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _swap_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    names = [name for node in model.graph.node for name in node.input]
    node = rng.choice([node for node in model.graph.node if node.input])
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _cycle(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([node for node in model.graph.node if node.input])
    node.input[0] = model.graph.node[-1].output[0]


def _empty_name(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([node for node in model.graph.node if node.input])
    node.input[rng.randrange(len(node.input))] = ""


def _no_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del rng.choice(model.graph.node).input[:]


def _no_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del rng.choice(model.graph.node).output[:]


def _same_output(model: onnx.ModelProto, rng: random.Random) -> None:
    first, second = rng.sample(list(model.graph.node), 2)
    first.output[0] = second.output[0]


def _reshape_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice([t for t in model.graph.initializer if len(t.dims) > 0])
    tensor.dims[0] = rng.choice([0, 1, 3, 2**40, -1])


def _retype_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(model.graph.initializer).data_type = rng.choice([0, 1, 2, 7, 8, 10, 11, 14, 16, 22, 99])


def _attributes(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([node for node in model.graph.node if node.attribute])
    attribute = rng.choice(node.attribute)
    attribute.i, attribute.f, attribute.s = rng.choice(
        [(-1, -1.0, b"\xff"), (2**62, float("nan"), b""), (0, 0.0, b"x")]
    )
    if rng.random() < 0.5:
        attribute.type = rng.randrange(14)
    del attribute.ints[rng.randrange(len(attribute.ints) + 1) :]


def _rename_op(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    node.op_type = rng.choice(["Add", "MatMul", "Gemm", "Softmax", "Erf", "Gelu", "LayerNormalization", "Nothing", ""])


def _shapes(model: onnx.ModelProto, rng: random.Random) -> None:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    value = rng.choice([v for v in values if v.type.tensor_type.shape.dim])
    dim = rng.choice(value.type.tensor_type.shape.dim)
    if rng.random() < 0.5:
        dim.dim_param = rng.choice(["__import__('os')", "a b", "batch*batch", "-3", "😀"])
    else:
        dim.dim_value = rng.choice([0, -5, 2**50])


def _input_types(model: onnx.ModelProto, rng: random.Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    if rng.random() < 0.3:
        value.ClearField("type")
    else:
        value.type.tensor_type.elem_type = rng.choice([0, TensorProto.FLOAT, TensorProto.STRING, TensorProto.BOOL, 77])


def _fused_node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice([node for node in model.graph.node if node.domain == DOMAIN] or list(model.graph.node))


def _fused_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _fused_node(model, rng)
    if not node.attribute or rng.random() < 0.2:
        del node.attribute[:]
        return
    attribute = rng.choice(node.attribute)
    attribute.i = rng.choice([0, -1, 3, 2**31, 2**62, -(2**62)])
    attribute.f = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e38])
    attribute.s = rng.choice([b"", b"\xff", b"tanh", b"x" * 5000])


def _fused_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _fused_node(model, rng)
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    if rng.random() < 0.3:
        del node.input[rng.randrange(len(node.input) + 1) :]
    elif rng.random() < 0.3:
        node.input.extend(rng.choices(names, k=rng.choice([1, 20])))
    elif node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(["", *names])


def _retyped_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    """Well-formed, and of another type than its op's other inputs."""
    tensor = rng.choice(model.graph.initializer)
    values = onnx.numpy_helper.to_array(tensor).astype(rng.choice([np.float16, np.float64, np.int32, np.int64]))
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def _reshaped_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    """Well-formed, and of another shape than its op expects."""
    tensor = rng.choice(model.graph.initializer)
    values = onnx.numpy_helper.to_array(tensor)
    values = rng.choice(
        [values.reshape(-1), values[..., None], values[:0], values[:1], values.T, values.reshape(-1)[0]]
    )
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), tensor.name))


# Of fused models, aimed at what the library is given.
FUSED_MUTATIONS = (_fused_attribute, _fused_inputs, _retyped_weight, _reshaped_weight)

MUTATIONS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _drop_node, _drop_initializer, _shuffle, _swap_inputs, _cycle, _empty_name, _no_inputs, _no_outputs, _same_output,
    _reshape_weight, _retype_weight, _attributes, _rename_op, _shapes, _input_types,
)  # fmt: skip
