"""A model of which something wrong is said made smaller, as long as something of that kind stays wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from copy import deepcopy

import numpy as np
import onnx
from onnx import numpy_helper

from .claims import Claim, check
from .draw import free_names
from .models import Feed
from .runtime import Refused, Value, kind_of_array, run, session

_SECONDS = 10.0


def smaller(
    model: onnx.ModelProto, feed: Feed, claim: Claim, hidden: frozenset[str], seconds: float = _SECONDS
) -> tuple[onnx.ModelProto, Feed, Claim]:
    """The model, its inputs, and what is wrongly said of it. A process that dies on the way loses the trial."""
    end = time.monotonic() + seconds

    def wrong(candidate: onnx.ModelProto, given: Feed) -> Claim | None:
        try:
            found = check(candidate, [given], hidden).wrong
        except Exception:  # cut in such a way that nothing can be said of it
            return None
        return found if found is not None and found.what == claim.what else None

    if (now := wrong(model, feed)) is None:
        return model, feed, claim
    claim = now
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate, given in _candidates(model, feed, claim):
            if time.monotonic() > end:
                break
            found = wrong(candidate, given)
            if found is not None:
                model, feed, claim, changed = candidate, given, found, True
                break
    return model, feed, claim


def _candidates(model: onnx.ModelProto, feed: Feed, claim: Claim) -> Iterator[tuple[onnx.ModelProto, Feed]]:
    """Smaller models, the boldest first, each with inputs for it."""
    values = _values(model, feed)
    outputs = {value.name for value in model.graph.output}
    if claim.tensor and outputs != {claim.tensor}:
        yield pruned(_ending_in(model, claim.tensor, values), feed)
    yield from _without_declarations(model, feed)
    for node in model.graph.node if claim.what == "raises" or not claim.tensor else ():
        for name in node.output:
            if name in values and outputs != {name}:
                yield pruned(_ending_in(model, name, values), feed)
    for node in reversed(list(model.graph.node)):
        if claim.tensor in node.output:
            continue
        yield from _without(model, feed, node, values)
    for index, node in enumerate(model.graph.node):
        for attribute in node.attribute:
            candidate = deepcopy(model)
            candidate.graph.node[index].attribute.remove(attribute)
            yield candidate, feed
        if len(node.input) > 1:
            candidate = deepcopy(model)
            del candidate.graph.node[index].input[-1]
            yield pruned(candidate, feed)
    yield from _plainer_inputs(model, feed)


def _without_declarations(model: onnx.ModelProto, feed: Feed) -> Iterator[tuple[onnx.ModelProto, Feed]]:
    if model.graph.value_info:
        candidate = deepcopy(model)
        del candidate.graph.value_info[:]
        yield candidate, feed
    if any(value.type.tensor_type.HasField("shape") for value in model.graph.output):
        candidate = deepcopy(model)
        for value in candidate.graph.output:
            value.type.tensor_type.ClearField("shape")
        yield candidate, feed
    for index in range(len(model.graph.value_info) if len(model.graph.value_info) > 1 else 0):
        candidate = deepcopy(model)
        del candidate.graph.value_info[index]
        yield candidate, feed


def _without(
    model: onnx.ModelProto, feed: Feed, node: onnx.NodeProto, values: Mapping[str, Value]
) -> Iterator[tuple[onnx.ModelProto, Feed]]:
    """Without the node: its outputs are constants, inputs of the model, or what it was given."""
    made = [name for name in node.output if name]
    if not all(isinstance(values.get(name), np.ndarray) for name in made):
        return
    if node.op_type != "Constant":
        constants = deepcopy(model)
        constants.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in made)
        constants.graph.node.remove(node)
        yield pruned(constants, feed)
    for name in node.input:
        given = values.get(name)
        if len(made) == 1 and isinstance(given, np.ndarray) and given.dtype == values[made[0]].dtype:
            passed = deepcopy(model)
            passed.graph.node.remove(node)
            for user in passed.graph.node:
                user.input[:] = [name if each == made[0] else each for each in user.input]
            yield pruned(passed, feed)
    fed = deepcopy(model)
    for name in made:
        shape = [f"{name}_{axis}" for axis in range(values[name].ndim)]
        fed.graph.input.append(kind_of_array(values[name]).value_info(name, shape))
    fed.graph.node.remove(node)
    yield pruned(fed, feed | {name: values[name] for name in made})


def _plainer_inputs(model: onnx.ModelProto, feed: Feed) -> Iterator[tuple[onnx.ModelProto, Feed]]:
    for index, value in enumerate(model.graph.input):
        array = feed[value.name]
        candidate = deepcopy(model)
        del candidate.graph.input[index]
        candidate.graph.initializer.append(numpy_helper.from_array(array, value.name))
        yield candidate, {name: given for name, given in feed.items() if name != value.name}
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                candidate = deepcopy(model)
                candidate.graph.input[index].type.tensor_type.shape.dim[axis].dim_value = array.shape[axis]
                yield candidate, feed


def _ending_in(model: onnx.ModelProto, name: str, values: Mapping[str, Value]) -> onnx.ModelProto:
    candidate = deepcopy(model)
    old = {value.name: value for value in model.graph.output}
    del candidate.graph.output[:]
    array = values.get(name)
    if name in old:
        candidate.graph.output.append(old[name])
    elif isinstance(array, np.ndarray):
        candidate.graph.output.append(kind_of_array(array).value_info(name))
    else:
        candidate.graph.output.append(onnx.ValueInfoProto(name=name))
    return candidate


def pruned(model: onnx.ModelProto, feed: Feed) -> tuple[onnx.ModelProto, Feed]:
    """Without what no output needs."""
    needed = {value.name for value in model.graph.output}
    for node in reversed(list(model.graph.node)):
        if needed & set(node.output):
            needed.update(free_names(node))
        else:
            model.graph.node.remove(node)
    for values in (model.graph.initializer, model.graph.input, model.graph.value_info):
        for value in list(values):
            if value.name not in needed:
                values.remove(value)
    domains = {node.domain for node in model.graph.node}
    for function in list(model.functions):
        if function.domain not in domains and not _bodies(model):
            model.functions.remove(function)
    return model, {name: value for name, value in feed.items() if name in {v.name for v in model.graph.input}}


def _bodies(model: onnx.ModelProto) -> bool:
    return any(a.HasField("g") for node in model.graph.node for a in node.attribute)


def _values(model: onnx.ModelProto, feed: Feed) -> dict[str, Value]:
    """Of every tensor that can be had; nothing where the model does not run."""
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | dict(feed)
    whole = deepcopy(model)
    names = {value.name for value in whole.graph.output}
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=n) for node in model.graph.node for n in node.output if n and n not in names
    )
    try:
        return known | dict(zip((v.name for v in whole.graph.output), run(session(whole), feed), strict=True))
    except Refused:
        return known


def written(model: onnx.ModelProto, feed: Feed) -> str:
    """The model in ONNX's own text form, and its inputs."""
    lines = [onnx.printer.to_text(model)]
    for name, value in feed.items():
        shown = np.array2string(value, separator=", ") if value.size <= 8 and value.dtype.kind in "iub" else ""
        lines.append(f"{name}: {value.dtype} {list(value.shape)} {shown}".rstrip())
    return "\n".join(lines)
