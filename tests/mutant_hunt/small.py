"""Models of a few nodes, written out."""

from __future__ import annotations

import numpy as np
import onnx


def parsed(graph: str, **initialisers: np.ndarray | float) -> onnx.ModelProto:
    made = onnx.parser.parse_graph(graph)
    made.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in initialisers.items()
    )
    return onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
