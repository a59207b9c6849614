"""Models run by ONNX Runtime as they are written."""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy

import numpy as np
import onnx
import onnxruntime

from .inputs import Feed

_NOTHING = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def session(model: onnx.ModelProto, optimised=_NOTHING) -> onnxruntime.InferenceSession:
    """A session with one thread and, unless asked for, without optimisations: what the file says, and nothing else."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = optimised
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(runner: onnxruntime.InferenceSession, feed: Feed) -> list[np.ndarray] | None:
    """The outputs; None where it does not run on these inputs."""
    try:
        return runner.run(None, {name: feed[name] for name in taken(runner) if name in feed})
    except Exception:
        return None


def taken(runner: onnxruntime.InferenceSession) -> list[str]:
    """Inputs, and initialisers that are inputs, too."""
    return [value.name for value in (*runner.get_inputs(), *runner.get_overridable_initializers())]


def inner(model: onnx.ModelProto, names: Collection[str], feed: Feed) -> dict[str, np.ndarray] | None:
    """Inner tensors of a model that is run on these inputs; None where it does not run."""
    inputs = {value.name for value in model.graph.input}
    asked = [name for name in names if name not in inputs]
    copy = deepcopy(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    found = run(session(copy), feed) if asked else []
    if found is None:
        return None
    return dict(zip(asked, found, strict=True)) | {name: feed[name] for name in names if name in inputs}
