"""Model number N of a seed, the same every time, and the inputs that it is run with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import arithmetic, scopes
from .draw import MOST_ELEMENTS, SIZES, Draw, Input, Plan
from .operators import DRAWERS
from .operators.foreign import FOREIGN
from .runtime import Refused, Value, element_of
from .subjects import Subject, subjects

_TRIES = 5
_RUNS = 7
Feed = dict[str, Value]


@dataclass
class Drawn:
    """A model. `feeds` are sets of inputs, the first one that which it was drawn with."""

    number: int
    subject: Subject
    model: onnx.ModelProto
    feeds: list[Feed] = field(default_factory=list)
    hidden: frozenset[str] = frozenset()  # tensors of types of which Python gets no array


@lru_cache(maxsize=2)
def order(seed: int) -> tuple[Subject, ...]:
    """The subjects in the order in which models take them, one after the other and over again."""
    found = subjects()
    Random(f"{seed} order").shuffle(found)
    return tuple(found)


def draw(seed: int, number: int, only: frozenset[str] | None = None) -> Drawn:
    """Raises Refused where nothing was found that ONNX Runtime runs. `only` restricts the subjects by operator."""
    r = Random(f"{seed} {number}")
    chosen = [s for s in order(seed) if only is None or s.op in only]
    subject = chosen[number % len(chosen)]
    plan = Plan(r, r.choice(subject.opsets), DRAWERS, arithmetic.vector, arithmetic.scalar, odd_names=r.random() < 0.12)
    d = Draw(plan)
    scopes.some_nodes(d, r.choice((0, 0, 1, 1, 2, 3)))
    _subject(d, subject)
    scopes.some_nodes(d, r.choice((0, 1, 1, 2)))
    for _ in range(r.choice((0, 1, 1, 2))):
        try:
            arithmetic.probe(d)
        except (Refused, *scopes.CANNOT_BE):
            continue
    if r.random() < 0.1:
        scopes.some_nodes(d, 2)
    model = _model(d)
    feeds = [{given.name: given.base for given in plan.inputs}, *_feeds(plan)]
    return Drawn(number, subject, model, feeds, frozenset(d.hidden))


def _subject(d: Draw, subject: Subject) -> None:
    """Within a body of an If or a Loop now and then, where the drawer chooses it: control flow is a neighbour, too."""
    for attempt in range(_TRIES):
        try:
            if subject.foreign:
                FOREIGN[subject.op](d)
            else:
                DRAWERS[subject.op](d, subject.op)
            return
        except (Refused, *scopes.CANNOT_BE) as error:
            if attempt == _TRIES - 1:
                raise Refused(f"{type(error).__name__}: {error}") from error


def _model(d: Draw) -> onnx.ModelProto:
    r, plan = d.r, d.plan
    used = {name for node in d.nodes for name in scopes.free_names(node)}
    made = [name for node in d.nodes for name in node.output if name in d.own]
    outputs = [name for name in made if name not in used or r.random() < 0.1]
    if not outputs:
        raise Refused("nothing drawn")
    claims = r.random()
    results = [_declared(d, name, 0.5 if claims < 0.4 else 0.0) for name in outputs]
    inside = [name for name in made if name not in outputs and name not in d.hidden]
    stated = [_declared(d, name, 1.0) for name in inside if claims < 0.25 and r.random() < 0.5]
    given = [helper.make_tensor_value_info(i.name, _element(i), i.axes) for i in plan.inputs]
    initializers = [*d.initializers, *(numpy_helper.from_array(i.base, i.name) for i in plan.inputs if i.is_default)]
    graph = helper.make_graph(d.nodes, "drawn", given, results, initializers, value_info=stated)
    domain = "ai.onnx" if r.random() < 0.03 else ""
    imports = [helper.make_opsetid(domain, plan.opset)]
    imports += [helper.make_opsetid(name, version) for name, version in plan.domains.items()]
    return helper.make_model(graph, opset_imports=imports, functions=plan.functions, ir_version=plan.ir_version)


def _element(given: Input) -> int:
    return element_of(given.base.dtype)


def _declared(d: Draw, name: str, p: float) -> onnx.ValueInfoProto:
    kind, value = d.own[name]
    if kind.form != "tensor" or not d.chance(p):
        return kind.value_info(name)
    shape = scopes.claimed_shape(d, value.shape)
    if d.chance(0.05):
        shape = [*shape, d.r.choice((1, "batch"))]
    return kind.value_info(name, shape)


def _feeds(plan: Plan) -> Iterator[Feed]:
    """Other sizes of the same axes, and other values: names that were equal are not, one is 1, or 0, or all are."""
    r = plan.r
    names = list(plan.sizes)
    low = 1 if plan.positive else 0
    few = [n for n in SIZES if n >= low]
    for turn in range(_RUNS):
        sizes = dict(plan.sizes)
        if names and turn == 0:
            sizes = {name: r.choice((2, 3, 5, 7)) for name in names}
        elif names and turn == 1:
            sizes = dict.fromkeys(names, r.choice(few))
        elif names and turn == 2:
            sizes[r.choice(names)] = 1
        elif names and turn in (3, 4):
            sizes[r.choice(names)] = r.choice(few)
        elif names and turn == 5:
            sizes = {name: r.choice(few) for name in names}
        rng, feed = plan.rng(), {}
        for given in plan.inputs:
            shape = tuple(key if isinstance(key, int) else sizes[key] for key in given.keys)
            if np.prod(shape) > MOST_ELEMENTS:
                break
            feed[given.name] = _values(rng, given, shape, turn == 6)
        else:
            yield feed


def _values(rng: np.random.Generator, given: Input, shape: tuple[int, ...], change: bool) -> np.ndarray:
    if given.fill is not None and (change or shape != given.base.shape or rng.random() < 0.3):
        return np.asarray(given.fill(rng, shape), given.base.dtype)
    if shape == given.base.shape:
        return given.base
    return np.resize(given.base, shape) if given.base.size else np.zeros(shape, given.base.dtype)
