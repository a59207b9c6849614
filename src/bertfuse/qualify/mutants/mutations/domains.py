"""Operators of other domains that look like standard ones: model-local functions, which may compute what they like."""

from __future__ import annotations

from random import Random

import onnx
from onnx import helper

from ..mutant import Mutant
from .operators import SIBLINGS

_DOMAINS = ("my", "local", "pkg.torch", "com.example", "MY", "a b", "ai.onnx.contrib", "test.my.ops")
# Rarely: domains that mean something to ONNX Runtime, or to whoever reads the graph.
_KNOWN = ("com.microsoft", "ai.onnx.ml", "ai.onnx")


def foreign(m: Mutant, r: Random) -> str | None:
    """A node becomes the call of a function of its operator's name: of its body, or of one that is nearly that."""
    node = m.node(r, _is_plain)
    if node is None:
        return None
    domain = r.choice(_DOMAINS if r.random() < 0.9 else _KNOWN)
    kind = m.kinds.get(node.output[0])
    inputs = [f"i{place}" if name else "" for place, name in enumerate(node.input)]
    inner = helper.make_node(node.op_type, inputs, ["o0"])
    inner.attribute.extend(node.attribute)
    body, what = _body(inner, kind, r)
    handed_on = [a for a in node.attribute if a.type != onnx.AttributeProto.GRAPH] if r.random() < 0.5 else []
    if handed_on:
        what += ", with its attributes handed on"
        for inside in (n for n in body if n.op_type == node.op_type):
            kept = [a for a in inside.attribute if a.name not in {given.name for given in handed_on}]
            changed = {a.name for a in inside.attribute} - {a.name for a in node.attribute if a in inside.attribute}
            del inside.attribute[:]
            inside.attribute.extend(kept)
            for given in handed_on:
                if given.name not in changed:
                    inside.attribute.append(
                        onnx.AttributeProto(name=given.name, ref_attr_name=given.name, type=given.type)
                    )
    parameters = [name for name in inputs if name]
    called, name = _register(m, r, domain, node.op_type, parameters, body, [a.name for a in handed_on])
    given = [tensor for tensor in node.input if tensor]
    del node.input[:]
    node.input.extend(given)
    del node.attribute[:]
    node.attribute.extend(handed_on)
    node.domain, node.op_type = called, name
    return f"{m.called(node)} is of the domain '{called}': {what}"


def _is_plain(node: onnx.NodeProto) -> bool:
    return (
        node.domain in ("", "ai.onnx")
        and len(node.output) == 1
        and bool(node.input)
        and not any(a.HasField("g") for a in node.attribute)
    )


def _body(inner: onnx.NodeProto, kind, r: Random) -> tuple[list[onnx.NodeProto], str]:
    """Nodes that make "o0" of "i0", "i1", ..., and what they are."""
    make = helper.make_node
    how = r.random()
    if how < 0.25:
        return [inner], "the same operator"
    family = next((f for f in SIBLINGS if inner.op_type in f), None)
    if family and how < 0.5:
        inner.op_type = r.choice([op for op in family if op != inner.op_type])
        if inner.op_type not in ("Softmax", "LogSoftmax", "Hardmax") and not inner.op_type.startswith("Reduce"):
            del inner.attribute[:]
        return [inner], f"its body is {inner.op_type}"
    if len(inner.input) > 1 and how < 0.65:
        first, second = inner.input[0], inner.input[1]
        inner.input[0], inner.input[1] = second, first
        return [inner], "its body has the inputs exchanged"
    if how < 0.75 and len(inner.input[0]):
        return [make("Identity", [inner.input[0]], ["o0"])], "its body is Identity"
    inner.output[0] = "between"
    if kind is not None and kind.element == onnx.TensorProto.BOOL:
        return [inner, make("Not", ["between"], ["o0"])], "its body has a Not behind it"
    ways = [("Abs",), ("Neg",), ("Identity",), ("Add", "between"), ("Mul", "between"), ("Sign",)]
    op, *more = r.choice(ways)
    return [inner, make(op, ["between", *more], ["o0"])], f"its body has {op} behind it"


