"""Where two models part: the first tensor that differs, and what its own nodes have to do with it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.io import open_model, write
from bertfuse.measuring.differences import OutputDifference, difference
from bertfuse.runtime.session import ort_errors

from .subjects import Subject
from .tensors import computed_tensors, expose

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Bisection:
    """What `bisect` found.

    tensor      the first shared tensor that differs; "" where none does
    nodes       what the second model computes it with, from the shared tensors before it: "name (op)"
    inputs      these tensors, the model's inputs among them
    difference  of `tensor` in the whole model: what all nodes up to here have added up
    own         of `tensor` when its nodes are given the first model's values: what they alone add
    runs        how often the second model was run to find it
    """

    tensor: str
    nodes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    difference: OutputDifference | None = None
    own: OutputDifference | None = None
    runs: int = 0


def check_bisectable(subject: Subject) -> None:
    """Raises BertfuseError for an engine, which cannot be cut."""
    if subject.is_engine:
        message = "an engine cannot be bisected; bisect the fused file that it was built from"
        raise BertfuseError(f"{subject.path}: {message}")


def bisect(
    reference: Subject,
    other: Subject,
    feeds: Sequence[Arrays],
    atol: float | None = None,
    rtol: float | None = None,
) -> Bisection:
    """Finds the first shared tensor of `other` that differs from `reference`'s, in about log2 of their number runs.

    The search is before the first output that differs, on the first of `feeds` on which one does. Only the tensor at
    hand is made an output each time, so that the runtime fuses the rest as it does without. That a tensor behind one
    that differs differs, too, is assumed. Raises BertfuseError for an engine, which cannot be cut, and for models that
    share no tensor.
    """
    check_bisectable(other)
    inside = set(computed_tensors(other.path))
    names = [name for name in computed_tensors(reference.path) if name in inside]
    outputs = {value.name for value in other.probe().get_outputs()}
    ends = [name for name in names if name in outputs]
    if not ends:
        raise BertfuseError(f"{reference.path} and {other.path}: share no output; compare models of the same task")
    runs = 0
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        folder = Path(scratch)
        for feed in feeds:
            expected = _run(reference, names, feed, folder)
            got = _run(other, ends, feed, folder)
            runs += 1
            entries = [difference(name, expected[name], got[name], atol, rtol) for name in ends]
            found = next((entry for entry in entries if not entry.passed), None)
            if found is not None:
                break
        else:
            return Bisection("", runs=runs)
        low, high = 0, names.index(found.name)
        while low < high:
            middle = (low + high) // 2
            name = names[middle]
            entry = difference(name, expected[name], _run(other, [name], feed, folder)[name], atol, rtol)
            runs += 1
            if entry.passed:
                low = middle + 1
            else:
                high, found = middle, entry
        nodes, sources = _cut(other.path, found.name, set(names[:high]))
        own = _alone(other, found.name, sources, {**expected, **feed}, feed, folder)
    return Bisection(
        found.name,
        tuple(f"{node.name or node.output[0]} ({node.op_type})" for node in nodes),
        tuple(sources),
        found,
        difference(found.name, expected[found.name], own, atol, rtol),
        runs,
    )


def _run(subject: Subject, names: Sequence[str], feed: Arrays, folder: Path) -> dict[str, np.ndarray]:
    file = folder / "exposed.onnx"
    expose(subject.path, names, file)
    with ort_errors(str(subject.path)):
        return dict(zip(names, subject.session(file).run(list(names), dict(feed)), strict=True))


def _cut(path: Path, target: str, known: set[str]) -> tuple[list[onnx.NodeProto], list[str]]:
    """The nodes that compute `target` from known tensors and graph inputs, in order; and which of these they need."""
    graph = open_model(path)[0].graph
    producers = {name: node for node in graph.node for name in node.output}
    ends = known | {value.name for value in graph.input}
    queue, needed, sources = [target], set(), []
    while queue:
        name = queue.pop()
        if name in ends and name != target:
            if name not in sources:
                sources.append(name)
            continue
        node = producers.get(name)
        if node is not None and id(node) not in needed:
            needed.add(id(node))
            queue.extend(name for name in _inputs(node) if name)
    return [node for node in graph.node if id(node) in needed], sources


def _inputs(node: onnx.NodeProto) -> list[str]:
    """What the node reads, in its subgraphs, too."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names += [name for inner in graph.node for name in _inputs(inner)]
    return names


def _alone(subject: Subject, target: str, sources: list[str], values: Arrays, feed: Arrays, folder: Path) -> np.ndarray:
    """`target`, computed by its own nodes from the first model's values, in the types that the subject has there."""
    inner = [name for name in sources if name not in feed]
    types = _run(subject, inner, feed, folder) if inner else {}
    given = {name: values[name].astype(types[name].dtype if name in types else values[name].dtype) for name in sources}
    skeleton, weights = open_model(subject.path)
    nodes, _ = _cut(subject.path, target, set(sources))
    used = {name for node in nodes for name in _inputs(node)}
    graph = onnx.GraphProto(name="segment")
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for tensor in skeleton.graph.initializer if tensor.name in used)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
        for name, array in given.items()
    )
    graph.output.append(onnx.ValueInfoProto(name=target))
    skeleton.graph.CopyFrom(graph)
    file = folder / "segment.onnx"
    write(skeleton, {name: weight for name, weight in weights.items() if name in used}, file)
    with ort_errors(f"{subject.path}: nodes of {target}"):
        return subject.session(file).run([target], given)[0]
