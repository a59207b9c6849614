"""Files for TensorRT 8 and 9: opset 17 and what plugins are told; and which types such a network is held to.

Engines of TensorRT 8 need a GPU to be built; tests/gpu has those.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.measuring.compare import compare_models
from bertfuse.runtime.trt import backend as backends
from bertfuse.runtime.trt import build
from bertfuse.runtime.trt.model import Prepared, prepare
from bertfuse.runtime.trt.older_parser import fit
from tests.engines import fused, original


def values(model: onnx.ModelProto, name: str) -> list[int]:
    return [
        attribute.i for node in model.graph.node if node.domain == DOMAIN
        for attribute in node.attribute if attribute.name == name
    ]  # fmt: skip


@pytest.mark.parametrize(("dtype", "number"), [("fp32", TensorProto.FLOAT), ("fp16", TensorProto.FLOAT16)])
def test_plugins_are_told_their_type_and_their_constants(dtype: str, number: int, tmp_path: Path) -> None:
    source = fused("bert", tmp_path, dtype)
    prepared = prepare(source, tmp_path / "m.onnx", plugins=True, older_parser=True)
    model = onnx.load(tmp_path / "m.onnx")
    typed = [
        node
        for node in model.graph.node
        if node.domain == DOMAIN and "T" in {t.dtype for t in OPS[node.op_type].inputs}
    ]
    assert values(model, "element_type") == [number] * len(typed)
    assert len(values(model, "constant_inputs")) >= len(typed) - 2
    assert set(prepared.types.values()) >= {number}
    # The parser reads integers into 32 bits.
    assert max(values(model, "constant_inputs")) < 2**31


def test_op_bodies_compute_the_same(tmp_path: Path) -> None:
    source = fused("bert", tmp_path)
    prepare(source, tmp_path / "bodies.onnx", plugins=False, older_parser=True)
    model = onnx.load(tmp_path / "bodies.onnx")
    assert all(entry.version <= 17 for entry in model.opset_import)
    (entry,) = compare_models(original("bert"), tmp_path / "bodies.onnx", library="never").outputs
    assert 0 <= entry.relative < 1e-5


def made(nodes: list[onnx.NodeProto], opset: int, constants: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 5])  # noqa: E731
    held = [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph(nodes, "g", [value("x")], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def computed(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


NEWER = {
    "gelu": (made([helper.make_node("Gelu", ["x"], ["y"])], 20)),
    "tanh": (made([helper.make_node("Gelu", ["x"], ["y"], approximate="tanh")], 20)),
    "mean": made([helper.make_node("ReduceMean", ["x", "a"], ["y"], keepdims=1)], 18, {"a": np.array([1])}),
    "all": made([helper.make_node("ReduceMax", ["x"], ["y"])], 18),
    "none": made(
        [helper.make_node("ReduceMax", ["x", "a"], ["y"], noop_with_empty_axes=1)], 18, {"a": np.array([], np.int64)}
    ),
    "constant": made(
        [
            helper.make_node("Constant", [], ["a"], value=onnx.numpy_helper.from_array(np.array([-1]))),
            helper.make_node("ReduceL2", ["x", "a"], ["y"]),
        ],
        18,
    ),
    "cast": made([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT, saturate=1)], 19),
}


@pytest.mark.parametrize("name", NEWER)
def test_newer_operators(name: str) -> None:
    x = np.random.default_rng().standard_normal((4, 5), np.float32)
    wanted = computed(NEWER[name], x)
    older = onnx.ModelProto()
    older.CopyFrom(NEWER[name])
    older = fit(older, {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT})
    assert [entry.version for entry in older.opset_import] == [17]
    onnx.checker.check_model(older, full_check=True)
    np.testing.assert_allclose(computed(older, x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
def test_signs_of_integers_are_taken_of_floats(dtype: int, opset: int) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=dtype),
        helper.make_node("Sign", ["whole"], ["signs"], name="odd"),
        helper.make_node("Cast", ["signs"], ["y"], to=TensorProto.FLOAT),
    ]
    model, x = made(nodes, opset), np.array([[-7, -1, 0, 1, 2**24 + 3]], np.float32)
    older = fit(model, {"x": TensorProto.FLOAT, "whole": dtype, "signs": dtype})
    assert [entry.version for entry in older.opset_import] == [min(opset, 17)]
    before = {node.output[0]: node for node in older.graph.node}
    (sign,) = (node for node in older.graph.node if node.op_type == "Sign")
    assert before[sign.input[0]].op_type == "Cast" and before[sign.input[0]].attribute[0].i == TensorProto.FLOAT
    onnx.checker.check_model(older, full_check=True)
    np.testing.assert_array_equal(computed(older, x), [[-1, -1, 0, 1, 1]])


def test_what_has_no_older_form_is_named() -> None:
    node = helper.make_node("ReduceMean", ["x", "a"], ["y"], name="odd")
    with pytest.raises(BertfuseError, match="node 'odd' \\(ReduceMean\\): its axes are no constant"):
        fit(made([node], 18), {})


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axis", [None, -1, -2])
def test_layer_normalization_for_a_parser_that_lacks_it(dtype: int, bias: bool, axis: int | None) -> None:
    rng = np.random.default_rng()
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    sizes = [5] if axis != -2 else [4, 5]
    held = {name: rng.standard_normal(sizes).astype(kind) for name in ("gamma", "beta")[: 1 + bias]}
    given = {} if axis is None else {"axis": axis}
    node = helper.make_node("LayerNormalization", ["x", *held], ["y"], name="norm", epsilon=0.125, **given)
    values = [helper.make_tensor_value_info(name, dtype, ["b", 4, 5]) for name in "xy"]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph([node], "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = (7 + 3 * rng.standard_normal((3, 4, 5))).astype(kind)
    wanted = computed(model, x)
    assert fit(model, {"x": dtype}) is model and model.graph.node[0].op_type == "LayerNormalization"
    older = fit(model, {"x": dtype}, layer_normalization=False)
    assert all(node.op_type != "LayerNormalization" for node in older.graph.node)
    onnx.checker.check_model(older, full_check=True)
    tolerance = 1e-5 if dtype == TensorProto.FLOAT else 1e-2
    np.testing.assert_allclose(computed(older, x), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("outputs", "axis", "why"), [(["y", "mean"], -1, "its mean"), (["y"], 1, "its axis is counted")]
)
def test_layer_normalizations_that_are_refused_by_name(outputs: list[str], axis: int, why: str) -> None:
    node = helper.make_node("LayerNormalization", ["x", "x"], outputs, name="odd", axis=axis)
    with pytest.raises(BertfuseError, match=f"node 'odd' \\(LayerNormalization\\): {why}"):
        fit(made([node], 17), {"x": TensorProto.FLOAT}, layer_normalization=False)


class Layer:
    """A layer of a network that was parsed, as TensorRT's Python interface has it."""

    def __init__(self, kind: str, *outputs: str) -> None:
        self.type, self.precision, self.set = SimpleNamespace(name=kind), None, {}
        self._outputs = outputs
        self.num_outputs = len(outputs)

    def get_output(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name=self._outputs[index])

    def set_output_type(self, index: int, kind: str) -> None:
        self.set[index] = kind


