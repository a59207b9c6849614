"""Bodies of If, Loop, Scan and SequenceMap, and local functions: drawn as graphs are, in a scope of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .draw import Draw, free_names
from .runtime import Kind, Refused, Value, element_of

# What stands between the operator that is tried and its inputs, or reads its outputs: mostly what makes or shows sizes.
NEIGHBOURS = (
    "Reshape", "Reshape", "Slice", "Slice", "Concat", "Concat", "Transpose", "Expand", "Squeeze", "Unsqueeze", "Gather",
    "Split", "Shape", "Size", "ReduceSum", "ReduceMean", "MatMul", "Add", "Mul", "Where", "Cast", "Range",
    "ConstantOfShape", "Tile", "Pad", "Flatten", "Max", "Equal", "GatherND", "NonZero", "Relu", "Softmax", "ArgMax",
    "Identity", "Einsum", "Gemm", "LayerNormalization", "TopK", "Sub", "Div", "Mod",
)  # fmt: skip
_MOST_DEPTH = 2
# What drawing raises, now and then, where no numbers fit: another draw does.
CANNOT_BE = (ArithmeticError, LookupError, TypeError, ValueError)


def depth(d: Draw) -> int:
    return 0 if d.parent is None else 1 + depth(d.parent)


def inner(d: Draw, form: str = "body", opset: int | None = None) -> Draw:
    """A scope within `d`. Tensors of two bodies of one depth have the same names."""
    if depth(d) >= _MOST_DEPTH:
        raise Refused("deep enough")
    made = Draw(d.plan, form, d)
    made.opset = opset or d.opset
    made.prefix, made.local = f"b{depth(made)}_", 0
    return made


def take(d: Draw, kind: Kind, value: Value) -> str:
    """A formal input of this scope."""
    name = d.fresh_name()
    d.own[name] = (kind, value)
    d.recent.append(name)
    return name


def some_nodes(d: Draw, count: int) -> None:
    for _ in range(count):
        for _ in range(4):
            op = d.r.choice(NEIGHBOURS)
            try:
                d.plan.drawers[op](d, op)
                break
            except (Refused, *CANNOT_BE):
                continue


def tensor_of(d: Draw, dtype: Any) -> str:
    """A tensor that a node of this scope makes, of that dtype."""
    made = [n for n in d.recent if n in d.own and d.own[n][0].form == "tensor" and d.own[n][1].dtype.kind in "biuf"]
    made = [n for n in made if any(n in node.output for node in d.nodes)]
    same = [n for n in made if d.dtype(n) == np.dtype(dtype)]
    if same and d.chance(0.85):
        return same[-1] if d.chance(0.7) else d.r.choice(same)
    if made and np.dtype(dtype).kind in "biuf":
        return d.node("Cast", [made[-1]], to=element_of(dtype))
    return d.node("Identity", [d.tensor((dtype,))])


def graph(d: Draw, given: Sequence[str], results: Sequence[str], ranks: bool = False) -> onnx.GraphProto:
    """The body; `ranks` declares at least how many axes its outputs have, which a Scan wants. Declared shapes
    of its inputs and outputs are claims, and need not be right."""
    return helper.make_graph(
        d.nodes,
        d.r.choice(("body", "graph")),
        [_declared(d, name, 0.3) for name in given],
        [_declared(d, name, 0.3, ranks) for name in results],
        d.initializers,
    )


def _declared(d: Draw, name: str, p: float, rank: bool = False) -> onnx.ValueInfoProto:
    kind, value = d.typed(name)
    if kind.form != "tensor":
        return kind.value_info(name)
    if value.ndim == 0:  # a Loop does not run without those of its count and its condition
        return kind.value_info(name, [])
    if not d.chance(p):
        return kind.value_info(name, [None] * value.ndim if rank else None)
    return kind.value_info(name, claimed_shape(d, value.shape))


def claimed_shape(d: Draw, shape: Sequence[int]) -> list[int | str | None]:
    """What a file may say of a tensor that has this shape in one run: right there, and seldom in every run."""
    names = [name for name in d.plan.sizes if not name.startswith("?")] or ["batch"]
    claimed: list[int | str | None] = []
    for size in shape:
        same = [name for name in names if d.plan.sizes.get(name) == size]
        roll = d.r.random()
        if same and roll < 0.5:
            claimed.append(d.r.choice(same))
        elif roll < 0.7:
            claimed.append(d.r.choice([*names, "u", "v", "axis_1"]))
        else:
            claimed.append(size if roll < 0.85 else None)
    return claimed


def function(d: Draw, inputs: Sequence[str], name: str, domain: str, attribute: bool) -> tuple[str, dict[str, Any]]:
    """A local function of these inputs (by their values), added to the model; its name and what a call must set."""
    opset = d.opset if d.chance(0.8) else d.r.randint(max(13, d.opset - 2), d.opset)
    scope = inner(d, "function", opset)
    given = [take(scope, *d.typed(each)) for each in inputs]
    some_nodes(scope, d.r.randint(1, 3))
    result = tensor_of(scope, np.float32)
    attrs: dict[str, Any] = {}
    if attribute:
        attrs = _with_references(d, scope.nodes)
    used = {name for node in scope.nodes for name in free_names(node)}
    imports = [helper.make_opsetid("", opset)]
    domains = {node.domain for node in scope.nodes} - {"", "ai.onnx"}
    imports += [helper.make_opsetid(each, 1) for each in sorted(domains)]
    if not used & set(given):
        raise Refused("reads none of its inputs")
    made = helper.make_function(domain, name, given, [result], scope.nodes, imports, attributes=list(attrs))
    d.plan.functions.append(made)
    d.plan.domains.setdefault(domain, 1)
    return name, attrs


def _with_references(d: Draw, nodes: Sequence[onnx.NodeProto]) -> dict[str, Any]:
    """Replaces a whole number among the nodes' attributes by a reference to an attribute of the function."""
    found = [a for node in nodes for a in node.attribute if a.type == onnx.AttributeProto.INT]
    found = [a for a in found if a.name != "to"]
    if not found:
        return {}
    chosen = d.r.choice(found)
    value = chosen.i
    chosen.ref_attr_name = "number"
    chosen.ClearField("i")
    return {"number": value}
