"""A model's own functions, put in the place of their calls before anything looks at the graph."""

from __future__ import annotations

import onnx
from onnx import inliner

from .domains import is_reserved


def inlined(skeleton: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the bodies of its functions in the place of their calls; itself where it has no functions.

    A function that is written for another opset than the model's stays: its calls are operators of another domain, of
    which nothing is known.
    """
    if not skeleton.functions:
        return skeleton
    made = inliner.inline_local_functions(skeleton)
    _name_after_calls(made, skeleton)
    return made


def _name_after_calls(made: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Messages speak of the user's nodes: what a call became begins with the call's name."""
    kept = {tuple(node.output) for node in original.graph.node}
    calls = {node.output[0]: node for node in original.graph.node if node.output}
    functions = {(function.domain, function.name) for function in original.functions}
    inside: list[onnx.NodeProto] = []
    for node in made.graph.node:
        call = next((calls[name] for name in node.output if name in calls), None)
        if call is None or (call.domain, call.op_type) in functions:
            inside.append(node)
        elif tuple(node.output) in kept:
            continue
        if call is not None and inside:
            name = call.name or f"{call.op_type}->{call.output[0]}"
            for index, each in enumerate(inside):
                each.name = name if each is node else f"{name}/{each.op_type}_{index}"
            inside = []


def ambiguous(skeleton: onnx.ModelProto) -> str:
    """The name of a function that runtimes may take for an operator of theirs; "" where there is none.

    ONNX Runtime computes its own Mul where a model defines a function Mul of ONNX's domain; ONNX's inliner takes the
    function.
    """
    return next((f"{f.domain or 'ai.onnx'}.{f.name}" for f in skeleton.functions if is_reserved(f.domain)), "")
