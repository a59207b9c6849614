"""Kinds of files that engines are built from: an op in two forms, weights beside the file, nothing fused at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import functions, fuse_file, io
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.spec import DOMAIN, NODE_MARKERS
from bertfuse.runtime import InferenceSession
from bertfuse.runtime.trt import build_engine
from bertfuse.runtime.trt.model import prepare
from tests.engines import fused
from tests.tiny_models import exported

WIDTH = 16


def two_forms(path: Path, dtype: type) -> Path:
    """FusedGemmGeluLayerNorm without and with its optional residual: the second form is an overload."""
    op, data_type = OPS["FusedGemmGeluLayerNorm"], helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    random = np.random.default_rng(0)
    sizes = {"weight": (WIDTH, WIDTH), "bias": (WIDTH,), "gamma": (WIDTH,), "beta": (WIDTH,)}
    constants = [
        onnx.numpy_helper.from_array(random.standard_normal(size).astype(dtype), name) for name, size in sizes.items()
    ]

    def node(x: str, residual: str, y: str) -> onnx.NodeProto:
        given = {"x": x, "residual": residual}
        given_inputs = [tensor for tensor in op.inputs if not tensor.by_pass and given.get(tensor.name) != ""]
        inputs = [given.get(tensor.name, tensor.name) for tensor in given_inputs]
        attributes = {"epsilon": 1e-12, "approximate": "none", **NODE_MARKERS}
        return helper.make_node(op.name, inputs, [y], domain=DOMAIN, **attributes)

    value = lambda name: helper.make_tensor_value_info(name, data_type, ["rows", WIDTH])  # noqa: E731
    nodes = [node("x", "", "inner"), node("inner", "x", "middle"), node("middle", "inner", "y")]
    graph = helper.make_graph(nodes, "two_forms", [value("x")], [value("y")], constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    functions.attach(model, dict.fromkeys(("inner", "middle", "y"), data_type))
    assert len(model.functions) == 2 and sorted(node.overload for node in model.graph.node) == ["", "", "form_2"]
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 1e-5), (np.float16, 2e-2)])
def test_an_op_in_two_forms(dtype: type, largest: float, tmp_path: Path) -> None:
    model = two_forms(tmp_path / "two.onnx", dtype)
    report = build_engine(model, tmp_path / "two.plan", backend="rtx")
    assert report.plugins is not None and report.plugins["layers"] == {"FusedGemmGeluLayerNorm": 3}
    assert report.shapes == {"x": {"min": [1, WIDTH], "opt": [8, WIDTH], "max": [32, WIDTH]}}
    bodies = build_engine(model, tmp_path / "two.plan", backend="rtx", plugins=False)
    assert bodies.plugins is None and bodies.kinds["NORMALIZATION"] == 3
    inlined = tmp_path / "bodies.onnx"
    prepare(model, inlined, plugins=False)
    feed = {"x": np.random.default_rng(1).standard_normal((5, WIDTH)).astype(dtype)}
    want = InferenceSession(model, library="never").run(None, feed)[0]
    got = InferenceSession(inlined, library="never").run(None, feed)[0]
    # float32: the same sums in another order; float16: each product rounded, on values up to 3.
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), atol=largest, rtol=largest)


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_packed_rows(padding: str, tmp_path: Path) -> None:
    """Shapes of packed rows are expressions of the inputs', so an engine needs nothing from the data."""
    model, plan = tmp_path / "packed.onnx", tmp_path / "packed.plan"
    result = fuse_file(exported(), model, dtype="fp16", padding=padding)
    tokens = ["input_ids", "token_type_ids"] if padding == "ragged" else []
    shapes = [f"{name}:1:40:400" for name in tokens] + ["cu_seqlens:2:5:9", "max_seqlen:1:20:40"] * bool(tokens)
    report = build_engine(model, plan, backend="rtx", shapes=shapes)
    packing = {"RaggedPositions": 1} if tokens else {"PackTokens": 1, "UnpackTokens": 1}
    assert report.plugins is not None and report.plugins["layers"] == report.fused
    assert report.fused.items() >= packing.items() and report.fused["FusedAttention"] == result.fused["FusedAttention"]
    assert report.outputs["last_hidden_state"]["shape"] == ([-1, 32] if tokens else [-1, -1, 32])
    with pytest.raises(BertfuseError, match="packed rows take the TensorRT plugins"):
        build_engine(model, plan, backend="rtx", shapes=shapes, plugins=False)


def test_weights_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As models beyond 2 GB have them."""
    source = fused("minilm", tmp_path)
    monkeypatch.setattr(io, "MAX_INLINE_BYTES", 1 << 20)
    model = tmp_path / "large.onnx"
    io.write(*io.open_model(source), model)
    assert model.stat().st_size < 1 << 20 < model.with_name("large.onnx.data").stat().st_size
    report = build_engine(model, tmp_path / "large.plan", backend="rtx", save_onnx=tmp_path / "for_trtexec.onnx")
    assert report.plan_bytes > 80_000_000 and report.plugins is not None
    assert (tmp_path / "for_trtexec.onnx.data").stat().st_size > 80_000_000


def test_a_model_without_fused_ops(tmp_path: Path) -> None:
    report = build_engine(exported(), tmp_path / "m.plan", backend="rtx", shapes=["1x2:2x8:4x40"])
    assert report.plugins is None and report.fused == {} and report.precision == "float32"
    assert report.outputs["last_hidden_state"] == {"dtype": "float", "shape": [-1, -1, 32]}
    assert TensorProto.FLOAT in {value.type.tensor_type.elem_type for value in onnx.load(exported()).graph.output}
