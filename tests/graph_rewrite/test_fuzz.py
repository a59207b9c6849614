"""Broken models: whatever comes in, fusion gives a model or a BertfuseError, and the library an error, not a crash."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tiny_models import exported

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse
from bertfuse.graph_rewrite.io import load_model
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


FUSED_MUTATIONS = (_fused_attribute, _fused_inputs, _retyped_weight, _reshaped_weight)

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


# In a process of its own, since what is tested for is that it does not die: it says which model comes next.
LIBRARY = """
import os, random, sys
import onnx, onnxruntime
from tiny_models import inputs
from test_fuzz import FUSED_MUTATIONS, MUTATIONS
model, library, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
kinds = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(float)": "float32", "tensor(bool)": "bool"}
for seed in range(first, last):
    print(seed, file=sys.stderr, flush=True)
    broken, rng = onnx.load(model), random.Random(seed)
    for choices in (FUSED_MUTATIONS, MUTATIONS)[: 1 + (seed % 3 == 0)]:
        rng.choice(choices)(broken, rng)
    data = bytearray(broken.SerializeToString())
    for _ in range(seed % 4 * 2):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.register_custom_ops_library(library)
    try:
        session = onnxruntime.InferenceSession(bytes(data), options, providers=["CPUExecutionProvider"])
        feed = inputs(2, 9)
        session.run(None, {v.name: feed[v.name].astype(kinds.get(v.type, "int64")) for v in session.get_inputs()})
        print("= ran", flush=True)
    except Exception as error:
        print("=", type(error).__name__, flush=True)
"""


def test_broken_fused_models_in_the_library(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "fused.onnx"
    onnx.save(fuse(exported("fill-mask"), functions=False).model, path)
    count = 300
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY, str(path), str(library), "0", str(count)],
        capture_output=True, text=True, check=False, env=environment, timeout=300,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("= ")]  # onnxruntime prints, too
    assert done.returncode == 0, f"died of {done.returncode} at seed {len(said)}: {done.stderr[-500:]}"
    # Most are refused; some are sound all the same.
    assert len(said) == count and 0 < said.count("= ran") < count / 2, said