def _register(
    m: Mutant, r: Random, domain: str, name: str, inputs: list[str], body: list, attributes: list[str]
) -> tuple[str, str]:
    """Add the function, inside another one now and then; returns domain and name to call."""
    taken = {(f.domain, f.name) for f in m.model.functions}
    while (domain, name) in taken:
        domain += "2"
    _import(m, domain)
    opsets = [helper.make_opsetid("", m.opset), helper.make_opsetid(domain, 1)]
    if r.random() < 0.25 and (domain, f"{name}Inner") not in taken:
        inner = f"{name}Inner"
        m.model.functions.append(helper.make_function(domain, inner, inputs, ["o0"], body, opsets[:1], attributes))
        call = helper.make_node(inner, inputs, ["o0"], domain=domain)
        for given in {a.ref_attr_name: a for n in body for a in n.attribute if a.ref_attr_name}.values():
            call.attribute.append(given)
        body = [call]
    m.model.functions.append(helper.make_function(domain, name, inputs, ["o0"], body, opsets, attributes))
    m.model.ir_version = max(m.model.ir_version, 8)
    return domain, name


def _import(m: Mutant, domain: str) -> None:
    if all(o.domain != domain for o in m.model.opset_import):
        m.model.opset_import.append(helper.make_opsetid(domain, 1))


def block(m: Mutant, r: Random) -> str | None:
    """A node and the one before it become the call of one function, which may be named like a standard operator."""
    users: dict[str, list[onnx.NodeProto]] = {}
    for n in m.nodes:
        for name in n.input:
            users.setdefault(name, []).append(n)
    made = {n.output[0]: n for n in m.nodes if _is_plain(n) and n.output[0] not in m.output_names()}
    constants = m.constants()
    second = m.node(r, lambda n: _is_plain(n) and any(t in made and len(users[t]) == 1 for t in n.input))
    if second is None:
        return None
    between = r.choice([t for t in second.input if t in made and len(users[t]) == 1])
    first = made[between]
    outer = list(dict.fromkeys(t for n in (first, second) for t in n.input if t and t != between))
    if any(t in constants for t in outer) and r.random() < 0.3:
        return None  # a function's weights are its inputs, mostly; that is no reason to have only such
    names = {t: f"i{place}" for place, t in enumerate(outer)} | {between: "between", "": ""}
    body = []
    for n, output in ((first, "between"), (second, "o0")):
        copy = helper.make_node(n.op_type, [names[t] for t in n.input], [output], name=n.name)
        copy.attribute.extend(n.attribute)
        body.append(copy)
    name = r.choice([second.op_type, first.op_type, "Block", "LayerNormalization", "Gelu", "Attention"])
    what = f"{m.called(first)} and {m.called(second)}"
    domain, name = _register(m, r, r.choice(_DOMAINS), name, list(names.values())[: len(outer)], body, [])
    call = helper.make_node(name, outer, [second.output[0]], name=second.name, domain=domain)
    at = next(i for i, n in enumerate(m.nodes) if n.output == second.output)
    m.nodes.remove(second)
    m.nodes.insert(at, call)
    m.nodes.remove(first)
    return f"{what} are the function {domain}::{name}"


def long_domain(m: Mutant, r: Random) -> str | None:
    """Some nodes, or all, name the standard domain "ai.onnx"; so may the import."""
    chance = r.choice([0.1, 0.5, 1.0])
    for node in m.nodes:
        if node.domain == "" and r.random() < chance:
            node.domain = "ai.onnx"
    if r.random() < 0.5:
        m.model.opset_import.append(helper.make_opsetid("ai.onnx", m.opset))
    else:
        for given in m.model.opset_import:
            given.domain = given.domain or "ai.onnx"
    return f"{chance:.0%} of the nodes are of the domain 'ai.onnx'"
