"""Shapes follow from the graph, by a list of rules: what has none is not known, whatever the file declares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bertfuse.graph_rewrite.elements import poly
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import split
from bertfuse.graph_rewrite.shapes import Dim
from tests.graph_rewrite.graphs import Builder, run


def graph_of(model: onnx.ModelProto) -> FusionGraph:
    return FusionGraph(*split(model))


def shape_of(b: Builder, tensor: str) -> list[Dim] | None:
    b.output(tensor, shape=None)
    return graph_of(b.model()).gs.outputs[-1].shape


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
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("of.nobody", 1)], ir_version=9
    )


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
    tensors = graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)).gs.tensors()
    assert tensors["view"].shape == tensors["z"].shape == ["batch", "2*length", 8]
    assert tensors["y"].dtype == np.float32 and len(tensors["y"].shape) == 3

    unknown = helper.make_tensor_value_info("fed", TensorProto.INT64, ["any"])
    graph.input[1].CopyFrom(unknown)
    tensors = graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)).gs.tensors()
    assert tensors["y"].dtype == np.float32 and tensors["y"].shape is None


@pytest.mark.parametrize("declared", [["batch", 3, 2, 8], ["batch", 3, 16], ["batch", 3, 8, 2]])
def test_declarations_of_tensors_inside_the_graph_are_not_believed(declared: list[int | str]) -> None:
    tensors = graph_of(split_heads(2, declared, ["batch", 7])).gs.tensors()
    assert tensors["view"].shape == ["batch", 3, 8, 2]
    assert tensors["other"].shape is None and tensors["other"].dtype == np.float32


@pytest.mark.parametrize("wanted", [[-1, 8], ["tokens", 8]])
def test_sizes_that_may_be_zero_are_not_cancelled(wanted: Sequence[int | str]) -> None:
    """Where no text was cached, "past * 3" is 0, for which Reshape takes the size that is given."""
    b = Builder()
    past = b.input("past", ("past", 3, 8))
    if wanted[0] == "tokens":
        sizes = b.op("Shape", past)
        rows = b.op("ReduceProd", b.op("Slice", sizes, b.const([0]), b.const([2])), keepdims=1)
        target = b.op("Concat", rows, b.const([8]), axis=0)
    else:
        target = b.const(list(wanted))
    shape = shape_of(b, b.op("Reshape", past, target))
    assert shape == ["3*past", 8] if wanted[0] == -1 else shape[0] != "3*past"


@pytest.mark.parametrize(
    ("name", "other"), [("2*batch", "batch"), ("k<S", "k"), ("a b", "a_b"), ("axis_1", "axis_2"), ("min(4, S)", "S")]
)
def test_axes_are_what_they_are_whatever_they_are_called(name: str, other: str) -> None:
    b = Builder()
    x, y = b.input("x", (name, other, 4)), b.input("y", ("B", 2, other))
    b.output(b.op("Concat", x, x, axis=1), shape=None)
    b.output(y, shape=None)
    graph = graph_of(b.model())
    (first, second, _), (third, _, fourth) = (t.shape for t in graph.gs.inputs)
    assert len({first, second, third}) == 3 and second == fourth
    sizes = {first: 3, second: 5, third: 7}
    assert [graph.elements.evaluate(dim, sizes) for dim in graph.gs.outputs[0].shape] == [3, 10, 4]


def test_a_slice_from_the_end_may_be_shorter_than_asked_for() -> None:
    b = Builder()
    y = b.input("y", ("B", "S", 8))
    last = b.op("Slice", y, b.const([-4]), b.const([2**63 - 1]), b.const([1]))
    batch, length, width = shape_of(b, last)
    assert (batch, width) == ("B", 8) and length not in (4, "S")


def test_an_axis_of_two_sizes_is_neither() -> None:
    """One of them may be 1."""
    b = Builder()
    x, y = b.input("x", ("B", "S", 8)), b.input("y", ("B", "T", 8))
    batch, length, width = shape_of(b, b.op("Add", x, y))
    assert (batch, width) == ("B", 8) and length not in ("S", "T")


@pytest.mark.parametrize("number", range(6))
def test_convolutions_of_tokens(number: int) -> None:
    """A window of k tokens beside (k - 1) * dilation of padding gives one element a token; all else is counted."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    kernel, dilation, stride = (int(random.integers(1, most)) for most in (6, 4, 4))
    around = (kernel - 1) * dilation
    first = int(random.integers(0, around + 1))
    pads = [first, around - first] if number < 3 else [int(n) for n in random.integers(around, around + 4, 2)]
    stride = 1 if number < 3 else stride
    b = Builder()
    ids = b.ids("ids")
    x = b.op("Transpose", b.op("Gather", b.weight(50, 8), ids), perm=[0, 2, 1])  # ids look a table up: there are some
    weight = b.weight(4, 8, kernel)
    y = b.op("Conv", x, weight, kernel_shape=[kernel], dilations=[dilation], strides=[stride], pads=pads)
    b.output(y, shape=None)
    model = b.model()
    graph = graph_of(model)
    (shape,) = (tensor.shape for tensor in graph.gs.outputs)
    if number < 3:
        assert shape == ["B", 4, "S"]
    for batch, length in ((1, 1), (2, int(random.integers(2, 40)))):
        (made,) = run(model, {"ids": random.integers(0, 50, (batch, length))})
        sizes = {"B": batch, "S": length}
        assert [graph.elements.evaluate(dim, sizes) for dim in shape] == list(made.shape)


