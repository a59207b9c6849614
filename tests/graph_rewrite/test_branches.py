"""Ifs whose condition follows from sizes: the branch takes their place, and the numbers stay."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from onnx import helper

from bertfuse.graph_rewrite import fuse, io
from bertfuse.graph_rewrite.graph import FusionGraph
from tests.model_coverage.files import Recipe, make

SEED = int(os.environ.get("BERTFUSE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
# x [batch, length, 4] beside its transpose: one length, read off two tensors.
_HEAD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, length, 4] x, float[batch, other, 4] z) => (float[p, q, r] y, int64[one] size)
<int64[1] zero = {0}, int64[1] one_1 = {1}, int64[1] two_1 = {2}, int64[1] three_1 = {3}, int64 one_0 = {1}>
{
  turned = Transpose <perm = [0, 2, 1]> (x)
  of_x = Shape (x)
  of_turned = Shape (turned)
  of_z = Shape (z)
  a = Slice (of_x, one_1, two_1, zero)
  b = Slice (of_turned, two_1, three_1, zero)
  c = Gather (of_z, one_1)
"""
_IF = """
  {result} = If ({condition}) <
    then_branch = then_{result} () => (float[p, q, r] then_out) {{ factor = Constant <value = float {{2.0}}> ()
      then_out = Mul ({given}, factor) }},
    else_branch = else_{result} () => (float[p, q, r] else_out) {{ factor = Constant <value = float {{3.0}}> ()
      scaled = Add ({given}, factor) else_out = Mul (scaled, scaled) }}
  >
"""


