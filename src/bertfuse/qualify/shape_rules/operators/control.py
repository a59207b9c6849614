"""If, Loop and Scan: what is said of their outputs holds whatever branch is taken, however often they go round."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .. import scopes
from ..draw import Draw
from ..runtime import Kind, Refused
from .registry import draws

_INT64, _BOOL = Kind("tensor", TensorProto.INT64), Kind("tensor", TensorProto.BOOL)
_STATES = (np.float32, np.float32, np.int64)


def _condition(d: Draw) -> str:
    if d.chance(0.5):
        array = np.array(d.chance(0.5))
        return d.input(array, [], lambda rng, shape: np.asarray(rng.random(shape) < 0.5))
    if d.chance(0.3):
        return d.constant(np.array(d.chance(0.5)))
    number = d.integer(d.r.choice((1, 2, 3)))
    return d.node(d.r.choice(("Less", "Greater", "Equal")), [number, d.constant(np.array(2, np.int64))])


@draws("If")
def if_(d: Draw, op: str) -> None:
    condition = _condition(d)
    dtypes = [d.r.choice(_STATES) for _ in range(d.r.choice((1, 1, 2)))]
    bodies = []
    for _ in range(2):
        body = scopes.inner(d)
        scopes.some_nodes(body, d.r.randint(1, 3))
        results = []
        for dtype in dtypes:
            name = scopes.tensor_of(body, dtype)
            results.append(body.node("Identity", [name]) if name in results else name)
        bodies.append(scopes.graph(body, [], results))
    d.node(op, [condition], outputs=len(dtypes), then_branch=bodies[0], else_branch=bodies[1])


def _next_state(d: Draw, name: str) -> str:
    """What a state becomes: the same, something of its shape, larger with every round, or anything."""
    roll, rank = d.r.random(), d.rank(name)
    if roll < 0.25:
        return d.node("Identity", [name])
    if roll < 0.45:
        return d.node("Add", [name, d.broadcasting(d.shape(name), d.dtype(name))])
    if roll < 0.65 and rank:
        axis = d.axis(rank)
        other = name if d.chance(0.2) else d.fitting([d.size() if i == axis % rank else n for i, n in
                                                      enumerate(d.shape(name))], d.dtype(name))  # fmt: skip
        return d.node("Concat", [name, other], axis=axis)
    if roll < 0.75 and rank > 1:
        return d.node("Transpose", [name])
    return scopes.tensor_of(d, d.dtype(name))


@draws("Loop")
def loop(d: Draw, op: str) -> None:
    rounds = d.r.choice((0, 1, 2, 3, 3))
    trips = d.integer(rounds) if d.chance(0.8) else ""
    condition = _condition(d) if d.chance(0.4) or not trips else ""
    states = [d.tensor((d.r.choice(_STATES),)) for _ in range(d.r.choice((0, 1, 1, 2)))]
    body = scopes.inner(d)
    given = [scopes.take(body, _INT64, np.array(0)), scopes.take(body, _BOOL, np.array(True))]
    given += [scopes.take(body, *d.typed(name)) for name in states]
    scopes.some_nodes(body, d.r.randint(0, 2))
    nexts = [_next_state(body, name) for name in given[2:]]
    made = [body.node("Identity", [scopes.tensor_of(body, d.r.choice(_STATES))])
            for _ in range(d.r.choice((0, 1, 1, 2)) or not states)]  # fmt: skip
    if trips and d.chance(0.6):
        goes_on = body.node("Identity", [given[1]])
    else:
        goes_on = body.node("Less", [given[0], d.constant(np.array(rounds, np.int64))])
    nexts = [body.node("Identity", [n]) if i and n in nexts[:i] else n for i, n in enumerate(nexts)]
    graph = scopes.graph(body, given, [goes_on, *nexts, *made])
    d.node(op, [trips, condition, *states], outputs=len(nexts) + len(made), body=graph)


@draws("Scan")
def scan(d: Draw, op: str) -> None:
    first = d.tensor((np.float32, np.int64), (1, 4))
    axis = d.axis(d.rank(first))
    length = d.shape(first)[axis]
    if not length:
        raise Refused("nothing to scan")
    data, axes = [first], [axis]
    if d.chance(0.3):
        data.append(d.new([length, d.size()]))
        axes.append(0)
    directions = [d.r.randrange(2) for _ in data]
    states = [d.tensor((np.float32,)) for _ in range(d.r.choice((0, 1, 1)))]
    body = scopes.inner(d)
    given = [scopes.take(body, *d.typed(name)) for name in states]
    given += [scopes.take(body, d.typed(name)[0], np.take(d.value(name), 0, axis=a)) for name, a in
              zip(data, axes, strict=True)]  # fmt: skip
    scopes.some_nodes(body, d.r.randint(0, 2))
    nexts = [_next_state(body, name) if d.chance(0.2) else body.node("Identity", [name]) for name in
             given[: len(states)]]  # fmt: skip
    made = [body.node("Identity", [scopes.tensor_of(body, np.float32)]) for _ in range(d.r.choice((1, 1, 2)))]
    placed = [d.axis(body.rank(name) + 1) for name in made]
    attrs = {
        "scan_input_axes": axes if any(axes) or d.chance(0.3) else None,
        "scan_input_directions": directions if any(directions) or d.chance(0.3) else None,
        "scan_output_axes": placed if d.chance(0.5) else None,
        "scan_output_directions": d.maybe([d.r.randrange(2) for _ in made], 0.3),
    }
    graph = scopes.graph(body, given, [*nexts, *made], ranks=True)
    outputs = len(nexts) + len(made)
    d.node(op, [*states, *data], outputs=outputs, num_scan_inputs=len(data), body=graph, **attrs)