@pytest.mark.parametrize("op", ["Min", "Max", "Clip", "Sign"])
def test_what_is_said_of_large_numbers_holds_in_onnx_runtime(op: str) -> None:
    """ONNX Runtime compares vectors of 64-bit numbers wrongly where they lie beyond 2^31 and close together."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    ends = [0, 1, 2**31 - 3, 2**31, 2**32, 2**33, 2**62, 2**63 - 9, *random.integers(1 << 63, size=4).tolist()]
    numbers = sorted({sign * end for end in ends for sign in (-1, 1)})
    said = 0
    for _ in range(100):
        b = Builder(opset=21)
        added, other = (int(random.choice(numbers if random.random() < 0.5 else [-3, 0, 1, 4])) for _ in range(2))
        far = b.op("Add", b.op("Shape", b.input("x", ("B", 3))), b.const(added))
        others = [b.const(n) for n in (other, 2**63 - 1)][: {"Clip": 2, "Sign": 0}.get(op, 1)]
        b.output(b.op(op, far, *others), shape=None, element=TensorProto.INT64)
        model = b.model()
        graph = graph_of(model)
        (found,) = graph.gs.outputs
        values = graph.elements.numbers_known(found, found.inputs[0])
        said += any(value is not None for value in values)
        for batch in (1, 5):
            (is_,) = run(model, {"x": np.zeros((batch, 3), np.float32)})
            for value, number in zip(values, is_.tolist(), strict=True):
                assert value is None or poly.evaluated(value, {"B": batch}) == number, (added, other)
    assert said > 5


def test_what_ends_onnx_own_inference_does_not_end_ours() -> None:
    """A RegexFullMatch of a tensor of unknown type, in the graph and in a body; in a process that could die of it."""
    script = """
import onnx
from onnx import helper
from bertfuse.graph_rewrite.shapes import element_types
def graph(name, outputs):
    unknown = helper.make_node("Mystery", [], [f"{name}_x"], domain="other")
    match = helper.make_node("RegexFullMatch", [f"{name}_x"], [f"{name}_y"], pattern="[a-z]+")
    return helper.make_graph([unknown, match], name, [], outputs)
body = graph("body", [helper.make_empty_tensor_value_info("body_y")])
outer = graph("outer", [helper.make_tensor_value_info("outer_y", onnx.TensorProto.BOOL, ["n"])])
outer.node.append(helper.make_node("If", ["outer_y"], ["z"], then_branch=body, else_branch=body))
opsets = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
model = helper.make_model(outer, opset_imports=opsets, ir_version=9)
assert element_types(model, {})["outer_y"] == onnx.TensorProto.BOOL
assert [node.op_type for node in model.graph.node] == ["Mystery", "RegexFullMatch", "If"]
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