def _model(*body: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(_HEAD + "\n".join(body) + "\n  size = Add (b, b)\n}")
    onnx.checker.check_model(model)
    return model


def _taken(model: onnx.ModelProto) -> onnx.ModelProto:
    return gs.export_onnx(FusionGraph(*io.split(model)).gs, do_type_check=False)


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def _check_equal(model: onnx.ModelProto, made: onnx.ModelProto) -> None:
    print(f"BERTFUSE_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    for _ in range(4):
        batch, length, other = (int(n) for n in rng.integers(1, 6, 3))
        feed = {
            "x": rng.standard_normal((batch, length, 4)).astype(np.float32),
            "z": rng.standard_normal((batch, other, 4)).astype(np.float32),
        }
        for got, wanted in zip(_run(made, feed), _run(model, feed), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("equal", (True, False))
def test_decided_by_sizes(equal: bool) -> None:
    """Two in a row, whose branches use the same names; what only the condition asked for goes."""
    condition = ["same = Equal (a, b)", *([] if equal else ["unequal = Not (same)", "kind = Cast <to = 9> (unequal)"])]
    asked = "same" if equal else "kind"
    body = [*condition, _IF.format(result="h", condition=asked, given="x"), "of_h = Shape (h)"]
    body += ["d = Slice (of_h, one_1, two_1, zero)", "again = Equal (d, b)"]
    body += [_IF.format(result="y", condition="again", given="h")]
    model = _model(*body)
    made = _taken(model)
    ops = Counter(node.op_type for node in made.graph.node)
    assert "If" not in ops and "Equal" not in ops and "Not" not in ops, ops
    _check_equal(model, made)


@pytest.mark.parametrize("other", ("c", "one_1"))
def test_not_decided(other: str) -> None:
    """Lengths of two inputs, and a length of 1, may be equal or not."""
    model = _model(f"same = Equal (a, {other})", _IF.format(result="y", condition="same", given="x"))
    made = _taken(model)
    assert sum(node.op_type == "If" for node in made.graph.node) == 1
    _check_equal(model, made)


def test_a_branch_with_an_if_inside_stays() -> None:
    model = _model("same = Equal (a, b)", _IF.format(result="y", condition="same", given="x"))
    (outer,) = (node for node in model.graph.node if node.op_type == "If")
    inner = onnx.NodeProto()
    inner.CopyFrom(outer)
    branch = next(a for a in outer.attribute if a.name == "then_branch").g
    for attribute in inner.attribute:
        attribute.g.name += "_inner"
        for node in attribute.g.node:
            node.output[0] = f"inner_{node.output[0]}"
            node.input[:] = [name if name == "x" else f"inner_{name}" for name in node.input]
        attribute.g.output[0].name = f"inner_{attribute.g.output[0].name}"
    inner.output[0] = branch.output[0].name
    del branch.node[:]
    branch.node.append(inner)
    made = _taken(model)
    assert sum(node.op_type == "If" for node in made.graph.node) == 1
    _check_equal(model, made)


def test_lengths_read_off_q_and_k(tmp_path: Path) -> None:
    """DeBERTa asks in each layer whether they are equal, and goes on with K's, in code that older versions script."""
    recipe = Recipe("deberta-v2", "feature-extraction", "torchscript", "eager", 17)
    source = onnx.load(make(recipe, tmp_path)[0])
    older = _asks_for_lengths(source)
    found, wanted = fuse(older), fuse(source)
    assert found.fused == wanted.fused and not found.misses, found.misses
    assert not any(node.op_type == "If" for node in found.model.graph.node)
    rng = np.random.default_rng(SEED)
    ids = rng.integers(1, 50, (3, 11))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feed = {value.name: feed[value.name] for value in source.graph.input}
    for got, expected in zip(_run(found.model, feed), _run(source, feed), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def _asks_for_lengths(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an If before every place by which scores of positions are gathered."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    made_by = {name: node for node in graph.node for name in node.output}
    places = [node for node in graph.node if node.op_type == "GatherElements"]
    assert len(places) == 4  # of Q and of K, in two layers
    numbers = {"bertfuse_0": [0], "bertfuse_1": [1], "bertfuse_2": [2], "bertfuse_rest": [-1]}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.array(v, np.int64), k) for k, v in numbers.items())
    read = {id(node): made_by[node.input[0]].input[0] for node in places}  # of the product that is gathered from
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if id(node) in read:
            at = node.name
            pair = places[places.index(node) // 2 * 2 :][:2]
            for name, other in zip("qk", pair, strict=True):
                nodes += [
                    helper.make_node("Shape", [read[id(other)]], [f"{at}/shape_{name}"]),
                    helper.make_node(
                        "Slice", [f"{at}/shape_{name}", "bertfuse_1", "bertfuse_2", "bertfuse_0"], [f"{at}/{name}"]
                    ),
                ]
            nodes.append(helper.make_node("Equal", [f"{at}/q", f"{at}/k"], [f"{at}/equal"]))
            bodies = {
                branch: helper.make_graph(
                    [helper.make_node(op, [node.input[1]], ["inside"])],
                    branch,
                    [],
                    [helper.make_tensor_value_info("inside", onnx.TensorProto.INT64, None)],
                )
                for branch, op in (("then_branch", "Identity"), ("else_branch", "Neg"))
            }
            nodes.append(helper.make_node("If", [f"{at}/equal"], [f"{at}/index"], f"{at}/If", **bodies))
            # As many rows as K has.
            nodes.append(
                helper.make_node("Concat", ["bertfuse_0", f"{at}/k", "bertfuse_rest"], [f"{at}/shape"], axis=0)
            )
            nodes.append(helper.make_node("Reshape", [f"{at}/index", f"{at}/shape"], [f"{at}/rows"]))
            node.input[1] = f"{at}/rows"
        nodes.append(node)
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(made)
    return changed


def test_written_as_what_took_its_place() -> None:
    """The If's branches are no attributes of the node that gives its result, where that is the model's own."""
    body = [
        "weight = Constant <value = float[4, 4] {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> ()",
        "bias = Constant <value = float[4] {1, 2, 3, 4}> ()",
        "product = MatMul (x, weight)",
        "h = Add (product, bias)",
        "root = Constant <value = float {0.7071067811865476}> ()",
        "half = Constant <value = float {0.5}> ()",
        "one = Constant <value = float {1.0}> ()",
        "inner = Mul (h, root)",
        "erf = Erf (inner)",
        "more = Add (erf, one)",
        "both = Mul (h, more)",
        "gelu = Mul (both, half)",
        "same = Equal (a, b)",
        _IF.format(result="y", condition="same", given="gelu"),
    ]
    made = fuse(_model(*body), functions=False)
    assert made.fused == {"FusedGemmGelu": 1}
    assert not any(a.type == onnx.AttributeProto.GRAPH for node in made.model.graph.node for a in node.attribute)
    assert not any(node.op_type == "If" for node in made.model.graph.node)
