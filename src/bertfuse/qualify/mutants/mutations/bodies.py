"""Nodes moved into the bodies of If, Loop and Scan."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..mutant import Mutant
from ..sizes import Arithmetic
from .operators import SIBLINGS

_BOOL, _INT64 = TensorProto.BOOL, TensorProto.INT64


def _value(name: str, element: int, shape: list | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def _condition(m: Mutant, r: Random, node: onnx.NodeProto) -> tuple[str, str] | None:
    """A bool scalar: what is computed of a size, compared with a number."""
    names = [i.name for i in m.facts.signature.inputs if len(i.shape) >= 2]
    if not names:
        return None
    of = Arithmetic(m, r, node)
    number, what = of.of_size(r.choice(names), r.choice([0, 1, 1]))
    limit = r.choice([-1, 0, 1, 2, 3, 4, 7, 16])
    op = r.choice(["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"])
    return of.op(op, number, of.ints(limit)), f"{what} {op} {limit}"


def _is_movable(node: onnx.NodeProto) -> bool:
    return len(node.output) == 1 and bool(node.input) and not any(a.HasField("g") for a in node.attribute)


def _copies(nodes: list[onnx.NodeProto], end: str) -> list[onnx.NodeProto]:
    """The nodes with outputs, and names, of their own."""
    names = {name: f"{name}_{end}" for n in nodes for name in n.output if name}
    made = []
    for n in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(n)
        copy.name = f"{n.name}_{end}" if n.name else ""
        copy.input[:] = [names.get(t, t) for t in n.input]
        copy.output[:] = [names.get(t, t) for t in n.output]
        made.append(copy)
    return made


def _chain(m: Mutant, node: onnx.NodeProto, r: Random) -> list[onnx.NodeProto]:
    """The node, and before it some of what it alone reads."""
    chain, made = [node], {n.output[0]: n for n in m.nodes if _is_movable(n) and n.op_type != "Constant"}
    while len(chain) < 4 and r.random() < 0.5:
        inputs = [t for t in chain[0].input if t in made and t not in m.output_names()]
        alone = [t for t in inputs if sum(t in n.input for n in m.nodes) == 1 and not _in_a_body(m, t)]
        if not alone:
            break
        chain.insert(0, made[r.choice(alone)])
    return chain


def _in_a_body(m: Mutant, name: str) -> bool:
    return any(name in inner.input for n in m.nodes for a in n.attribute if a.HasField("g") for inner in a.g.node)


def branch(m: Mutant, r: Random) -> str | None:
    """Some nodes move into both branches of an If, one of which does something else."""
    node = m.node(r, _is_movable)
    if node is None or (kind := m.kinds.get(node.output[0])) is None:
        return None
    chain = _chain(m, node, r)
    found = _condition(m, r, chain[0])
    if found is None:
        return None
    holds, what = found
    output = node.output[0]
    usual, other = _copies(chain, "usual"), _copies(chain, "other")
    said = _changed(m, r, other, kind, output)
    branches = {"then_branch": (usual, f"{output}_usual"), "else_branch": (other, other[-1].output[0])}
    if r.random() < 0.5:
        branches = dict(zip(branches, reversed(branches.values()), strict=True))
    bodies = {
        name: helper.make_graph(nodes, f"{name}_of_{output}", [], [_value(result, kind.element)])
        for name, (nodes, result) in branches.items()
    }
    made = helper.make_node("If", [holds], [output], name=node.name, **bodies)
    at = next(i for i, n in enumerate(m.nodes) if n.output == node.output)
    m.nodes.insert(at, made)
    for n in chain:
        m.nodes.remove(n)
    return f"{' '.join(n.op_type for n in chain)} '{node.name}' in branches ({what}): {said}"


def _changed(m: Mutant, r: Random, nodes: list[onnx.NodeProto], kind, output: str) -> str:
    """Make the nodes of one branch do something else, or not."""
    last = nodes[-1]
    how = r.randrange(5)
    varying = [axis for axis, (a, b) in enumerate(kind.shape) if a != b]
    if how == 0 and varying:
        axis = r.choice(varying)
        bounds = [m.add_constant(np.asarray(n, np.int64)) for n in ([0], [1], [axis])]
        nodes.append(helper.make_node("Slice", [last.output[0], *bounds], [f"{output}_first"]))
        return f"one has the first along axis {axis} alone"
    if how == 1:
        family = next((f for f in SIBLINGS if last.op_type in f), None)
        if family:
            last.op_type = r.choice(family)
            return f"one is {last.op_type}"
    if how == 2:
        made = next(i for i, n in enumerate(m.nodes) if output in n.output)
        others = m.before(m.nodes[made], kind)
        if others:
            other = r.choice(others)
            nodes[:] = [helper.make_node("Identity", [other], [f"{output}_instead"])]
            return f"one is '{other}'"
    if how == 3:
        op = "Not" if kind.element == _BOOL else r.choice(["Neg", "Abs", "Sign"])
        nodes.append(helper.make_node(op, [last.output[0]], [f"{output}_changed"]))
        return f"one has {op} behind it"
    return "both alike"


def loop(m: Mutant, r: Random) -> str | None:
    """A tensor passes through a Loop of one turn, or of a computed number of turns, and may grow in each."""
    node, index = m.edge(r)
    if node is None or (kind := m.kinds.get(node.input[index])) is None:
        return None
    x = node.input[index]
    of = Arithmetic(m, r, node)
    times, turns = of.ints(1), "1"
    if r.random() < 0.4:
        sized = [i.name for i in m.facts.signature.inputs if len(i.shape) >= 2]
        if not sized:
            return None
        number, turns = of.of_size(r.choice(sized), 1)
        times = of.op("Clip", number, of.ints(0), of.ints(3))
    elif r.random() < 0.3:
        turns = str(r.choice([0, 2]))
        times = of.ints(int(turns))
    name = m.new_name("turn")
    carried, left = f"{name}_in", f"{name}_out"
    varying = [axis for axis, (a, b) in enumerate(kind.shape) if a != b]
    if varying and r.random() < 0.3:
        axis = r.choice(varying)
        first = helper.make_node("Slice", [carried, of.ints([0]), of.ints([1]), of.ints([axis])], [f"{name}_first"])
        nodes = [first, helper.make_node("Concat", [carried, f"{name}_first"], [left], axis=axis)]
        what = f"grown along axis {axis}"
    else:
        op = r.choice(["Identity", "Identity", "Abs"] if kind.element != _BOOL else ["Identity", "Not"])
        nodes, what = [helper.make_node(op, [carried], [left])], op
    go, step = f"{name}_go", f"{name}_step"
    body = helper.make_graph(
        [*nodes, helper.make_node("Identity", [go], [f"{go}_on"])], name,
        [_value(step, _INT64, []), _value(go, _BOOL, []), _value(carried, kind.element)],
        [_value(f"{go}_on", _BOOL, []), _value(left, kind.element)],
    )  # fmt: skip
    made = of.op("Loop", times, m.add_constant(np.asarray(True)), x, body=body)
    m.kinds[made] = kind
    node.input[index] = made
    return f"'{x}' for {m.called(node)} is {what} in a Loop of {turns} turns"


def scan(m: Mutant, r: Random) -> str | None:
    """A tensor passes through a Scan along an axis: as it is, or backwards, or with that axis in another place."""
    node, index = m.edge(r)
    if node is None or (kind := m.kinds.get(node.input[index])) is None or not kind.shape:
        return None
    x = node.input[index]
    axis = r.randrange(len(kind.shape))
    name = m.new_name("scan")
    op = r.choice(["Identity", "Identity", "Not" if kind.element == _BOOL else "Abs"])
    body = helper.make_graph(
        [helper.make_node(op, [f"{name}_in"], [f"{name}_out"])], name,
        [_value(f"{name}_in", kind.element)], [_value(f"{name}_out", kind.element)],
    )  # fmt: skip
    attributes = {"scan_input_axes": [axis], "num_scan_inputs": 1}
    if r.random() < 0.8:
        attributes["scan_output_axes"] = [axis]
    if r.random() < 0.3:
        attributes[r.choice(["scan_input_directions", "scan_output_directions"])] = [1]
    made = Arithmetic(m, r, node).op("Scan", x, body=body, **attributes)
    m.kinds[made] = kind
    node.input[index] = made
    return f"'{x}' for {m.called(node)} passes through a Scan of {op} along axis {axis}"
