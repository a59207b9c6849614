"""Several models in one graph: what they compute alike is computed once, and each keeps its outputs.

Two values are one where the same op with the same attributes computes them from the same values; two weights, where
type, shape and bytes are equal. Names say nothing. So the common part is proven by what is in the files, and reaches
exactly as far as the models are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from . import io
from .weights import Weight

# More of a model's weights than that may not be its own: whatever is asked for, all of the graph is computed.
MOST_OWN = 1 / 6
# Of these ops a weight is a table: its size says nothing of the work.
_LOOKUPS = {"Gather", "EmbedLayerNormalization", "EmbedLayerNorm"}
_RANDOM = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


@dataclass(frozen=True)
class Member:
    """Of a model in the graph: its outputs' names in there, and what its own file says of itself."""

    outputs: dict[str, str]
    metadata: dict[str, str]


@dataclass
class _Graph:
    """A graph that models are added to, and which of its values stands for each of a model's."""

    skeleton: onnx.ModelProto
    weights: dict[str, Weight]
    known: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)  # what computes a value: its names
    names: set[str] = field(default_factory=set)
    matrices: dict[str, int] = field(default_factory=dict)  # elements of each initialiser with two axes or more

    def fresh(self, name: str) -> str:
        made, count = name, 1
        while made in self.names:
            count += 1
            made = f"{name}_{count}"
        self.names.add(made)
        return made


def one_graph(models: Sequence[Path], target: Path) -> list[Member] | None:
    """Writes one model that computes what all of `models` do, and returns what each is in there.

    None, and nothing written, where they take other inputs, are of other opsets, or where more than MOST_OWN of a
    model's weights are not common to all, tables of embeddings aside. Raises BertfuseError for a file that is no model.
    """
    opened = [io.open_model(path) for path in models]
    first = opened[0][0]
    if any(not _fits(first, skeleton) for skeleton, _ in opened):
        return None
    made = _Graph(onnx.ModelProto(), {})
    made.skeleton.CopyFrom(first)
    for kept in ("node", "initializer", "output", "value_info"):
        made.skeleton.graph.ClearField(kept)
    made.names = {value.name for value in first.graph.input}
    found = [_added(made, *model) for model in opened]
    common = set.intersection(*(used for _, used in found))
    for _, used in found:
        total, own = (sum(made.matrices[name] for _, name in part) for part in (used, used - common))
        if own > MOST_OWN * total or not total:
            return None
    io.write(made.skeleton, made.weights, target)
    return [
        Member(outputs, {entry.key: entry.value for entry in skeleton.metadata_props})
        for (outputs, _), (skeleton, _) in zip(found, opened, strict=True)
    ]


def _fits(first: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether inputs, opsets and functions of the two agree, and all that computes `other` can be compared."""
    inputs = [[value.SerializeToString(deterministic=True) for value in m.graph.input] for m in (first, other)]
    opsets = [{(entry.domain, entry.version) for entry in m.opset_import} for m in (first, other)]
    mine = {_function_name(function): function for function in first.functions}
    for function in other.functions:
        if mine.get(_function_name(function), function) != function:
            return False
    graph = other.graph
    kinds = {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
    comparable = not graph.sparse_initializer and not any(
        node.op_type in _RANDOM or any(attribute.type in kinds for attribute in node.attribute) for node in graph.node
    )
    defaults = {tensor.name for tensor in graph.initializer} & {value.name for value in graph.input}
    return comparable and not defaults and inputs[0] == inputs[1] and opsets[0] == opsets[1]


def _function_name(function: onnx.FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, getattr(function, "overload", "")


def _added(
    made: _Graph, skeleton: onnx.ModelProto, weights: dict[str, Weight]
) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Adds a model: its outputs' names in the graph, and the pairs of node and matrix that it computes with."""
    graph, into = skeleton.graph, made.skeleton.graph
    given = {_function_name(function) for function in made.skeleton.functions}
    made.skeleton.functions.extend(f for f in skeleton.functions if _function_name(f) not in given)
    called = {"": ""} | {value.name: value.name for value in graph.input}
    for tensor in graph.initializer:
        array = weights[tensor.name].load() if tensor.name in weights else numpy_helper.to_array(tensor)
        key = ("weight", tensor.data_type, tuple(tensor.dims), _digest(array))
        if key not in made.known:
            name = made.fresh(tensor.name)
            made.known[key] = [name]
            if len(tensor.dims) > 1:
                made.matrices[name] = int(np.prod(tensor.dims))
            into.initializer.add().CopyFrom(tensor)
            into.initializer[-1].name = name
            if tensor.name in weights:
                made.weights[name] = weights[tensor.name]
        called[tensor.name] = made.known[key][0]
    used = set()
    for node in graph.node:
        inputs = [called[name] for name in node.input]
        key = (node.domain, node.op_type, getattr(node, "overload", ""), tuple(inputs), len(node.output))
        key += tuple(sorted(_attribute(attribute) for attribute in node.attribute))
        # An output that is not asked for has no name; what some op gives without may be something else with it.
        key += tuple(bool(name) for name in node.output)
        if key not in made.known:
            made.known[key] = [made.fresh(name) if name else "" for name in node.output]
            copy = into.node.add()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[:], copy.output[:] = inputs, made.known[key]
        called.update(zip(node.output, made.known[key], strict=True))
        if node.op_type not in _LOOKUPS:
            used |= {(made.known[key][0], name) for name in inputs if name in made.matrices}
    outputs = {}
    there = {value.name for value in into.output}
    for value in graph.output:
        name = outputs[value.name] = called[value.name]
        if name not in there:
            there.add(name)
            into.output.add().CopyFrom(value)
            into.output[-1].name = name
    return outputs, used


def _digest(array: np.ndarray) -> bytes:
    if array.dtype == object:  # strings
        return repr(array.tolist()).encode()
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8), digest_size=32).digest()


def _attribute(attribute: onnx.AttributeProto) -> bytes:
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    copy.ClearField("doc_string")
    return copy.SerializeToString(deterministic=True)