@pytest.mark.parametrize("half", [True, False])
def test_layers_are_held_to_the_models_types(half: bool) -> None:
    sources = SimpleNamespace(CUBLAS=0, CUBLAS_LT=1, CUDNN=2)
    flags = SimpleNamespace(FP16="fp16", PREFER_PRECISION_CONSTRAINTS="prefer")
    trt = SimpleNamespace(float32="float", float16="half", BuilderFlag=flags, TacticSource=sources)
    layers = [
        Layer("ELEMENTWISE", "wide"),
        Layer("PLUGIN_V2", "narrow"),
        Layer("SHUFFLE", "ids"),
        Layer("UNARY", "narrow"),
    ]
    network = SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__)
    seen: set[str] = set()
    taken: list[int] = []
    config = SimpleNamespace(set_flag=seen.add, get_tactic_sources=lambda: 31, set_tactic_sources=taken.append)
    types = {
        "wide": TensorProto.FLOAT,
        "ids": TensorProto.INT64,
        "narrow": TensorProto.FLOAT16 if half else TensorProto.FLOAT,
    }
    prepared = Prepared({"node": "FusedGemm"}, {}, (), {}, None, "float16", "", types)
    build._settle_types(trt, network, config, prepared)
    assert taken == [0b11000] and seen == ({"fp16", "prefer"} if half else set())
    assert [layer.precision for layer in layers] == (["float", None, None, "half"] if half else [None] * 4)
    assert layers[3].set == ({0: "half"} if half else {})


def test_what_it_lacks_is_refused() -> None:
    trt = SimpleNamespace(__version__="8.6.0", DataType=SimpleNamespace(HALF=1))
    backend = backends.Backend("tensorrt", "TensorRT", trt, None)
    assert backend.is_older and not build._strongly_typed(
        backends.Backend("tensorrt", "TensorRT", SimpleNamespace(
            __version__="9.3.0", NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1)), None)
    )  # fmt: skip
    assert not backends.Backend("tensorrt", "TensorRT", SimpleNamespace(__version__="10.0.1"), None).is_older
    assert not backends.Backend("rtx", "TensorRT for RTX", SimpleNamespace(__version__="1.7.1"), None).is_older
    prepared = Prepared({}, {}, (), {}, None, "bfloat16", "")
    with pytest.raises(BertfuseError, match=r"is bfloat16, which TensorRT 8\.6\.0 lacks; fuse the model with"):
        build._check_types(backend, Path("m.onnx"), prepared)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("Python version mismatch: module was compiled for Python 3.10", "ends at Python 3.10"),
        ("libcublas.so.12: cannot open shared object file", "needs cuBLAS 12 and cuDNN 8"),
        ("undefined symbol", "install it again"),
    ],
)
def test_why_tensorrt_8_does_not_import(reason: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.importlib.metadata, "version", lambda module: "8.6.0")
    assert remedy in backends._remedy("tensorrt", reason)
