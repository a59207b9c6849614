"""Models that are no BERT pass through unchanged; models that are one in part keep the rest as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bertfuse.graph_rewrite import fuse, fuse_file
from tests.graph_rewrite.graphs import Builder, feeds, fused, run


def convolution() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", ("B", 3, 8, 8))
    y = b.op("Relu", b.op("Conv", x, b.weight(4, 3, 3, 3), b.weight(4), pads=[1, 1, 1, 1]))
    b.output(b.op("GlobalAveragePool", y))
    return b.model()


def perceptron() -> onnx.ModelProto:
    b = Builder()
    y = b.op("Relu", b.linear(b.input("x", ("B", 16)), 16, 24))
    b.output(b.op("Softmax", b.linear(y, 24, 5), axis=-1))
    return b.model()


def branches() -> onnx.ModelProto:
    """An If whose branches read tensors of the graph around it."""
    b = Builder()
    x, flag = b.input("x", ("B", 16)), b.input("flag", (), dtype=bool)
    hidden = b.op("Tanh", b.linear(x, 16, 16))
    made = {}
    for name, op in (("then_branch", "Exp"), ("else_branch", "Neg")):
        value = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        made[name] = helper.make_graph([helper.make_node(op, [hidden], [f"{name}_y"])], name, [], [value])
    b.output(b.op("If", flag, **made), shape=("B", 16))
    return b.model()


def recurrent() -> onnx.ModelProto:
    """A Loop that adds a tensor of the graph around it."""
    b = Builder()
    x = b.input("x", ("B", 4))
    step = b.op("Relu", x)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["state", step], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    b.output(b.op("Loop", b.const(3), "", x, body=body), shape=("B", 4))
    return b.model()


OTHERS = (convolution, perceptron, branches, recurrent)


@pytest.mark.parametrize("make", OTHERS)
def test_passes_through(make, tmp_path: Path) -> None:
    model = make()
    result = fuse(model, dtype="fp16")
    assert result.model is model and result.fused == {} and result.misses == []
    assert "nothing to fuse" in result.messages[0]
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    fuse_file(source, target)
    assert onnx.load(target) == model
    feed = feeds(model)
    for before, after in zip(run(model, feed), run(onnx.load(target), feed), strict=True):
        assert before.tobytes() == after.tobytes()


def test_branch_beside_what_is_fused() -> None:
    """A subgraph reads the inside of what could be fused: that stays, the rest is fused."""
    b = Builder()
    x, flag = b.input("x", ("B", 16)), b.input("flag", (), dtype=bool)
    first = b.linear(x, 16, 16)
    y = b.gelu(b.linear(b.gelu(first), 16, 16))
    made = {}
    for name, op in (("then_branch", "Exp"), ("else_branch", "Neg")):
        value = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        made[name] = helper.make_graph([helper.make_node(op, [first], [f"{name}_y"])], name, [], [value])
    b.output(y)
    b.output(b.op("If", flag, **made), shape=("B", 16))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 1} and result.expected == {"FusedGemmGelu": 2}
    assert "needed elsewhere" in result.misses[0].reason


def test_pre_layer_norm_encoder_hands_its_sums_on() -> None:
    """ViT-like: the sum goes on to the next block, beside its norm."""
    b = Builder()
    x = b.input("x", ("B", "S", 16))
    for _ in range(2):
        x = b.op("Add", x, b.linear(b.layer_norm(x, 16), 16, 16))
        inner = b.gelu(b.linear(b.layer_norm(x, 16), 16, 32))
        x = b.op("Add", x, b.linear(inner, 32, 16))
    b.output(b.layer_norm(x, 16))
    result = fused(b.model())
    assert result.fused == {"FusedGemmGelu": 2, "FusedGemmLayerNorm": 1, "FusedGemmResidualNorm": 3}
    assert not result.misses


def test_old_opset() -> None:
    b = Builder(opset=12)
    y = b.linear(b.input("x", ("B", 16)), 16, 16)
    erf = b.op("Erf", b.op("Div", y, b.const(np.sqrt(2.0))))
    b.output(b.op("Mul", b.op("Mul", y, b.op("Add", erf, b.const(1.0))), b.const(0.5)))
    model = b.model()
    result = fuse(model)
    assert result.model is model and "opset 12" in result.messages[0] and "export" in result.messages[0]


def test_dead_nodes_do_not_matter() -> None:
    b = Builder()
    y = b.linear(b.input("x", ("B", 16)), 16, 16)
    b.output(b.gelu(y))
    b.op("Exp", b.op("Neg", b.input("unused", ("B", 3))))
    assert fused(b.model()).fused == {"FusedGemmGelu": 1}


def test_an_unknown_operator_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape inference that meets one must not write its findings into the working folder; the rest is still fused."""
    monkeypatch.chdir(tmp_path)
    b = Builder()
    y = b.op("Mystery", b.input("x", ("B", 16)), domain="example.com")
    first = b.gelu(b.linear(y, 16, 16))
    b.output(b.op("Mystery", first, domain="example.com"), shape=("B", 16))
    result = fuse(b.model())
    assert result.fused == result.expected == {"FusedGemmGelu": 1}
    assert list(tmp_path.iterdir()) == []
