"""Inner tensors as outputs: what lets two graphs be compared node by node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from bertfuse.graph_rewrite.io import open_model, write


def computed_tensors(path: Path) -> list[str]:
    """Names of the tensors that the model's nodes compute, in execution order. Raises FusionError.

    Names say what two models share: a fused model keeps its original's, while two exports may use one name (val_3) for
    different tensors.
    """
    graph = open_model(path)[0].graph
    return [name for node in graph.node for name in node.output if name]


def expose(path: Path, names: Sequence[str], target: Path) -> None:
    """Writes the model to `target` with the tensors `names` as outputs, too. Raises FusionError."""
    skeleton, weights = open_model(path)
    outputs = {value.name for value in skeleton.graph.output}
    skeleton.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    write(skeleton, weights, target)
