"""What a model puts out, changed in its file: servers want one output, and float32."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx

from . import io

_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def keep_outputs(model: Path, names: Collection[str]) -> None:
    """Leaves the outputs `names` alone, where the model has others besides: those are computed even if nobody asks."""
    skeleton, weights = io.open_model(model)
    kept = [value for value in skeleton.graph.output if value.name in names]
    if kept and len(kept) < len(skeleton.graph.output):
        del skeleton.graph.output[:]
        skeleton.graph.output.extend(kept)
        io.write(skeleton, weights, model)


def give_float32(model: Path) -> None:
    """Casts outputs of half precision to float32, under their names: a device does so sooner than NumPy.

    NumPy has no bfloat16, besides.
    """
    skeleton, weights = io.open_model(model)
    graph = skeleton.graph
    outputs = {value.name: value for value in graph.output if value.type.tensor_type.elem_type in _HALVES}
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name in outputs:
                    names[index] = f"{name}_half"
    for name, value in outputs.items():
        graph.node.append(onnx.helper.make_node("Cast", [f"{name}_half"], [name], to=onnx.TensorProto.FLOAT))
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    if outputs:
        io.write(skeleton, weights, model)
