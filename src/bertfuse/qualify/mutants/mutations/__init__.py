"""Ways to change a model a little. Each takes a Mutant and a random generator, and says what it did, or None.

constants  values, types and shapes          ends      parts counted from the end, heads over the last tokens
operators  other operators and attributes    views     operators that move elements, and need not change any
wiring     other tensors, conditions         bodies    nodes in If, Loop and Scan
domains    functions named like operators    declared  what the file says of shapes
names      of nodes, tensors and axes        rotations  angles and pairs of rotary position embeddings
parameters  epsilon, GELU's form, scales
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ..mutant import Mutant
from . import bodies, constants, declared, domains, ends, names, operators, parameters, rotations, views, wiring

Mutation = Callable[[Mutant, Random], "str | None"]

# With how often each is chosen.
MUTATIONS: dict[Mutation, float] = {
    constants.constant_value: 5, constants.constant_type: 1, constants.constant_shape: 1, constants.overridable: 0.5,
    parameters.parameter: 6,
    operators.attribute: 3, operators.swap_op: 3, operators.insert: 5, operators.drop: 3, operators.swap_inputs: 1.5,
    wiring.rewire: 4, wiring.combine: 3, wiring.expose: 0.5, wiring.exchange: 1.5, wiring.spliced: 7,
    wiring.input_type: 0.7,
    domains.foreign: 4, domains.block: 1.5, domains.long_domain: 0.3,
    names.node_names: 1, names.tensor_names: 1, names.axis_names: 1,
    ends.rolled: 2.5, ends.pooled: 2.5, views.view: 6, views.as_einsum: 1,
    bodies.branch: 3, bodies.loop: 1, bodies.scan: 1, declared.inside: 1.5, declared.of_inputs: 1.5,
    declared.of_outputs: 0.4,
}  # fmt: skip

# Of models that have any.
ROTATIONS: dict[Mutation, float] = {rotations.angle: 6, rotations.pairs: 6, rotations.frequency: 4}
