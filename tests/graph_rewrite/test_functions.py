"""Op bodies as ONNX functions: every op, form, opset and type in stock ONNX Runtime against the float64 oracle."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from bertfuse.graph_rewrite import functions, oracle
from bertfuse.graph_rewrite.dialect.pattern import patterns
from bertfuse.graph_rewrite.ops import MODEL_OPS, OPS
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.qualify.tolerances import assert_close
from tests.cases import Case, cases, make_case, shapes
from tests.one_node import as_float64, model, run

OPSETS = (13, 16, 17, 18, 20, 22)
# Reshape works no size out of an empty tensor: the bodies that split heads need a token, as exported models do.
NEEDS_TOKENS = ("AddQKVBias", "FusedAttention", "FusedAttentionVariant")


def _with_function(case: Case, opset: int) -> onnx.ModelProto:
    proto = model(case)
    for entry in proto.opset_import:
        if entry.domain == "":
            entry.version = opset
    for value, tensor in zip(proto.graph.output, case.spec.outputs, strict=True):
        rank = len(tensor.trailing) + (case.inputs["x"].ndim - 1 if tensor.leading else 0)
        value.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * rank)
    given = {attribute.name for attribute in proto.graph.node[0].attribute}
    defaults = {a.name: a.default for a in case.spec.attributes if a.name not in given}  # fused nodes carry every one
    proto.graph.node[0].attribute.extend(helper.make_attribute(*item) for item in defaults.items())
    data_type = {"float32": 1, "float16": 10, "bfloat16": 16}[case.dtype]
    functions.attach(proto, {proto.graph.node[0].output[0]: data_type})
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _run(proto: onnx.ModelProto, case: Case, expected: list[np.ndarray]) -> list[np.ndarray]:
    """In stock onnxruntime; the body of a bfloat16 model is float32 between its casts, so that runs there too."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return run(session, case, [array.shape for array in expected])


def _check(case: Case, opset: int) -> None:
    expected = oracle(case.op, as_float64(case.inputs), dict(case.attributes))
    for got, want in zip(_run(_with_function(case, opset), case, expected), expected, strict=True):
        assert_close(got, want, case.op, case.dtype, case.error_scale)


def _small(case: Case) -> bool:
    sizes = [array.size for array in case.inputs.values() if array is not None]
    return sum(sizes) < 2e6 and (0 not in sizes or case.op not in NEEDS_TOKENS)


@pytest.mark.parametrize("case", [case for op in MODEL_OPS for case in cases(op) if _small(case)], ids=str)
def test_every_case(case: Case) -> None:
    _check(case, 17)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", MODEL_OPS)
def test_every_opset_and_type(op: str, dtype: str, opset: int) -> None:
    shape = next(shape for shape in shapes(op) if shape.label == "primes")
    for pattern in patterns(OPS[op]):
        absent = tuple(tensor.name for tensor in OPS[op].inputs if tensor.name not in pattern.present)
        _check(make_case(op, shape, dtype=dtype, absent=absent), opset)


@pytest.mark.parametrize("op", MODEL_OPS)
def test_patterns_cover_every_set_of_inputs(op: str) -> None:
    from tests.cases import absences

    every = {tensor.name for tensor in OPS[op].inputs if not tensor.by_pass}
    assert {frozenset(p.present) for p in patterns(OPS[op])} == {frozenset(every - set(a)) for a in absences(op)}


def test_two_forms_of_an_op_are_overloads() -> None:
    """With and without residual in one model: two functions of one name, told apart by overload."""
    shape = next(shape for shape in shapes("FusedGemmGeluLayerNorm") if shape.label == "primes")
    with_residual = make_case("FusedGemmGeluLayerNorm", shape)
    proto = model(with_residual)
    second = onnx.NodeProto()
    second.CopyFrom(proto.graph.node[0])
    second.name, second.output[0] = "second", "z"
    assert second.input.pop() == "residual"
    proto.graph.node.append(second)
    ranked = [None] * with_residual.inputs["x"].ndim
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_tensor_value_info(name, 1, ranked) for name in "yz")
    functions.attach(proto, {"y": 1, "z": 1})
    onnx.checker.check_model(proto, full_check=True)
    assert [(f.name, f.overload) for f in proto.functions] == [(second.op_type, ""), (second.op_type, "form_2")]
    assert proto.ir_version >= 10
    feed = dict(with_residual.inputs)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, residual in zip(session.run(["y", "z"], feed), (feed["residual"], None), strict=True):
        inputs = as_float64({**feed, "residual": residual})
        want = oracle(second.op_type, inputs, dict(with_residual.attributes))[0]
        assert_close(got, want, second.op_type, "float32")


def test_function_signature_follows_the_description() -> None:
    signature = functions.Signature("FusedGemmGelu", ("x", "weight", "bias"), (("approximate", "tanh"),), 1)
    function = functions.function(OPS["FusedGemmGelu"], signature, 17)
    assert (function.domain, function.name) == (DOMAIN, "FusedGemmGelu")
    assert list(function.input) == ["x", "weight", "bias"] and list(function.output) == ["y"]
    assert "Tanh" in {node.op_type for node in function.node}
