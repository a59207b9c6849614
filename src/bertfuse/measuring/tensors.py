"""Inner tensors as outputs: what lets two graphs be compared node by node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from bertfuse.graph_rewrite.fused_nodes import fused_nodes, may_leave_y
from bertfuse.graph_rewrite.io import open_model, write


def computed_tensors(path: Path) -> list[str]:
    """Names of the tensors that the model's nodes compute, in execution order. Raises FusionError.

    Names say what two models share: a fused model keeps its original's, while two exports may use one name (val_3) for
    different tensors. A result that its kernel may leave unwritten, beside its numbers in 8 bits, is none of them.
    """
    model = open_model(path)[0]
    unwritten = {node.output[0] for node in fused_nodes(model) if may_leave_y(node)}
    return [name for node in model.graph.node for name in node.output if name and name not in unwritten]


def expose(path: Path, names: Sequence[str], target: Path) -> None:
    """Writes the model to `target` with the tensors `names` as outputs, too. Raises FusionError."""
    skeleton, weights = open_model(path)
    outputs = {value.name for value in skeleton.graph.output}
    skeleton.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    write(skeleton, weights, target)
