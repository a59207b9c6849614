"""Rotary position embeddings of other angles, other pairs of columns, and of one layer alone."""

from __future__ import annotations

from random import Random

import numpy as np

from ..mutant import Mutant

_UNARY = ("Abs", "Neg", "Sqrt", "Floor", "Identity", "Sin")


def angle(m: Mutant, r: Random) -> str | None:
    """The angle of a cosine or a sine, or of both, that is not the place times a constant, or another one."""
    node = m.node(r, lambda n: n.op_type in ("Cos", "Sin"))
    if node is None:
        return None
    given = node.input[0]
    how = r.randrange(4)
    if how == 0:
        made, said = m.insert_before(node, r.choice(_UNARY), [given]), "of a function of the angle"
    elif how == 1:
        made, said = m.insert_before(node, "Mul", [given, given]), "of the angle's square"
    elif how == 2:
        step = m.add_constant(np.float32(r.choice([0.0, 0.5, 1e-3, 3.141592])))
        made, said = m.insert_before(node, "Add", [given, step]), "of an angle that begins elsewhere"
    else:
        factor = m.add_constant(np.float32(r.choice([1.0, -1.0, 0.5, 1.001, 0.0])))
        made, said = m.insert_before(node, "Mul", [given, factor]), "of a multiple of the angle"
    users = [n for n in m.nodes if n.op_type in ("Cos", "Sin") and n.input[0] == given]
    for user in users if r.random() < 0.6 else [node]:
        user.input[0] = made
    m.kinds[made] = m.kinds.get(given)
    return f"{m.called(node)}: {said}"


def pairs(m: Mutant, r: Random) -> str | None:
    """What is joined the other way round, or with another sign: other columns are paired."""
    behind = {name for n in m.nodes if n.op_type == "Neg" for name in n.output}
    node = m.node(r, lambda n: n.op_type == "Concat" and len(n.input) == 2 and bool(behind & set(n.input)))
    if node is None:
        return None
    how = r.randrange(3)
    if how == 0:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return f"{m.called(node)} joins its halves the other way round"
    if how == 1:
        index = 0 if node.input[0] in behind else 1
        negation = next(n for n in m.nodes if node.input[index] in n.output)
        node.input[index] = negation.input[0]
        return f"{m.called(node)} negates nothing"
    index = r.randrange(2)
    node.input[index] = m.insert_before(node, "Neg", [node.input[index]])
    return f"{m.called(node)} negates half {index}"


def frequency(m: Mutant, r: Random) -> str | None:
    """Another cosine or sine for one layer, of Q or K alone: of another base, or the other of the two."""
    made = {name: n for n in m.nodes for name in n.output if n.op_type in ("Cos", "Sin")}
    views = ("Unsqueeze", "Cast", "Reshape", "Mul", "Expand")
    reached = dict(made)
    for n in m.nodes:
        if n.op_type in views and n.input[0] in reached:
            reached[n.output[0]] = reached[n.input[0]]
    node = m.node(r, lambda n: n.op_type == "Mul" and any(name in reached for name in n.input))
    if node is None:
        return None
    index = next(i for i, name in enumerate(node.input) if name in reached)
    kind = m.kinds.get(node.input[index])
    others = [name for name in m.before(node, kind) if name in reached and name != node.input[index]]
    if not others:
        return None
    node.input[index] = r.choice(others)
    return f"{m.called(node)} is given '{node.input[index]}'"
