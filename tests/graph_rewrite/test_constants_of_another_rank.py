"""Sizes and axes that are not the lists that ONNX wants: no such model runs, and fusion refuses the nodes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from tests.mutant_hunt.exports import Export


def _integers(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    held = [*model.graph.initializer]
    held += [node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"]
    return [tensor for tensor in held if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) <= 1]


@pytest.mark.parametrize(("family", "attention"), [("qwen3", "sdpa"), ("vit", "eager"), ("bert", "sdpa")])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_fusion_stands_them(tmp_path: Path, family: str, attention: str, exporter: str) -> None:
    path = Export(family, "feature-extraction", exporter, attention).make(tmp_path)
    exported = onnx.load(path)
    fused = 0
    for index in range(len(_integers(exported))):
        model = onnx.ModelProto()
        model.CopyFrom(exported)
        tensor = _integers(model)[index]
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(values.reshape((1, 1, *values.shape)), tensor.name))
        changed = tmp_path / "changed.onnx"
        onnx.save(model, changed)
        try:
            fuse_file(changed, tmp_path / "fused.onnx")
            fused += 1
        except BertfuseError:
            pass
    assert fused > 0
