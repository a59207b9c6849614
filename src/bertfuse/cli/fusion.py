"""What a fusion did, for people and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import stderr, stdout, table

if TYPE_CHECKING:
    from bertfuse.graph_rewrite import FusionResult


def fusion_report(result: FusionResult) -> dict[str, Any]:
    """The result as plain data."""
    return {
        "expected": dict(result.expected),
        "fused": dict(result.fused),
        "misses": [miss.to_dict() for miss in result.misses],
        "nodes": {"before": result.nodes[0], "after": result.nodes[1]},
        "messages": list(result.messages),
        "passes": [report.to_dict() for report in result.passes],
    }


def print_fusion(result: FusionResult) -> None:
    """Per op what was expected and fused, then every miss, then remarks."""
    console = stdout()
    names = list(dict.fromkeys([*result.expected, *result.fused]))
    names = [name for name in names if result.expected.get(name) or result.fused.get(name)]
    if names:
        rows = [[name, str(result.expected.get(name, 0)), str(result.fused.get(name, 0))] for name in names]
        console.print(table("", ["op", "expected", "fused"], rows))
        console.print(f"{result.nodes[0]} nodes before, {result.nodes[1]} after")
    elif not result.messages:
        console.print("Nothing to fuse: this is not a BERT-family encoder; the model was written unchanged.")
    for miss in result.misses:
        stderr().print(f"missed {miss}", markup=False)
    print_passes(result)
    for message in result.messages:
        console.print(message, markup=False)


def print_passes(result: FusionResult) -> None:
    """What passes over the fused graph did, and what they left alone and why."""
    for line in result.pass_lines:
        stdout().print(line, markup=False, soft_wrap=True)


def is_complete(result: FusionResult) -> bool:
    """Whether everything expected was fused, and padding removed where that was asked for."""
    return result.complete and all(report.done for report in result.passes if report.changes_padding)
