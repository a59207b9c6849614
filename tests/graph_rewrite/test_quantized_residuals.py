"""Residuals that norms hand on in 8 bits: which do, and that answers stay right whatever else reads a norm's result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter

import bertfuse
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.fused_nodes import fused_nodes, input_of, may_leave_y
from bertfuse.graph_rewrite.io import load_model, save_model
from bertfuse.graph_rewrite.ops import OPS
from tests.corpora import model_folder
from tests.tiny_models import inputs

NORM = OPS["FusedGemmLayerNorm"]


def _norms(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in fused_nodes(model) if node.op_type == NORM.name]


def _poisoned(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The model with NaN in what kernels may leave unwritten, and how many tensors that is."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    made.graph.initializer.append(numpy_helper.from_array(np.float16(np.nan), "poison"))
    nodes, count = [], 0
    for node in made.graph.node:
        nodes.append(node)
        if node in fused_nodes(made) and node.op_type == NORM.name and may_leave_y(node):
            y, count = node.output[0], count + 1
            node.output[0] = f"{y}_unwritten"
            nodes.append(helper.make_node("Mul", [node.output[0], "poison"], [y]))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made, count


@pytest.mark.parametrize("padding", ["keep", "remove"])
def test_what_is_read_elsewhere_is_written(padding: str, tmp_path: Path) -> None:
    """Any of a model's norms may be its outputs, too."""
    seed = int(np.random.default_rng().integers(2**31))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    source, fused, target = (tmp_path / name for name in ("source.onnx", "fused.onnx", "int8.onnx"))
    given = load_model(model_folder("encoder") / "onnx" / "model.onnx")
    save_model(version_converter.convert_version(given, 19), source)
    fuse_file(source, fused, dtype="fp16", padding=padding)
    feeds = inputs(6, 12, seed=1)
    feeds["input_ids"] %= 27
    feeds = {v.name: feeds[v.name] for v in bertfuse.InferenceSession(fused).get_inputs()}
    model = load_model(fused)
    names = [node.output[0] for node in _norms(model)]
    known = {value.name for value in model.graph.output}
    for round_ in range(3):
        # The first time none of them, the last time all.
        shown = [name for name in names if name not in known and rng.random() < round_ / 2]
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        for name in shown:
            changed.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, None))
        save_model(changed, fused)
        bertfuse.quantize(fused, target, residual=True, calibration=feeds)
        made = load_model(target)
        assert all(input_of(node, NORM, "residual_quantized") for node in _norms(made))
        poisoned, unwritten = _poisoned(made)
        assert unwritten == len(set(names[:-1]) - set(shown))  # the last one's y is the model's
        save_model(poisoned, tmp_path / "poisoned.onnx")
        # Of packed rows those that are real: the first ones, and all that the bodies have.
        real = int(feeds["attention_mask"].sum()) if padding == "remove" else feeds["input_ids"].size
        with_library, bodies = bertfuse.InferenceSession(target), bertfuse.InferenceSession(target, library="never")
        of_poisoned = bertfuse.InferenceSession(tmp_path / "poisoned.onnx")
        outputs = [value.name for value in with_library.get_outputs()]
        for name, *found in zip(
            outputs, *(session.run(None, feeds) for session in (with_library, of_poisoned, bodies)), strict=True
        ):
            rows = real if name in shown else feeds["input_ids"].size
            got, same, want = (array.reshape(-1, array.shape[-1])[:rows].astype(np.float64).ravel() for array in found)
            np.testing.assert_array_equal(got, same)
            assert got @ want > 0.99 * np.linalg.norm(got) * np.linalg.norm(want), (name, shown)


def test_only_where_results_are_in_8_bits(tmp_path: Path) -> None:
    """Else, and in float32, operators round residuals."""
    for dtype, results in (("fp16", False), ("fp32", True), ("fp32", None)):
        fused, target = tmp_path / "fused.onnx", tmp_path / "int8.onnx"
        fuse_file(model_folder("encoder") / "onnx" / "model.onnx", fused, dtype=dtype)
        feeds = inputs(6, 12, seed=1)
        feeds["input_ids"] %= 27
        feeds = {v.name: feeds[v.name] for v in bertfuse.InferenceSession(fused).get_inputs()}
        bertfuse.quantize(fused, target, residual=True, calibration=feeds, results=results)
        made = load_model(target)
        assert not any(input_of(node, NORM, "residual_quantized") for node in _norms(made))
        assert sum(node.op_type == "QuantizeLinear" for node in made.graph.node) == len(_norms(made))
