"""Which operator a node is: a name means ONNX's operator, and any other domain's is called by domain and name.

Done once, when a graph is read, so that `node.op == "Mul"` is true of ONNX's Mul and of no other operator: a rule that
asks for a name cannot take one domain's operator for another's.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_graphsurgeon as gs

MICROSOFT = "com.microsoft"
_SEPARATOR = "::"
_ONNX = ("", "ai.onnx")
_RUNTIMES = ("ai.onnx.", "com.microsoft", "com.ms.")  # begin the domains whose operators runtimes have


def called(domain: str, *ops: str) -> tuple[str, ...]:
    """What operators of a domain are called in a graph that was read."""
    return ops if domain in _ONNX else tuple(f"{domain}{_SEPARATOR}{op}" for op in ops)


def is_reserved(domain: str) -> bool:
    """Whether runtimes have operators of this domain."""
    return domain in _ONNX or domain.startswith(_RUNTIMES)


def qualify(nodes: Iterable[gs.Node]) -> None:
    """Give the nodes of other domains than ONNX's the name of their domain; ONNX's own have no domain afterwards."""
    for node in nodes:
        domain = node.domain or ""
        (node.op,) = called(domain, node.op)
        node.domain = None if domain in _ONNX else domain


def restore(nodes: Iterable[onnx.NodeProto]) -> None:
    """Take the domain out of the names again, in a model that is written."""
    for node in nodes:
        if node.domain:
            node.op_type = node.op_type.removeprefix(f"{node.domain}{_SEPARATOR}")
