"""What TensorRT does not follow on axes of dynamic size: the graph is another, its results are the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertfuse.runtime.trt.dynamic_axes import fit

IDS = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"])


def made(nodes: list[onnx.NodeProto], rank: int, **constants: object) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [None] * rank)
    graph = helper.make_graph(nodes, "g", [IDS], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reshaped(axis: int, sizes: list[str], then: str = "Neg") -> onnx.ModelProto:
    """`sizes` of -1 ("any") and of the ids' size along `axis` ("size")."""
    nodes = [
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["one"], axis=0),
        helper.make_node("Unsqueeze", ["one", "zero"], ["size"]),
        helper.make_node("Concat", sizes, ["wanted"], axis=0),
        helper.make_node("Reshape", ["ids", "wanted"], ["seen"]),
        helper.make_node(then, ["seen"], ["y"]),
    ]
    return made(nodes, len(sizes), axis=axis, zero=[0], any=[-1])


def same(model: onnx.ModelProto) -> list[str]:
    """The operators after fit, which computes what the model did."""
    seed = int(np.random.default_rng().integers(2**32))
    print("seed", seed)
    random = np.random.default_rng(seed)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    fit(changed)
    onnx.checker.check_model(changed, full_check=True)
    for _ in range(3):
        ids = random.integers(0, 99, random.integers(2, 9, 2))
        before, after = (
            onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"ids": ids})[0] for m in (model, changed)
        )
        np.testing.assert_array_equal(before, after)
    return [node.op_type for node in changed.graph.node]


@pytest.mark.parametrize(("axis", "sizes"), [(1, ["any", "size"]), (-1, ["any", "size"]), (0, ["size", "any"])])
def test_a_reshape_to_its_own_shape_goes_with_what_made_the_shape(axis: int, sizes: list[str]) -> None:
    assert same(reshaped(axis, sizes)) == ["Neg"]


@pytest.mark.parametrize(("axis", "sizes"), [(0, ["any", "size"]), (1, ["size", "any"]), (1, ["any"])])
def test_any_other_reshape_stays(axis: int, sizes: list[str]) -> None:
    assert same(reshaped(axis, sizes)) == ["Shape", "Gather", "Unsqueeze", "Concat", "Reshape", "Neg"]


def test_a_reshape_that_is_an_output_stays() -> None:
    model = reshaped(1, ["any", "size"])
    model.graph.node.pop()
    model.graph.node[-1].output[0] = "y"
    assert "Reshape" in same(model)


@pytest.mark.parametrize("index", [-1, -2, [-1], [0, -1, 1, -2]])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_indices_from_the_end_are_counted_from_the_start(index: int | list[int], axis: int | None) -> None:
    given = {} if axis is None else {"axis": axis}
    nodes = [helper.make_node("Gather", ["ids", "index"], ["y"], name="last", **given)]
    assert same(made(nodes, 1 + np.ndim(index), index=index)) == ["Shape", "Gather", "Mul", "Add", "Gather"]


@pytest.mark.parametrize("index", [0, [0, 1]])
def test_other_indices_stay(index: int | list[int]) -> None:
    nodes = [helper.make_node("Gather", ["ids", "index"], ["y"], axis=1)]
    assert same(made(nodes, 1 + np.ndim(index), index=index)) == ["Gather"]


def test_shapes_and_constants_are_of_one_size() -> None:
    nodes = [
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["size"]),
        helper.make_node("Gather", ["table", "last"], ["row"]),
        helper.make_node("Add", ["size", "row"], ["y"]),
    ]
    assert same(made(nodes, 1, last=[-1], table=[2, 3, 4])) == [node.op_type for node in nodes]
