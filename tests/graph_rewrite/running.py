"""Models in ONNX Runtime on the CPU, with the op library or without, and what they hold of fused ops."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime

from bertfuse.graph_rewrite.spec import DOMAIN


def session(model: onnx.ModelProto | str, library: object = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if library:
        options.register_custom_ops_library(str(library))
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(runner: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return runner.run(None, {value.name: feed[value.name] for value in runner.get_inputs()})


def counts(model: onnx.ModelProto) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in model.graph.node:
        if node.domain == DOMAIN:
            found[node.op_type] = found.get(node.op_type, 0) + 1
    return found
