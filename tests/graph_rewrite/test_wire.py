"""Files without the data of large initialisers: what is left is the message, wherever the data stood in it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from bertfuse.errors import FusionError
from bertfuse.graph_rewrite.io import load_model, open_model, write
from bertfuse.graph_rewrite.weights import MIN_BYTES
from bertfuse.graph_rewrite.wire import length_prefix, without_large_data

TYPES = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "INT8", "BOOL", "INT4")


def _tensor(r: random.Random, name: str) -> TensorProto:
    kind = r.choice(TYPES)
    count = r.choice([0, 1, 7, 20_000, 70_000, 140_000])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind))
    values = np.array([r.randrange(2) for _ in range(min(count, 50))] or [0])
    tensor = numpy_helper.from_array(np.resize(values, count).astype(dtype), name)
    if kind == "FLOAT" and r.random() < 0.3:  # by value, not as bytes
        tensor = onnx.helper.make_tensor(name, TensorProto.FLOAT, [count], np.resize(values, count))
    tensor.doc_string = r.choice(["", "beside the data"])
    return tensor


def _model(r: random.Random) -> onnx.ModelProto:
    value = onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    weights = [_tensor(r, f"w{number}") for number in range(r.randrange(6))]
    graph = onnx.helper.make_graph(nodes, "g", [value], [onnx.helper.make_empty_tensor_value_info("y")], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], producer_name="p" * 200)


@pytest.mark.parametrize("_", range(12))
def test_what_is_opened_and_written_is_what_was_read(_: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    model, path = _model(random.Random(seed)), tmp_path / "model.onnx"
    onnx.save(model, path)
    skeleton, weights = open_model(path)
    assert [tensor.name for tensor in skeleton.graph.initializer] == [t.name for t in model.graph.initializer]
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            np.testing.assert_array_equal(weights[tensor.name].load(), numpy_helper.to_array(tensor))
    write(skeleton, weights, path)  # over the file that the weights are mapped from
    again = {tensor.name: tensor for tensor in load_model(path).graph.initializer}
    for tensor in model.graph.initializer:
        assert (again[tensor.name].dims, again[tensor.name].data_type) == (tensor.dims, tensor.data_type)
        np.testing.assert_array_equal(numpy_helper.to_array(again[tensor.name]), numpy_helper.to_array(tensor))


def test_large_data_is_not_in_the_message() -> None:
    large = np.arange(MIN_BYTES, dtype=np.uint8)
    tensors = [numpy_helper.from_array(large, "large"), numpy_helper.from_array(large[:10], "small")]
    model = onnx.ModelProto(ir_version=10, graph=onnx.GraphProto(name="g", initializer=tensors))
    file = memoryview(model.SerializeToString())
    rest, places = without_large_data(file, MIN_BYTES) or (b"", {})
    assert len(rest) < 300 and list(places) == [0]
    begin, end = places[0]
    assert bytes(file[begin:end]) == large.tobytes()
    tensors[0].ClearField("raw_data")
    assert onnx.ModelProto.FromString(rest) == onnx.ModelProto(
        ir_version=10, graph=onnx.GraphProto(name="g", initializer=tensors)
    )


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.999])
def test_a_broken_file_is_one_line(cut: float, tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros(MIN_BYTES, np.uint8), "w")
    model = onnx.ModelProto(ir_version=10, graph=onnx.GraphProto(name="g", initializer=[tensor]))
    model.opset_import.add(domain="", version=20)
    whole, path = model.SerializeToString(), tmp_path / "model.onnx"
    path.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(FusionError, match=r"cut short|no graph"):
        open_model(path)


def test_a_graph_in_two_parts_is_parsed_whole(tmp_path: Path) -> None:
    """Protobuf joins a field that is given twice."""
    tensor = numpy_helper.from_array(np.arange(MIN_BYTES, dtype=np.uint8), "w")
    graph, path = onnx.GraphProto(initializer=[tensor]).SerializeToString(), tmp_path / "model.onnx"
    head = onnx.ModelProto(ir_version=10, graph=onnx.GraphProto(name="g"))
    head.opset_import.add(domain="", version=20)
    message = head.SerializeToString() + length_prefix(onnx.ModelProto, "graph", len(graph)) + graph
    assert without_large_data(memoryview(message), MIN_BYTES) is None
    path.write_bytes(message)
    skeleton, weights = open_model(path)
    assert skeleton.graph.name == "g" and list(weights) == ["w"]
    np.testing.assert_array_equal(weights["w"].load(), numpy_helper.to_array(tensor))
