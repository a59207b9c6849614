"""Small questions about nodes and tensors of an onnx-graphsurgeon graph, and the one way a match fails."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

DIALECT = "bertfuse.dialect"
DEFAULT_DOMAINS = (None, "", "ai.onnx")


class NoMatch(Exception):
    """A match that broke at `node`, because of `reason`."""

    def __init__(self, node: gs.Node | str, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.node = node if isinstance(node, str) else node_name(node)
        self.reason = reason
        self.hint = hint


def node_name(node: gs.Node) -> str:
    """How a node is called in messages: its name, or type and output where it has none."""
    return node.name or f"{node.op}->{node.outputs[0].name if node.outputs else '?'}"


def scalar(tensor: gs.Tensor) -> float | None:
    """The value of a one-element constant, else None."""
    if isinstance(tensor, gs.Constant) and int(np.prod(tensor.shape)) == 1:
        return float(np.asarray(tensor.values).reshape(-1)[0])
    return None


def producer(tensor: gs.Tensor) -> gs.Node | None:
    return tensor.inputs[0] if tensor.inputs else None
