"""Broken models: whatever comes in, fusion gives a model or a BertfuseError, and no other exception."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto
from tiny_models import exported

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse
from bertfuse.graph_rewrite.io import load_model


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


MUTATIONS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _drop_node, _drop_initializer, _shuffle, _swap_inputs, _cycle, _empty_name, _no_inputs, _no_outputs, _same_output,
    _reshape_weight, _retype_weight, _attributes, _rename_op, _shapes, _input_types,
)  # fmt: skip


def survives(model: onnx.ModelProto) -> None:
    try:
        result = fuse(model)
    except BertfuseError as error:
        assert "\n" not in str(error)
    else:
        assert all(miss.reason for miss in result.misses)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda function: function.__name__.strip("_"))
def test_mutated_graphs(mutation: Callable[[onnx.ModelProto, random.Random], None], seed: int) -> None:
    model, rng = onnx.load(exported()), random.Random(seed)
    for _ in range(seed + 1):
        mutation(model, rng)
    survives(model)


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bits(seed: int, tmp_path) -> None:
    data, rng = bytearray(exported().read_bytes()), random.Random(seed)
    for _ in range(1 + seed * 2):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    try:
        model = load_model(path)
    except BertfuseError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        survives(model)
