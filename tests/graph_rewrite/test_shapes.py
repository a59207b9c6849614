"""Shapes that a file declares of tensors inside its graph, against what follows from the graph."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from bertfuse.graph_rewrite import shapes


def split_heads(size: int, view: list[int | str], other: list[int | str]) -> onnx.ModelProto:
    """x [batch, 3, 16] -> view [batch, 3, 16 / size, size]; `other` comes from an operator that nobody knows."""
    nodes = [
        helper.make_node("Reshape", ["x", "target"], ["view"]),
        helper.make_node("Relu", ["view"], ["y"]),
        helper.make_node("Unheard", ["x"], ["other"], domain="of.nobody"),
        helper.make_node("Relu", ["other"], ["z"]),
    ]
    target = helper.make_tensor("target", TensorProto.INT64, [4], [0, 0, -1, size])
    tensors = {"x": ["batch", 3, 16], "y": None, "z": None, "view": view, "other": other}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in tensors.items()}
    graph = helper.make_graph(
        nodes, "g", [infos["x"]], [infos["y"], infos["z"]], [target], value_info=[infos["view"], infos["other"]]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("of.nobody", 1)])


@pytest.fixture(params=["symbolic", "plain"])
def inference(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":  # as where ONNX Runtime's gives up
        monkeypatch.setattr(shapes, "_symbolic", lambda model: None)


def test_one_node_that_cannot_be_followed_hides_no_other_shape() -> None:
    """A Reshape to a shape that is fed has a type; what comes after it of other tensors is as well known as before."""
    nodes = [
        helper.make_node("Reshape", ["x", "fed"], ["anything"]),
        helper.make_node("Relu", ["anything"], ["y"]),
        helper.make_node("Identity", ["target"], ["same"]),
        helper.make_node("Reshape", ["x", "same"], ["view"]),
        helper.make_node("Relu", ["view"], ["z"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 16]),
        helper.make_tensor_value_info("fed", TensorProto.INT64, [3]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"]
    target = helper.make_tensor("target", TensorProto.INT64, [3], [0, -1, 8])
    graph = helper.make_graph(nodes, "g", inputs, outputs, [target])
    found = shapes.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), {})
    assert found["view"] == found["z"] == (TensorProto.FLOAT, ["batch", "2*length", 8])
    assert found["y"][0] == TensorProto.FLOAT and len(found["y"][1]) == 3

    unknown = helper.make_tensor_value_info("fed", TensorProto.INT64, ["any"])
    graph.input[1].CopyFrom(unknown)
    found = shapes.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), {})
    assert found["y"] == (TensorProto.FLOAT, None)


@pytest.mark.usefixtures("inference")
def test_declared_shapes_fill_gaps() -> None:
    found = shapes.infer_shapes(split_heads(8, ["batch", 3, 2, 8], ["batch", 7]), {})
    assert found["view"][1][2:] == [2, 8] and found["other"][1] == ["batch", 7]


@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("stale", [["batch", 3, 2, 8], ["batch", 3, 16]])
def test_none_count_where_one_is_of_an_earlier_graph(stale: list[int | str]) -> None:
    """The heads' size was changed from 8 to 2 after the export, and the declaration was left."""
    found = shapes.infer_shapes(split_heads(2, stale, ["batch", 7]), {})
    assert found["view"][1][3] == 2 and found["view"][1][2] != 2
    assert 7 not in (found["other"][1] or [])
