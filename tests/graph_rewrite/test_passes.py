"""What passes take for row-wise: a node that mixes rows must never be among it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

from bertfuse.graph_rewrite.passes.rows import first_row, row_inputs

B, S, H = 3, 5, 4


def _node(op: str, *constants: np.ndarray | None, rank: int = 3, **attributes: Any) -> gs.Node:
    """x [B, S, H] and constants behind it; None is another x."""
    shape = (B, S, H)[-rank:]
    inputs: list[gs.Tensor] = [gs.Variable("x", np.float32, list(shape))]
    for index, value in enumerate(constants):
        name = f"c{index}"
        inputs.append(gs.Variable(name, np.float32, list(shape)) if value is None else gs.Constant(name, value))
    return gs.Node(op, op, attributes, inputs, [gs.Variable("y", np.float32, list(shape))])


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


ROW_WISE = [
    _node("Tanh"),
    _node("Gelu", approximate="tanh"),
    _node("Softmax", axis=-1),
    _node("LogSoftmax", axis=2),
    _node("LayerNormalization", _floats(H), _floats(H), axis=-1),
    _node("MatMul", _floats(H, H)),
    _node("Add", _floats(H)),
    _node("Mul", _floats(1, 1, H)),
    _node("Div", np.array(3, np.float32)),
    _node("Add", None),
]
MIXED = [
    _node("Softmax", axis=1),
    _node("LogSoftmax", axis=0),
    _node("LayerNormalization", _floats(S, H), _floats(S, H), axis=1),
    _node("LayerNormalization", _floats(S, H), _floats(S, H), axis=-1),
    _node("MatMul", _floats(B, H, H)),
    _node("Add", _floats(S, H)),
    _node("Mul", _floats(B, 1, 1)),
    _node("Add", _floats(1, 1, 1, H)),
    _node("CumSum", np.array(1)),
    _node("Transpose", perm=[0, 1, 2]),
    _node("ReduceMean", axes=[1], keepdims=1),
    _node("Einsum", equation="bsh->bsh"),
]


@pytest.mark.parametrize("node", ROW_WISE, ids=lambda node: node.op)
def test_a_row_depends_on_the_same_row_alone(node: gs.Node) -> None:
    """Run twice, with every row but one changed: that one's result stays to the bit."""
    assert row_inputs(node) == [i for i, t in enumerate(node.inputs) if isinstance(t, gs.Variable)]
    inputs = [t for t in node.inputs if isinstance(t, gs.Variable)]
    graph = gs.Graph([node], inputs=inputs, outputs=node.outputs, opset=20)
    session = onnxruntime.InferenceSession(gs.export_onnx(graph, ir_version=10).SerializeToString())
    rng = np.random.default_rng(1)
    first = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in inputs}
    second = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in first.items()}
    for name in first:
        second[name][1, 2] = first[name][1, 2]
    one, other = (session.run(None, feed)[0] for feed in (first, second))
    np.testing.assert_array_equal(one[1, 2], other[1, 2])
    assert (one[0] != other[0]).any()


@pytest.mark.parametrize("node", MIXED, ids=lambda node: f"{node.op}-{node.attrs}")
def test_nodes_that_mix_rows_or_are_not_known(node: gs.Node) -> None:
    assert row_inputs(node) is None


def test_the_first_row_is_the_first_one() -> None:
    def gather(index: Any, **attributes: Any) -> gs.Node:
        return _node("Gather", np.array(index), **attributes)

    assert first_row(gather(0, axis=1)) is not None
    for other in (gather(1, axis=1), gather([0], axis=1), gather(0, axis=0), gather(0), gather(-1, axis=1)):
        assert first_row(other) is None
