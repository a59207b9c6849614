"""A wrong model made smaller, as long as it stays wrong in the same way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import onnx
from onnx import helper

from ..shape_rules.minimise import pruned
from .sessions import session
from .verdict import Feed, Verdict, judge


def smaller(
    model: onnx.ModelProto, feed: Feed, verdict: Verdict, level: str, end: float
) -> tuple[onnx.ModelProto, Feed]:
    """Fewer outputs and nodes, then shorter inputs; stops at the time `end`."""

    def still(candidate: onnx.ModelProto, given: Feed) -> bool:
        return judge(candidate, {"inputs": given}, level).outcome == verdict.outcome

    if verdict.text.startswith("fuse:") and "the model" in verdict.text:
        return model, feed  # it does not load: nothing can be cut by running it
    if not still(model, feed):
        return model, feed
    model = _fewer_outputs(model, feed, still, end)
    model = _fewer_nodes(model, feed, still, end)
    feed = _shorter(model, feed, still, end)
    return model, feed


def _fewer_outputs(model, feed, still, end):
    for value in list(model.graph.output):
        if len(model.graph.output) < 2 or time.monotonic() > end:
            break
        candidate = deepcopy(model)
        candidate.graph.output.remove(value)
        candidate = _pruned(candidate)
        if still(candidate, feed):
            model = candidate
    return model


def _fewer_nodes(model, feed, still, end):
    """Takes nodes away, from the last on: what used them uses one of their inputs, or the values that they had."""
    shapes = _values(model, feed)
    done: set[str] = set()
    while time.monotonic() < end:
        node = next((n for n in reversed(model.graph.node) if n.output and n.output[0] not in done), None)
        if node is None:
            break
        done.add(node.output[0])
        for candidate in _without(model, node, shapes):
            if time.monotonic() > end:
                break
            if still(candidate, feed):
                model = candidate
                break
    return model


def _without(model: onnx.ModelProto, node: onnx.NodeProto, values: dict[str, np.ndarray]) -> Iterator[onnx.ModelProto]:
    """The model with an input in the node's place; with the node as the only output."""
    output = node.output[0]
    mine = values.get(output)
    if mine is None or len(node.output) > 1:
        return
    given = {v.name for v in model.graph.output}
    if output not in given and mine.dtype == np.float32 and mine.ndim >= 2:
        candidate = deepcopy(model)
        del candidate.graph.output[:]
        element = helper.np_dtype_to_tensor_dtype(mine.dtype)
        candidate.graph.output.append(helper.make_tensor_value_info(output, element, [None] * mine.ndim))
        yield _pruned(candidate)
    for name in node.input:
        other = values.get(name)
        if other is None or other.shape != mine.shape or other.dtype != mine.dtype or output in given:
            continue
        candidate = deepcopy(model)
        for user in candidate.graph.node:
            for index, used in enumerate(user.input):
                if used == output:
                    user.input[index] = name
        yield _pruned(candidate)


def _values(model: onnx.ModelProto, feed: Feed) -> dict[str, np.ndarray]:
    copy = deepcopy(model)
    known = {v.name for v in copy.graph.output}
    for node in copy.graph.node:
        copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output if n and n not in known)
    try:
        runner = session(copy)
        arrays = runner.run(None, {v.name: feed[v.name] for v in runner.get_inputs()})
    except Exception:  # then nothing is known, and no node is taken away
        return {}
    made = dict(zip((o.name for o in runner.get_outputs()), arrays, strict=True))
    constants = {t.name: np.asarray(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer}
    return {name: a for name, a in (made | dict(feed) | constants).items() if isinstance(a, np.ndarray)}


def _shorter(model, feed, still, end):
    """One row of the batch, then half the length, and so on."""
    batch = max((len(a) for a in feed.values() if a.ndim), default=1)
    for row in range(batch if batch > 1 else 0):
        one = {name: a[row : row + 1] if a.ndim and len(a) == batch else a for name, a in feed.items()}
        if time.monotonic() < end and still(model, one):
            feed = one
            break
    length = max((a.shape[1] for a in feed.values() if a.ndim > 1), default=1)
    for shorter in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        if shorter >= length or time.monotonic() > end:
            break
        cut = {n: a[:, :shorter] if a.ndim > 1 and a.shape[1] == length else a for n, a in feed.items()}
        if still(model, cut):
            return cut
    return feed


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.value_info[:]  # what was inferred of the nodes that went
    return pruned(model, {})[0]
