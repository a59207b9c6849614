"""Shape rules against ONNX Runtime: what is drawn, that wrong rules are found, and a fixed budget of models."""

import secrets

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertfuse.graph_rewrite.constants import Constants
from bertfuse.graph_rewrite.elements import Elements
from bertfuse.qualify.shape_rules import hunt
from bertfuse.qualify.shape_rules.claims import check
from bertfuse.qualify.shape_rules.models import draw
from bertfuse.qualify.shape_rules.operators import DRAWERS
from bertfuse.qualify.shape_rules.runtime import run, session
from bertfuse.qualify.shape_rules.subjects import CANNOT, WITHOUT_KERNEL, versions
from tests.commands import invoke, said

_BUDGET = 2500  # models: about a minute of one core


def test_every_operator_is_drawn_or_named():
    """A new operator of onnx's, or a new one within its opsets, is in neither list until somebody looks at it."""
    assert set(versions()) - set(DRAWERS) - set(CANNOT) == set()
    assert set(DRAWERS) - set(versions()) == set()


def test_model_is_the_same_every_time():
    first, again = draw(3, 4), draw(3, 4)
    assert first.model == again.model
    for one, other in zip(first.feeds, again.feeds, strict=True):
        assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_rules_hold_on_random_models():
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    report = hunt(seed=seed, count=_BUDGET)
    print(report.summary())
    assert not report.findings, "\n\n".join(f"{f.text}\n{f.model}\n{f.command}" for f in report.findings)
    # The test is worth something only while models run, and while rules say something.
    assert report.checked > 0.6 * report.tried
    never = {name for name, n in report.subjects.items() if not n["held"] and not n["wrong"]} - WITHOUT_KERNEL
    assert len(never) < 0.02 * len(report.subjects), f"never run: {sorted(never)}"
    assert report.counts["known axes"] > 3 * report.checked
    assert report.counts["values"] > report.checked


def _model(node: onnx.NodeProto, shape: list) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "one", [given], [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(
    ("wrong", "what"), [(["sequence", "batch"], "size"), (["batch", 3], "size"), (["batch"], "rank"), ([4, 4], "size")]
)
def test_wrong_rule_is_found(monkeypatch, wrong, what):
    """What a Relu's output is said to be is put wrong after the rules have spoken."""
    real = Elements.infer

    def broken(self, nodes):
        real(self, nodes)
        for node in nodes:
            if node.op == "Relu":
                node.outputs[0].shape = wrong

    model = _model(helper.make_node("Relu", ["x"], ["y"]), ["batch", "sequence"])
    feeds = [{"x": np.zeros(shape, np.float32)} for shape in ((3, 3), (2, 3), (2, 5))]
    assert check(model, feeds).wrong is None
    monkeypatch.setattr(Elements, "infer", broken)
    found = check(model, feeds).wrong
    assert found is not None and found.what == what and found.tensor == "y"


def _float16_difference(rng: np.random.Generator) -> onnx.ModelProto:
    """y = q / d - c, where c is close to q / d, and long enough that no draw agrees by luck."""
    q, d = (rng.uniform(1, 4, 300).astype(np.float16) for _ in range(2))
    c = (q / d + rng.uniform(-0.01, 0.01, 300)).astype(np.float16)
    constants = [numpy_helper.from_array(array, name) for name, array in (("q", q), ("d", d), ("c", c))]
    nodes = [helper.make_node("Div", ["q", "d"], ["quotient"]), helper.make_node("Sub", ["quotient", "c"], ["y"])]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    graph = helper.make_graph(nodes, "difference", [], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_float16_is_compared_operator_by_operator():
    """ONNX Runtime does not round the quotient to float16, which the difference would show."""
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    model = _float16_difference(np.random.default_rng(seed))
    q, d, c = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    assert not np.allclose(run(session(model), {})[0], q / d - c, rtol=1e-3, atol=1e-5)
    checked = check(model, [{}])
    assert checked.wrong is None and checked.runs == 1 and checked.counts["values"] == 2


@pytest.mark.parametrize("wrong", ["quotient", "y"])
def test_wrong_value_is_found(monkeypatch, wrong):
    """Of the operator whose value is put wrong, and not of the one that reads it."""
    real = Constants.value

    def broken(self, tensor):
        value = real(self, tensor)
        return value * 2 if value is not None and tensor.name == wrong else value

    model = _float16_difference(np.random.default_rng(7))
    monkeypatch.setattr(Constants, "value", broken)
    found = check(model, [{}]).wrong
    assert found is not None and found.what == "value" and found.tensor == wrong


def test_error_that_is_not_ours_is_found(monkeypatch):
    def broken(self, nodes):
        raise KeyError("axis")

    monkeypatch.setattr(Elements, "infer", broken)
    model = _model(helper.make_node("Relu", ["x"], ["y"]), ["batch"])
    found = check(model, [{"x": np.zeros(2, np.float32)}]).wrong
    assert found is not None and found.what == "raises" and "KeyError" in found.said


def test_command_draws_around_the_operators_named():
    report = said("qualify", "--shapes", "--count", "20", "--seed", "5", "--ops", "Transpose,Concat")
    assert report["tried"] == 20 and report["checked"] > 10
    assert {name.split("-")[0] for name in report["subjects"]} == {"Transpose", "Concat"}
    assert report["findings"] == []


def test_command_runs_one_model_and_refuses_what_it_cannot():
    result = invoke("qualify", "--shapes", "--seed", "5", "--problem", "7", "--ops", "Transpose")
    assert "1 models" in result.stdout
    assert "beside --seed" in invoke("qualify", "--shapes", "--problem", "7", code=2).stderr
    assert "no operator" in invoke("qualify", "--shapes", "--ops", "Nothing", code=2).stderr
