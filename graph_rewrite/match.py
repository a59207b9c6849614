"""Finding an op's pattern in the normalised graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import onnx_graphsurgeon as gs

from .dialect.pattern import (
    ADD,
    GELU,
    LAYER_NORM,
    LINEAR,
    SDPA,
    SPLIT_HEADS,
    Output,
    Pattern,
    PatternNode,
    Variable,
)
from .eight_bit import rounding_of
from .graph import FusionGraph
from .nodes import DEFAULT_DOMAINS, DIALECT, NoMatch, describe, is_float_cast, producer
from .nodes import data_type as data_type_of
from .spec import DOMAIN, DTYPE_VARIABLES, OpSpec

# What gives each row of its first input a row: of heads, those of all heads together.
_KEEP_AXES = (LINEAR, GELU, LAYER_NORM, SPLIT_HEADS, SDPA)


@dataclass
class Match:
    """An op found: its inputs and attributes by name, and the nodes that it takes the place of, the root first."""

    inputs: dict[str, gs.Tensor] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    nodes: list[gs.Node] = field(default_factory=list)

    def copy(self) -> Match:
        return Match(dict(self.inputs), dict(self.attributes), list(self.nodes))


class _Deepest:
    """The failure farthest from the root: the one that explains most."""

    def __init__(self) -> None:
        self.depth = -1
        self.miss: NoMatch | None = None

    def note(self, depth: int, miss: NoMatch) -> None:
        if depth > self.depth:
            self.depth, self.miss = depth, miss


def match(graph: FusionGraph, spec: OpSpec, pattern: Pattern, root: gs.Node) -> Match:
    """Unify `pattern` with the graph above `root`: of several ways the first whose inside nobody else needs.

    Raises NoMatch with the deepest place where it broke.
    """
    deepest = _Deepest()
    for found in _node(graph, pattern.root, root, Match(), 0, deepest):
        try:
            _check_outside(found)
            check_description(spec, found, root)
            graph.check_private(found.nodes, list(found.inputs.values()))
        except NoMatch as miss:
            deepest.note(1 << 20, miss)
            continue
        return found
    assert deepest.miss is not None, "unification fails only with a reason"
    deepest.miss.depth = deepest.depth
    raise deepest.miss


def is_op(node: gs.Node, op: str) -> bool:
    """Whether `node` is the dialect's `op` (its Add is ONNX's)."""
    return node.op == op and (node.domain in DEFAULT_DOMAINS if op == ADD else node.domain == DIALECT)


def _node(graph: FusionGraph, wanted: PatternNode, node: gs.Node, match_: Match, depth: int, deepest: _Deepest):
    """Every way in which `node` and what is above it is an instance of `wanted`."""
    match_ = match_.copy()
    match_.nodes.append(node)
    for name, variable in wanted.attributes:
        match_.attributes[variable.name] = node.attrs[name]
    inputs = [None if tensor.is_empty() else tensor for tensor in node.inputs]
    if wanted.op == LINEAR and len(inputs) == 2:
        inputs.append(graph.zeros(inputs[1].shape[0], inputs[1].dtype))
    inputs += [None] * (len(wanted.inputs) - len(inputs))
    orders = [inputs, inputs[::-1]] if wanted.op == ADD else [inputs]
    for order in orders:
        yield from _inputs(graph, list(zip(wanted.inputs, order, strict=True)), node, match_, depth, deepest)


def _inputs(graph, pairs, node, match_, depth, deepest):
    if not pairs:
        yield match_
        return
    (wanted, tensor), *rest = pairs
    for found in _tensor(graph, wanted, tensor, node, match_, depth, deepest):
        yield from _inputs(graph, rest, node, found, depth, deepest)


def _tensor(graph, wanted, tensor, node, match_, depth, deepest):
    if wanted is None or tensor is None:
        if wanted is tensor:
            yield match_
        else:
            found = f"takes '{tensor.name}'" if wanted is None else "lacks an input"
            deepest.note(depth, NoMatch(node, found, wanted="nothing there" if wanted is None else "one"))
        return
    if isinstance(wanted, Variable):
        bound = match_.inputs.get(wanted.name)
        if bound is None:
            match_ = match_.copy()
            match_.inputs[wanted.name] = tensor
            yield match_
        elif bound is tensor:
            yield match_
        else:
            deepest.note(depth, NoMatch(node, f"takes '{tensor.name}'", wanted=f"'{bound.name}'"))
        return
    index, wanted_node = (wanted.index, wanted.node) if isinstance(wanted, Output) else (0, wanted)
    above = producer(tensor)
    if above is None or not is_op(above, wanted_node.op):
        deepest.note(depth, _wrong_producer(graph, node, tensor, above, wanted_node.op))
    elif above.outputs[index] is not tensor:
        deepest.note(depth, NoMatch(above, f"gives '{tensor.name}'", wanted=f"that as output {index}"))
    elif any(above is taken for taken in match_.nodes):
        yield match_  # another output of a node that is matched already
    else:
        yield from _node(graph, wanted_node, above, match_, depth + 1, deepest)


def _wrong_producer(graph: FusionGraph, node: gs.Node, tensor: gs.Tensor, above: gs.Node | None, op: str) -> NoMatch:
    if above is None:
        kind = "the constant" if isinstance(tensor, gs.Constant) else "the input"
        return NoMatch(node, f"takes {kind} '{tensor.name}'", wanted=f"the output of {op}")
    if (earlier := graph.failure(above)) is not None:
        return earlier
    return NoMatch(above, f"gives '{tensor.name}' as {describe(above)}", wanted=op)


def _check_outside(found: Match) -> None:
    """Nothing that the op would read is made by what it would take the place of, as in LayerNorm(p + p)."""
    for tensor in found.inputs.values():
        if any(producer(tensor) is node for node in found.nodes):
            raise NoMatch(producer(tensor), f"'{tensor.name}' is read twice by the op", wanted="no other consumer")


def check_description(spec: OpSpec, found: Match, root: gs.Node) -> None:
    """Raise NoMatch where the op does not take this: computed weights, other types, ranges or axes that disagree."""
    sizes: dict[str, tuple[int, str]] = {}
    elements: dict[str, tuple[int, str]] = {}
    leading: list[tuple[gs.Tensor, list[Any]]] = []
    for tensor_spec in spec.inputs:
        tensor = found.inputs.get(tensor_spec.name)
        if tensor is None:
            continue
        if tensor_spec.dtype == "T" and tensor_spec.constant and tensor_spec.name == "weight":
            _check_float(tensor, root)
        if tensor_spec.constant and not isinstance(tensor, gs.Constant):
            raise NoMatch(root, f"its {tensor_spec.name} '{tensor.name}' is computed", wanted="an initialiser")
        data_type = None if tensor.dtype is None else data_type_of(tensor.dtype)
        variable = "T" if tensor_spec.dtype == "W" else tensor_spec.dtype  # quantised by a pass alone
        allowed = DTYPE_VARIABLES[variable]
        if data_type is not None and data_type not in allowed.values():
            raise NoMatch(root, f"'{tensor.name}' is {tensor.dtype}", wanted=f"{' or '.join(allowed)}")
        if data_type is not None:
            first, owner = elements.setdefault(variable, (data_type, tensor.name))
            if first != data_type:
                raise NoMatch(root, f"'{tensor.name}' is {tensor.dtype}", wanted=f"the type of '{owner}'")
        _bind_axes(tensor_spec, tensor, sizes, found.attributes, root)
        if tensor_spec.leading and tensor.shape is not None:
            leading.append((tensor, list(tensor.shape[: len(tensor.shape) - len(tensor_spec.trailing)])))
    for tensor, axes in leading[1:]:
        _check_leading(*leading[0], tensor, axes, root)
    for attribute in spec.found_attributes:
        # Of an operation that this form of the op lacks.
        value = found.attributes.setdefault(attribute.name, attribute.default)
        low, high = attribute.minimum, attribute.maximum
        if attribute.kind == "float" and not math.isfinite(value):
            raise NoMatch(root, f"{attribute.name} is {value}", wanted="a finite number")
        if (low is not None and value < low) or (high is not None and value > high):
            raise NoMatch(root, f"{attribute.name} is {value}", wanted=f"{low} to {high}")
        size, owner = sizes.get(attribute.divides, (0, ""))
        if size % (value if attribute.divides else 1):
            raise NoMatch(root, f"{attribute.name} is {value}", wanted=f"a divisor of {size}, the size of '{owner}'")


def _is_elementwise(node: gs.Node) -> bool:
    return is_float_cast(node) or (node.domain in DEFAULT_DOMAINS and node.op in ("QuantizeLinear", "DequantizeLinear"))


def _check_float(tensor: gs.Tensor, root: gs.Node) -> None:
    """Raise NoMatch for a weight whose product is of 8-bit numbers, where the op has floats alone."""
    if isinstance(tensor, gs.Constant) and rounding_of(tensor._values) is not None:
        raise NoMatch(root, f"'{tensor.name}' are 8-bit numbers", wanted="floats: the op has no quantised form")


def _bind_axes(tensor_spec, tensor, sizes, attributes, root) -> None:
    axes, shape = tensor_spec.trailing, tensor.shape
    if shape is None:
        return
    if len(shape) < len(axes) or (len(shape) > len(axes) and not tensor_spec.leading):
        raise NoMatch(
            root, f"'{tensor.name}' has {len(shape)} axes", wanted=f"{tensor_spec.name} [{', '.join(tensor_spec.axes)}]"
        )
    for axis, size in zip(axes, shape[len(shape) - len(axes) :], strict=True):
        if not isinstance(size, int):
            continue
        times = axis.times(attributes)
        bound, owner = sizes.setdefault(axis.symbol, (size // times, tensor.name))
        if bound * times != size:
            raise NoMatch(root, f"'{tensor.name}' is {size} long", wanted=f"{bound * times}, as '{owner}' has it")


def _check_leading(first: gs.Tensor, wanted: list[Any], tensor: gs.Tensor, axes: list[Any], root: gs.Node) -> None:
    """Leading axes are the same in every tensor: ops do not broadcast. Two symbols may be one size, or may not."""
    same = len(axes) == len(wanted) and (
        all(a == b and a is not None for a, b in zip(axes, wanted, strict=True)) or _leader(first) is _leader(tensor)
    )
    if not same:
        raise NoMatch(
            root, f"'{tensor.name}' is {tensor.shape}", wanted=f"{first.shape}, as '{first.name}': ops do not broadcast"
        )


def _leader(tensor: gs.Tensor) -> gs.Tensor:
    """The tensor from which this one has all its axes but the last, whatever they are called."""
    while (node := producer(tensor)) is not None:
        if is_op(node, ADD):
            terms = [t for t in node.inputs if not isinstance(t, gs.Constant) or len(t.shape) > 1]
            if len(terms) != 1:
                break
            tensor = terms[0]
        elif node.domain == DOMAIN or (node.domain == DIALECT and node.op in _KEEP_AXES) or _is_elementwise(node):
            tensor = node.inputs[0]
        else:
            break
    return tensor
